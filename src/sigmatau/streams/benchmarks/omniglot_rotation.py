"""Omniglot-rotation: 100 tasks of 12 characters; 20 drawings in 4 rotations make 80 images each.

The 1,200 characters are the 964 of the background set and the first 236 of the evaluation set,
sorted by alphabet and number. Of each character 20 images are for testing and 60 for training.
A figure that looks the same when turned gives the same image twice: such copies stay on one side.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from sigmatau.errors import ConfigError, FileError
from sigmatau.streams.base import Pair, Stream, Task
from sigmatau.streams.images import pair
from sigmatau.streams.registry import register
from sigmatau.streams.sets import load
from sigmatau.streams.split import drawn_orders, stratified

CHARACTERS, PER_TASK, TEST = 1200, 12, 20


@register("omniglot-rotation", needs=("omniglot",))
def omniglot_rotation(*, root: Path, seed: int = 0, val: int = 0) -> Stream:
    """Omniglot in 100 tasks of 12 characters; `val` of 60 training images a class to validate."""
    if not 0 <= val < 60:
        raise ConfigError(f"val takes 0 to 59 of a class's 60 training images, not {val}")
    data = load("omniglot", root)
    titles = data.meta["characters"]
    if len(titles) < CHARACTERS:
        raise FileError(
            f"omniglot in {root} holds {len(titles)} characters, and the benchmark needs "
            f"{CHARACTERS}; delete the zips and fetch them again"
        )
    ids = data["id"][:CHARACTERS].reshape(-1)
    labels = np.repeat(np.arange(CHARACTERS), len(ids) // CHARACTERS)
    key = "omniglot-rotation"
    test, rest = stratified(ids, labels, [TEST] * CHARACTERS, seed, key, "test")
    inside, outside = stratified(ids[rest], labels[rest], [val] * CHARACTERS, seed, key, "val")
    rows = {"train": rest[outside], "val": rest[inside], "test": test}

    def build(i: int) -> Task:
        own = slice(i * PER_TASK, (i + 1) * PER_TASK)
        drawings = data["x"][own]
        turned = np.stack([np.rot90(drawings, k, axes=(2, 3)) for k in range(4)], axis=2)
        x = turned.reshape(-1, 1, 28, 28)
        y = labels[: len(x)]

        def part(name: str) -> Pair:
            first = i * len(x)
            low, high = np.searchsorted(rows[name], [first, first + len(x)])
            return pair(x, y, rows[name][low:high] - first)

        held_out = part("val") if val else None
        return Task(task_names[i], part("train"), held_out, part("test"), tuple(titles[own]))

    tasks = CHARACTERS // PER_TASK
    task_names = [f"characters {i * PER_TASK}-{(i + 1) * PER_TASK - 1}" for i in range(tasks)]
    orders = drawn_orders(tasks, key)  # the paper does not give its own
    notes = []
    if short := TEST * CHARACTERS - len(test):
        notes.append(f"{abs(short)} test images {'fewer' if short > 0 else 'more'} than 20 a class")
    return Stream(
        key, task_names, build, input_shape=(1, 28, 28), orders=orders, seed=seed, notes=notes
    )
