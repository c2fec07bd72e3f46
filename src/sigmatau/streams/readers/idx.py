"""IDX, the format of MNIST: a magic number, the sizes, then the bytes; usually gzipped."""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sigmatau.errors import FileError
from sigmatau.streams.cache import Parsed
from sigmatau.streams.split import image_ids


def read_idx(path: Path) -> NDArray[np.uint8]:
    """Return the array of unsigned bytes that an IDX file holds, gzipped or not."""
    again = "Delete it and fetch it again."
    try:
        content = path.read_bytes()
        if content[:2] == b"\x1f\x8b":
            content = gzip.decompress(content)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise FileError(f"{path} is broken off or damaged ({error}). {again}") from error
    axes = content[3] if content[:3] == b"\0\0\x08" and len(content) > 3 else 0
    if not 1 <= axes <= 4 or len(content) < 4 + 4 * axes:
        raise FileError(f"{path} is not an IDX file of bytes. {again}")
    shape = struct.unpack_from(f">{axes}I", content, 4)
    body = memoryview(content)[4 + 4 * axes :]
    if len(body) != int(np.prod(shape, dtype=np.int64)):
        raise FileError(f"{path} promises {shape} bytes and holds {len(body)}. {again}")
    return np.frombuffer(body, dtype=np.uint8).reshape(shape)


def read_mnist(folder: Path, classes: Sequence[str]) -> Parsed:
    """Read the four files of MNIST or of a set in its form."""
    arrays: dict[str, NDArray[Any]] = {}
    for part, stem in (("train", "train"), ("test", "t10k")):
        images = folder / f"{stem}-images-idx3-ubyte.gz"
        x, y = read_idx(images), read_idx(folder / f"{stem}-labels-idx1-ubyte.gz")
        if x.ndim != 3 or x.shape[1:] != (28, 28) or y.shape != (len(x),) or len(x) == 0:
            raise FileError(f"{images}: {x.shape} images beside {y.shape} labels; is it MNIST's?")
        if y.max() >= len(classes):
            raise FileError(f"{images}: its labels run to {y.max()}, past {len(classes)} classes")
        arrays |= {
            f"{part}_x": x[:, None],
            f"{part}_y": y.astype(np.int64),
            f"{part}_id": image_ids(x),
        }
    return Parsed(arrays, {"classes": list(classes)})
