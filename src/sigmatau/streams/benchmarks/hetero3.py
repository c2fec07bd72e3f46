"""SVHN, CIFAR-10 and CIFAR-100 one after the other, from few classes to many and back."""

from __future__ import annotations

from pathlib import Path

from sigmatau.streams.base import Stream
from sigmatau.streams.hetero import hetero_stream
from sigmatau.streams.registry import register

SETS = ("svhn", "cifar10", "cifar100")
ORDERS = {"A": (0, 1, 2), "B": (2, 1, 0), "down": (0, 1, 2), "up": (2, 1, 0)}


@register("hetero3", needs=SETS)
def hetero3(*, root: Path, seed: int = 0, val: float = 0.15) -> Stream:
    """SVHN, CIFAR-10, CIFAR-100 (order `down`) or the reverse (`up`)."""
    return hetero_stream("hetero3", SETS, root=root, seed=seed, val=val, orders=ORDERS)
