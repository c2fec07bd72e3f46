"""What numbers were made with, and where: told in every result."""

from __future__ import annotations

import contextlib
import os
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

import sigmatau


def versions() -> dict[str, str]:
    """Return what the numbers were made with."""
    return {
        "sigmatau": sigmatau.__version__,
        "torch": str(torch.__version__),
        "numpy": version("numpy"),
        "python": platform.python_version(),
    }


def machine(accelerator: str = "cpu") -> dict[str, Any]:
    """Return where the numbers were made."""
    kind = processor() if accelerator == "cpu" else torch.cuda.get_device_name()
    return {accelerator: kind, "cores": os.cpu_count(), "threads": torch.get_num_threads()}


def processor(about: Path = Path("/proc/cpuinfo")) -> str:
    """Return the processor's name, and what tells it from others that go by the same name."""
    found: dict[str, str] = {}
    with contextlib.suppress(OSError):
        for line in about.read_text().splitlines():
            key, _, value = line.partition(":")
            found.setdefault(key.strip(), value.strip())
    name = found.get("model name") or platform.processor() or platform.machine()
    if {"cpu family", "model"} <= found.keys():
        return f"{name} (family {found['cpu family']}, model {found['model']})"
    return name
