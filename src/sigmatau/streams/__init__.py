"""Streams of tasks: the paper's benchmarks by name, or your own data.

The names below are looked up on first use, so that a command line can import its part of this
package without loading PyTorch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sigmatau.streams.base import Stream, Task
    from sigmatau.streams.own import from_folder, from_huggingface, from_tensors
    from sigmatau.streams.registry import get, names, register

_HOME = {
    "Stream": "base",
    "Task": "base",
    "from_folder": "own",
    "from_huggingface": "own",
    "from_tensors": "own",
    "get": "registry",
    "names": "registry",
    "register": "registry",
}

__all__ = [
    "Stream",
    "Task",
    "from_folder",
    "from_huggingface",
    "from_tensors",
    "get",
    "names",
    "register",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
