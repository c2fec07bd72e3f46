"""Data for the tests: small generated files everywhere, the real files where they can be had."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from sigmatau.streams.sets import SETS

from . import official

UNPACK = Path(__file__).resolve().parents[3] / "shared" / "data" / "unpack.py"


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, dict[str, np.ndarray]]]:
    """A data folder of small files in the official formats, and the truth about them."""
    root = tmp_path_factory.mktemp("made")
    return root, official.everything(root)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Keep a second test run from unpacking at the same time."""
    fcntl = pytest.importorskip("fcntl", reason="unpacking real data needs POSIX file locks")
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _unpacked(name: str) -> Path:
    version = hashlib.sha256(UNPACK.read_bytes()).hexdigest()[:12]
    user = getattr(os, "getuid", int)()
    folder = Path(tempfile.gettempdir()) / f"sigmatau-test-data-{user}-{version}"
    folder.mkdir(mode=0o700, exist_ok=True)
    with _locked(folder / ".lock"):
        if SETS[name].missing(folder):
            command = [sys.executable, str(UNPACK), str(folder), name]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return folder


@pytest.fixture(scope="session")
def real(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Return a data folder that has the named real sets, or skip and say what is missing.

    It links to the real files, so that what gets parsed is parsed by the code under test.
    """
    root = tmp_path_factory.mktemp("real")

    def having(*names: str) -> Path:
        for name in names:
            folder = SETS[name].folder
            if (root / folder).exists():
                continue
            if given := os.environ.get("SIGMATAU_TEST_DATA"):
                source = Path(given)
            elif UNPACK.exists():
                source = _unpacked(name)
            else:
                pytest.skip(f"no real {name}: set SIGMATAU_TEST_DATA to a folder with {folder}")
            if missing := SETS[name].missing(source):
                pytest.skip(f"no real {name}: {source / folder} lacks {', '.join(missing)}")
            (root / folder).symlink_to(source / folder, target_is_directory=True)
        return root

    return having
