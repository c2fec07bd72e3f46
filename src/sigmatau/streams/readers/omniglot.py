"""Omniglot from its two zips: 1,623 characters, 20 drawings each, shrunk from 105 to 28 pixels.

105 x 4 = 28 x 15, so each small pixel is the exact mean of 15 x 15 quarter pixels: an area
average in whole numbers, which every machine computes alike. Ink is 255 on 0.
"""

from __future__ import annotations

import zipfile
from io import BytesIO
from pathlib import Path, PurePosixPath

import numpy as np
from numpy.typing import NDArray

from sigmatau.errors import FileError
from sigmatau.streams.cache import Parsed
from sigmatau.streams.split import image_ids

ZIPS = ("images_background.zip", "images_evaluation.zip")
DRAWINGS = 20


def shrink(ink: NDArray[np.bool_]) -> NDArray[np.uint8]:
    """Return (n, 105, 105) bits as (n, 28, 28) bytes by exact area averages."""
    # Sums stay below 2^24, so float32 holds them exactly and BLAS may do the work.
    quarter = np.arange(420)
    weights = np.zeros((28, 105), dtype=np.float32)
    np.add.at(weights, (quarter // 15, quarter // 4), 1)
    sums = (weights @ ink.astype(np.float32) @ weights.T).astype(np.int64)
    return ((sums * 255 + 112) // 225).astype(np.uint8)


def read_zip(path: Path) -> dict[str, NDArray[np.uint8]]:
    """Return the drawings of each character, by `alphabet/character`, both sorted."""
    from PIL import Image, UnidentifiedImageError

    characters: dict[str, list[NDArray[np.bool_]]] = {}
    try:
        with zipfile.ZipFile(path) as archive:
            for entry in sorted(n for n in archive.namelist() if n.endswith(".png")):
                with Image.open(BytesIO(archive.read(entry))) as image:
                    if image.size != (105, 105):
                        raise FileError(f"{path}: {entry} is {image.size}, not 105 x 105")
                    drawing = ~np.asarray(image.convert("1"))
                alphabet, character = PurePosixPath(entry).parts[-3:-1]
                characters.setdefault(f"{alphabet}/{character}", []).append(drawing)
    except (zipfile.BadZipFile, UnidentifiedImageError, ValueError, EOFError) as error:
        if isinstance(error, FileError):
            raise
        raise FileError(f"{path} is damaged ({error}). Delete it and fetch it again.") from error
    for name, drawings in characters.items():
        if len(drawings) != DRAWINGS:
            raise FileError(f"{path}: {name} has {len(drawings)} drawings, not {DRAWINGS}")
    if not characters:
        raise FileError(f"{path} holds no drawings. Delete it and fetch it again.")
    return {name: shrink(np.stack(drawings)) for name, drawings in characters.items()}


def read_omniglot(folder: Path) -> Parsed:
    """Read both zips: the characters of background first, then those of evaluation."""
    characters = [item for file in ZIPS for item in read_zip(folder / file).items()]
    x = np.stack([drawings for _, drawings in characters])
    turned = np.stack([np.rot90(x, k, axes=(2, 3)) for k in range(4)], axis=2)
    ids = image_ids(turned.reshape(-1, 28, 28)).reshape(turned.shape[:3])
    return Parsed({"x": x, "id": ids}, {"characters": [title for title, _ in characters]})
