"""Permuted MNIST as A-GEM plays it: twenty pixel orders, three to choose settings, 17 to learn.

Every task is the whole of MNIST with its pixels moved about by one permutation. A task's tensors
exist only while somebody holds them, so twenty tasks cost the memory of one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np

from sigmatau.errors import ConfigError
from sigmatau.streams.base import Pair, Stream, Task
from sigmatau.streams.images import pair
from sigmatau.streams.registry import register
from sigmatau.streams.sets import load
from sigmatau.streams.split import drawn_orders, permutation, without

TASKS, FOR_SETTINGS = 20, 3


@register("permuted-mnist", needs=("mnist",))
def permuted_mnist(*, root: Path, seed: int = 0, part: Literal["main", "cv"] = "main") -> Stream:
    """MNIST under 17 pixel permutations (`part="cv"`: the three others, to choose settings)."""
    parts = {"cv": range(FOR_SETTINGS), "main": range(FOR_SETTINGS, TASKS)}
    if part not in parts:
        raise ConfigError(f"permuted-mnist has the parts 'main' and 'cv', not {part!r}")
    data = load("mnist", root)
    classes = tuple(data.meta["classes"])
    numbers = parts[part]
    kept = without(data["train_id"], data["test_id"])
    notes = [f"{len(kept):,} training and {len(data['test_y']):,} test images a task"]

    def build(i: int) -> Task:
        pixels = permutation(784, seed, "permuted-mnist", numbers[i])

        def moved(images: str) -> Pair:
            x, y = data[f"{images}_x"].reshape(-1, 784), data[f"{images}_y"]
            own = kept if images == "train" else np.arange(len(x))
            return pair(np.take(x[own], pixels, axis=1), y[own])

        return Task(task_names[i], moved("train"), None, moved("test"), classes)

    task_names = [f"permutation {number}" for number in numbers]
    orders = drawn_orders(len(numbers), "permuted-mnist")
    name = "permuted-mnist" if part == "main" else "permuted-mnist-cv"
    return Stream(
        name, task_names, build, input_shape=(784,), orders=orders, seed=seed, notes=notes
    )
