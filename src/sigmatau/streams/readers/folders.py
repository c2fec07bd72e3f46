"""Sets that are folders of pictures: GTSRB, notMNIST and FaceScrub.

Pictures that no library can open are left out and counted: notMNIST is published with a few.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sigmatau.errors import FileError
from sigmatau.streams.cache import Parsed
from sigmatau.streams.split import image_ids, stratified

_SIGNS = (
    "speed limit 20", "speed limit 30", "speed limit 50", "speed limit 60", "speed limit 70",
    "speed limit 80", "end of speed limit 80", "speed limit 100", "speed limit 120",
    "no overtaking", "no overtaking by lorries", "priority at next crossing", "priority road",
    "give way", "stop", "no vehicles", "no lorries", "no entry", "danger", "bend to the left",
    "bend to the right", "double bend", "uneven road", "slippery road", "road narrows on the right",
    "road works", "traffic lights", "pedestrians", "children", "bicycles", "ice or snow",
    "wild animals", "end of all limits", "turn right", "turn left", "straight on",
    "straight on or right", "straight on or left", "keep right", "keep left", "roundabout",
    "end of no overtaking", "end of no overtaking by lorries",
)  # fmt: skip


def read_pictures(
    paths: Sequence[Path], mode: str, size: int
) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
    """Return the pictures that open, NCHW at `size` x `size`, and which of `paths` those were."""
    from PIL import Image

    opened = np.ones(len(paths), dtype=bool)
    images = []
    for i, path in enumerate(paths):
        try:
            with Image.open(path) as picture:
                scaled = picture.convert(mode)
                if scaled.size != (size, size):
                    # Pillow widens the filter when shrinking, so this does not alias.
                    scaled = scaled.resize((size, size), Image.Resampling.BILINEAR)
                images.append(np.asarray(scaled))
        except (OSError, SyntaxError, ValueError):
            opened[i] = False
    if not images:
        raise FileError(f"none of {len(paths)} files could be opened, {paths[0]} for one")
    stacked = np.stack(images)
    return np.ascontiguousarray(
        stacked[:, None] if stacked.ndim == 3 else stacked.transpose(0, 3, 1, 2)
    ), opened


def _part(name: str, x: NDArray[np.uint8], y: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
    return {f"{name}_x": x, f"{name}_y": y, f"{name}_id": image_ids(x)}


def read_gtsrb(folder: Path) -> Parsed:
    """Read `Final_Training` by its folders and `Final_Test` by its table of labels."""
    train = sorted((folder / "Final_Training" / "Images").glob("*/*.ppm"))
    table = folder / "Final_Test" / "Images" / "GT-final_test.csv"
    test, test_y = [], []
    try:
        train_y = [int(path.parent.name) for path in train]
        with table.open(newline="") as file:
            for row in csv.DictReader(file, delimiter=";"):
                test.append(table.parent / row["Filename"])
                test_y.append(int(row["ClassId"]))
    except (KeyError, TypeError, ValueError) as error:
        raise FileError(
            f"{table} or a folder beside it is not GTSRB's ({error!r}): class folders are numbers, "
            "and the table has Filename and ClassId"
        ) from error
    arrays: dict[str, NDArray[Any]] = {}
    for part, paths, labels in (("train", train, train_y), ("test", test, test_y)):
        y = np.asarray(labels, dtype=np.int64)
        if len(y) == 0 or y.min() < 0 or y.max() >= len(_SIGNS):
            raise FileError(f"GTSRB {part} in {folder} has no labels from 0 to {len(_SIGNS) - 1}")
        x, opened = read_pictures(paths, "RGB", 32)
        if not opened.all():
            raise FileError(f"{paths[int(np.argmin(opened))]} cannot be opened; fetch GTSRB again")
        arrays |= _part(part, x, y)
    return Parsed(arrays, {"classes": list(_SIGNS)})


def read_class_folders(
    folder: Path, *, name: str, mode: str, size: int, classes: int, test_share: float = 0.1
) -> Parsed:
    """Read a folder a class; a tenth of each class, the same for every seed, is the test part.

    Of more folders than `classes`, those with the most pictures are taken.
    """
    found = {
        d.name: sorted(p for p in d.iterdir() if p.suffix.lower() in {".png", ".jpg", ".jpeg"})
        for d in sorted(folder.iterdir())
        if d.is_dir()
    }
    largest = sorted(found, key=lambda title: -len(found[title]))[:classes]
    titles = sorted(largest)
    if len(titles) < classes:
        raise FileError(f"{folder} has {len(titles)} class folders, not {classes}")
    paths = [path for title in titles for path in found[title]]
    y = np.repeat(np.arange(classes, dtype=np.int64), [len(found[title]) for title in titles])
    x, opened = read_pictures(paths, mode, size)
    y, ids = y[opened], image_ids(x)
    # Rounded up, so that a class of a few pictures still has one to be tested on.
    counts = np.ceil(np.bincount(y, minlength=classes) * test_share).astype(int)
    test, train = stratified(ids, y, counts.tolist(), 0, name, "test")
    notes = [f"{name}: {int((~opened).sum())} files could not be opened"] * (not opened.all())
    return Parsed(
        _part("train", x[train], y[train]) | _part("test", x[test], y[test]),
        {"classes": titles, "notes": notes},
    )
