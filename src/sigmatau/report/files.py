"""Files of a report, written whole or not at all."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path

from sigmatau.errors import FileError


def put(path: Path, content: str | bytes) -> Path:
    """Write a file, and its folder if need be; what was there stays until the new is complete."""
    temporary = path.with_name(f".{path.name}-{secrets.token_hex(4)}.tmp")
    data = content.encode() if isinstance(content, str) else content
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(temporary, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise FileError(
            f"{path} was not written ({error.strerror}), and what was there is untouched; give "
            "--out a folder that may be written to, on a disk that is not full"
        ) from error
    return path
