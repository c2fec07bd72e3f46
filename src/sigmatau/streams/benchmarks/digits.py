"""Five two-class tasks on scikit-learn's 8x8 digits: nothing to download, seconds to learn."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from sigmatau.streams.base import Stream, Task
from sigmatau.streams.registry import register
from sigmatau.streams.split import drawn_orders, image_ids, stratified

# Of some 180 drawings a digit.
VAL, TEST = 25, 45


@register("digits")
def digits(*, root: Path, seed: int = 0) -> Stream:
    """Scikit-learn's 8x8 digits, 0/1 to 8/9; embedded, nothing to download."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    pixels = images.astype(np.uint8)  # whole numbers from 0 to 16
    ids = image_ids(pixels)
    test, rest = stratified(ids, labels, [TEST] * 10, seed, "digits", "test")
    val, train = stratified(ids[rest], labels[rest], [VAL] * 10, seed, "digits", "val")
    rows = {"train": rest[train], "val": rest[val], "test": test}

    def build(i: int) -> Task:
        def part(name: str) -> tuple[torch.Tensor, torch.Tensor]:
            own = rows[name][labels[rows[name]] // 2 == i]
            x = torch.from_numpy(pixels[own]).to(torch.float32).div_(16).view(-1, 1, 8, 8)
            return x, torch.from_numpy(labels[own] - 2 * i)

        names = (str(2 * i), str(2 * i + 1))
        return Task(task_names[i], part("train"), part("val"), part("test"), names)

    task_names = [f"{2 * i}-{2 * i + 1}" for i in range(5)]
    orders = drawn_orders(5, "digits")
    return Stream("digits", task_names, build, input_shape=(1, 8, 8), orders=orders, seed=seed)
