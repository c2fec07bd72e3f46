"""MNIST's middle 8x8 pixels in five two-class tasks: small enough to plot every parameter.

So small a window often shows the same thing: training images that look exactly like a test image
through it are left out.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from sigmatau.streams.base import Pair, Stream, Task
from sigmatau.streams.images import pair
from sigmatau.streams.registry import register
from sigmatau.streams.sets import load
from sigmatau.streams.split import drawn_orders, image_ids, without


@register("split-mnist-8x8", needs=("mnist",))
def split_mnist_8x8(*, root: Path, seed: int = 0) -> Stream:
    """The centre 8x8 pixels of MNIST, 0/1 to 8/9, as vectors of 64."""
    data = load("mnist", root)
    middle = slice(10, 18)
    x = {p: data[f"{p}_x"][:, 0, middle, middle].reshape(-1, 64) for p in ("train", "test")}
    kept = {
        "train": without(image_ids(x["train"]), image_ids(x["test"])),
        "test": np.arange(len(x["test"])),
    }
    same = len(x["train"]) - len(kept["train"])
    notes = [f"left out {same:,} training images that look like a test image in these 8x8 pixels"]

    def build(i: int) -> Task:
        def part(name: str) -> Pair:
            y = data[f"{name}_y"]
            own = kept[name][y[kept[name]] // 2 == i]
            return pair(x[name], y - 2 * i, own)

        return Task(
            task_names[i], part("train"), None, part("test"), tuple(task_names[i].split("-"))
        )

    task_names = [f"{2 * i}-{2 * i + 1}" for i in range(5)]
    orders = drawn_orders(5, "split-mnist-8x8")
    return Stream(
        "split-mnist-8x8",
        task_names,
        build,
        input_shape=(64,),
        orders=orders,
        seed=seed,
        notes=notes,
    )
