"""Plain files, written whole or not at all."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path

from sigmatau.errors import FileError


def put(path: Path, content: str | bytes, *, durable: bool = True) -> Path:
    """Write a file, and its folder if need be; what was there stays until the new is complete.

    A `durable` file has reached the disk when this returns.
    """
    temporary = path.with_name(f".{path.name}-{secrets.token_hex(4)}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(temporary, "xb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        if not isinstance(error, OSError):
            raise
        raise FileError(
            f"{path} was not written ({error.strerror}), and what was there is untouched; make "
            "sure that its folder may be written to, or choose another with --out, and that the "
            "disk is not full, and run again: finished work is kept"
        ) from error
    return path
