"""CIFAR-100 Superclass: twenty tasks of five related classes, 2,000/500/500."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from sigmatau.errors import FileError
from sigmatau.streams.base import Stream
from sigmatau.streams.cifar import cifar100_stream
from sigmatau.streams.registry import register
from sigmatau.streams.sets import load

# The paper's five orders, appendix A.
ORDERS = {
    "A": (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19),
    "B": (15, 12, 5, 9, 7, 16, 18, 17, 1, 0, 3, 8, 11, 14, 10, 6, 2, 4, 13, 19),
    "C": (17, 1, 19, 18, 12, 7, 6, 0, 11, 15, 10, 5, 13, 3, 9, 16, 4, 14, 2, 8),
    "D": (11, 9, 6, 5, 12, 4, 0, 10, 13, 7, 14, 3, 15, 16, 8, 1, 2, 19, 18, 17),
    "E": (6, 14, 0, 11, 12, 17, 13, 4, 9, 1, 7, 19, 8, 10, 3, 15, 18, 5, 2, 16),
}


@register("superclass-cifar100", needs=("cifar100",))
def superclass_cifar100(*, root: Path, seed: int = 0, val: int = 100) -> Stream:
    """CIFAR-100 in twenty tasks, one a superclass; `val` images a class are for validation."""
    data = load("cifar100", root)
    fine, coarse = data["train_y"], data["train_coarse"]
    groups = [np.unique(fine[coarse == c]).tolist() for c in range(20)]
    if any(len(group) != 5 for group in groups):
        raise FileError(
            f"cifar-100-python/train in {root} has superclasses without exactly five classes; "
            "delete the folder and fetch it again"
        )
    return cifar100_stream(
        "superclass-cifar100",
        groups,
        data.meta["coarse"],
        root=root,
        seed=seed,
        val=val,
        orders=ORDERS,
    )
