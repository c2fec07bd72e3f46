"""What the streams of whole image sets share: one set a task, all brought to 3x32x32.

Grey 28x28 images get a black border of two pixels and are repeated on three channels, as HAT
does. A share of the training images of each class is held out for validation. However many images
the files hold is used, and the stream's notes say how many that was.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sigmatau.errors import ConfigError
from sigmatau.streams.base import Pair, Stream, Task
from sigmatau.streams.images import pair
from sigmatau.streams.sets import load
from sigmatau.streams.split import stratified, without

# How many training and test images the published sets have.
WHOLE = {
    "cifar10": (50_000, 10_000),
    "cifar100": (50_000, 10_000),
    "mnist": (60_000, 10_000),
    "svhn": (73_257, 26_032),
    "fashion-mnist": (60_000, 10_000),
    "gtsrb": (39_209, 12_630),
    "notmnist": (16_853, 1_873),
    "facescrub": (20_600, 2_289),
}


def colour32(x: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Bring images to 3x32x32: pad grey 28x28 ones and repeat them on three channels."""
    if x.shape[1] == 3:
        return x
    padded = np.pad(x, ((0, 0), (0, 0), (2, 2), (2, 2)))
    return np.repeat(padded, 3, axis=1)


def hetero_stream(
    name: str,
    sets: Sequence[str],
    *,
    root: Path,
    seed: int,
    val: float,
    orders: Mapping[str, Sequence[int]],
    notes: Sequence[str] = (),
) -> Stream:
    """Make each of `sets` one task."""
    if not 0 <= val < 1:
        raise ConfigError(f"val is the share of training images held out, 0 to 1, not {val}")
    data = {s: load(s, root) for s in sets}
    found = list(notes)
    tests = [d["test_id"] for d in data.values()]
    # One hash decides for all sets at once: CIFAR-10 and CIFAR-100 have images in common.
    decided: dict[int, bool] = {}
    rows: dict[str, dict[str, NDArray[np.int64]]] = {}
    for s, parsed in data.items():
        ids, y = parsed["train_id"], parsed["train_y"]
        kept = without(ids, *tests)
        counts = np.rint(np.bincount(y[kept]) * val).astype(int).tolist()
        inside, outside = stratified(ids[kept], y[kept], counts, seed, "hetero", s, side=decided)
        test = np.arange(len(parsed["test_y"]))
        rows[s] = {"train": kept[outside], "val": kept[inside], "test": test}
        found += _told(s, parsed.meta, len(ids), len(test), len(ids) - len(kept))

    def build(i: int) -> Task:
        s = sets[i]

        def part(key: str) -> Pair:
            source, own = "test" if key == "test" else "train", rows[s][key]
            return pair(colour32(data[s][f"{source}_x"][own]), data[s][f"{source}_y"][own])

        held_out = part("val") if val else None
        classes = tuple(data[s].meta["classes"])
        return Task(s, part("train"), held_out, part("test"), classes)

    return Stream(name, sets, build, input_shape=(3, 32, 32), orders=orders, seed=seed, notes=found)


def _told(s: str, meta: Mapping[str, Any], train: int, test: int, dropped: int) -> list[str]:
    told = list(meta.get("notes", []))
    if (train, test) != WHOLE[s]:
        told.append(
            f"{s}: {train:,} training and {test:,} test images here; "
            f"the whole set has {WHOLE[s][0]:,} and {WHOLE[s][1]:,}"
        )
    if dropped:
        told.append(f"{s}: left out {dropped} training images that are also among test images")
    return told
