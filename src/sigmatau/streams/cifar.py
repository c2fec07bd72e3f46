"""What the two CIFAR-100 benchmarks share: tasks that are groups of classes, split by seed.

The test images are the official ones, whole. A training image whose exact copy is among them is
left out, and copies among training images go to the same side, so a task may be a few images
short of the paper's round numbers; the stream's notes say how many.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from sigmatau.errors import ConfigError
from sigmatau.streams.base import Pair, Stream, Task
from sigmatau.streams.images import pair
from sigmatau.streams.sets import load
from sigmatau.streams.split import Ints, stratified, without


def cifar100_stream(
    name: str,
    groups: Sequence[Sequence[int]],
    task_names: Sequence[str],
    *,
    root: Path,
    seed: int,
    val: int,
    orders: Mapping[str, Sequence[int]],
) -> Stream:
    """Make task i classify the fine classes `groups[i]`, with `val` images a class held out."""
    if not 0 <= val < 500:
        raise ConfigError(f"val takes 0 to 499 of a class's 500 training images, not {val}")
    data = load("cifar100", root)
    y, ids = data["train_y"], data["train_id"]
    kept = without(ids, data["test_id"])
    inside, outside = stratified(ids[kept], y[kept], [val] * 100, seed, "cifar100", "val")
    rows = {"val": kept[inside], "train": kept[outside]}
    classes = data.meta["classes"]
    notes = [
        f"{len(rows['train']):,} training, {len(rows['val']):,} validation and "
        f"{len(data['test_y']):,} test images in all"
    ]
    if dropped := len(y) - len(kept):
        notes.append(f"left out {dropped} training images that are also among the test images")

    def build(i: int) -> Task:
        group = np.asarray(groups[i])

        def part(images: str, own: Ints) -> Pair:
            labels = data[f"{images}_y"]
            own = own[np.isin(labels[own], group)]
            return pair(data[f"{images}_x"], np.searchsorted(group, labels), own)

        test = np.arange(len(data["test_y"]))
        held_out = part("train", rows["val"]) if val else None
        names = tuple(classes[c] for c in group)
        return Task(
            task_names[i], part("train", rows["train"]), held_out, part("test", test), names
        )

    return Stream(
        name,
        task_names,
        build,
        input_shape=(3, 32, 32),
        orders=orders,
        seed=seed,
        notes=notes,
    )
