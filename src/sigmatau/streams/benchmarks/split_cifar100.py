"""CIFAR-100 Split: ten tasks of ten classes in the order of their labels, 4,000/1,000/1,000."""

from __future__ import annotations

from pathlib import Path

from sigmatau.streams.base import Stream
from sigmatau.streams.cifar import cifar100_stream
from sigmatau.streams.registry import register

# The paper's five orders, appendix A.
ORDERS = {
    "A": (0, 1, 2, 3, 4, 5, 6, 7, 8, 9),
    "B": (1, 7, 4, 5, 2, 0, 8, 6, 9, 3),
    "C": (7, 0, 5, 1, 8, 4, 3, 6, 2, 9),
    "D": (5, 8, 2, 9, 0, 4, 3, 7, 6, 1),
    "E": (2, 9, 5, 4, 8, 0, 6, 1, 3, 7),
}


@register("split-cifar100", needs=("cifar100",))
def split_cifar100(*, root: Path, seed: int = 0, val: int = 100) -> Stream:
    """CIFAR-100 in ten tasks of ten classes; `val` images a class are for validation."""
    groups = [range(10 * i, 10 * i + 10) for i in range(10)]
    task_names = [f"classes {g[0]}-{g[-1]}" for g in groups]
    return cifar100_stream(
        "split-cifar100", groups, task_names, root=root, seed=seed, val=val, orders=ORDERS
    )
