"""The files of a results folder, and a lock that dies with its owner."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from sigmatau.errors import FileError
from sigmatau.files import put

FORMAT = 1  # of the files in a results folder


def write_json(path: Path, value: Mapping[str, Any], *, durable: bool = True) -> None:
    """Write a JSON object, each of its entries on a line of its own."""
    lines = [f" {json.dumps(k)}: {json.dumps(v, allow_nan=False)}" for k, v in value.items()]
    put(path, "{\n" + ",\n".join(lines) + "\n}\n", durable=durable)


def read_json(path: Path) -> Any | None:
    """Return what a file holds, None if there is none."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror}") from error
    try:
        return json.loads(text)
    except ValueError as error:
        raise FileError(f"{path} is damaged ({error}): delete it, and run again") from error


def make_folder(path: Path) -> Path:
    """Make sure that a folder is there."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(
            f"cannot make the folder {path} ({error.strerror}): give --out a folder that may be "
            "written to"
        ) from error
    return path


@contextlib.contextmanager
def locked(path: Path) -> Iterator[bool]:
    """Try to take a lock and say whether it is held; the system frees it when its owner dies."""
    lock = FileLock(path, timeout=0)
    try:
        lock.acquire()
    except Timeout:
        yield False
        return
    except OSError as error:
        raise FileError(
            f"cannot lock {path} ({error.strerror}): its folder must be one to write to"
        ) from error
    try:
        yield True
    finally:
        lock.release()
