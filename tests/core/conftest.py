"""Where a file goes, and what is read of it."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.sigmatau"


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The length of every read from a file."""
    lengths: list[int] = []
    pread = os.pread

    def counted(fd: int, length: int, start: int) -> bytes:
        lengths.append(length)
        return pread(fd, length, start)

    monkeypatch.setattr(os, "pread", counted)
    return lengths
