"""Parse once, map ever after: arrays as .npy files beside a manifest that proves they are whole.

The manifest is written last and holds a checksum of every array and the sizes and times of the
files they came from. Whatever does not agree with it (a half-written file, a flipped bit, a
changed source) means parsing again, so a damaged cache heals itself.
"""

from __future__ import annotations

import glob
import hashlib
import json
import logging
import os
import uuid
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pooch
from numpy.typing import NDArray

# Raised whenever what a reader puts into its arrays changes meaning.
VERSION = 1
log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Parsed:
    """What a reader found: arrays by name, and plain JSON values beside them."""

    arrays: Mapping[str, NDArray[Any]]
    meta: Mapping[str, Any] = field(default_factory=dict)

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self.arrays[name]


def parsed(
    root: Path, name: str, folder: Path, patterns: Sequence[str], read: Callable[[Path], Parsed]
) -> Parsed:
    """Return what `read(folder)` returns, from the cache if it is whole and not out of date."""
    where = _folder(root) / name
    stamp = fingerprint(folder, patterns)
    found = _load(where, stamp)
    if found is None:
        fresh = read(folder)
        try:
            _store(where, stamp, fresh)
        except OSError as error:
            log.warning(
                "%s could not be cached (%s); it will be parsed at every start", name, error
            )
        # What cannot be written or read back is a full or failing disk; the arrays are good.
        return _load(where, stamp) or fresh
    return found


def fingerprint(folder: Path, patterns: Sequence[str]) -> str:
    """Return a digest of the names, sizes and modification times of the files that fit."""
    digest = hashlib.sha256(f"version {VERSION}".encode())
    # Plain strings: a set may be 50,000 files, and Path objects would take most of a second.
    for name in sorted(n for pattern in patterns for n in glob.glob(pattern, root_dir=folder)):
        stat = os.stat(os.path.join(folder, name))
        digest.update(f"{name}\0{stat.st_size}\0{stat.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def write_whole(path: Path, content: bytes | memoryview) -> None:
    """Write a file so that it is there whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # Not tempfile: its files are for their owner only, and a data folder may be shared.
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _folder(root: Path) -> Path:
    """Return where parsed arrays go: in the data folder, unless that cannot be written to."""
    if os.access(root, os.W_OK):
        return root / ".parsed"
    elsewhere = hashlib.sha256(str(root.resolve()).encode()).hexdigest()[:16]
    return Path(pooch.os_cache("sigmatau")) / ".parsed" / elsewhere


def _store(folder: Path, stamp: str, fresh: Parsed) -> None:
    checksums = {}
    for name, array in fresh.arrays.items():
        buffer = BytesIO()
        np.save(buffer, np.ascontiguousarray(array), allow_pickle=False)
        checksums[name] = zlib.crc32(buffer.getbuffer())
        write_whole(folder / f"{name}.npy", buffer.getbuffer())
    manifest = {"stamp": stamp, "crc32": checksums, "meta": dict(fresh.meta)}
    write_whole(folder / "manifest.json", json.dumps(manifest, indent=1).encode())


def _load(folder: Path, stamp: str) -> Parsed | None:
    """Return the cached arrays, or None if they are not there, not whole or out of date."""
    try:
        manifest = json.loads((folder / "manifest.json").read_text())
        if manifest["stamp"] != stamp:
            log.info("%s: the source files have changed; parsing them again", folder.name)
            return None
        arrays = {}
        for name, checksum in manifest["crc32"].items():
            path = folder / f"{name}.npy"
            if zlib.crc32(np.memmap(path, mode="r").data) != checksum:
                raise ValueError(f"{path.name} does not match its checksum")
            arrays[name] = np.load(path, mmap_mode="r", allow_pickle=False)
        return Parsed(arrays, manifest["meta"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        log.warning("%s: the cache is damaged (%s); parsing again", folder.name, error)
        return None
