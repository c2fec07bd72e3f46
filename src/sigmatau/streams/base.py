"""A stream is a named sequence of tasks, each built when asked for; a task is pairs of tensors.

The content of task i never depends on the order in which tasks are learnt: an order is a
permutation of indices laid over the stream, so results of several orders can be compared
task by task.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from sigmatau.errors import ConfigError, DataError, nearest
from sigmatau.streams.split import permutation

Pair = tuple[Tensor, Tensor]
Metric = Literal["accuracy", "auroc"]


@dataclass(frozen=True, eq=False)
class Task:
    """One task: images or vectors `x` in [0, 1] (float32) with labels `y` (int64) in each part.

    `val` is None where the protocol of the benchmark has no validation part.
    """

    name: str
    train: Pair
    val: Pair | None
    test: Pair
    classes: tuple[str, ...]

    def __post_init__(self) -> None:
        for part, (x, y) in self.parts().items():
            where = f"task {self.name!r}, {part}"
            if x.dtype != torch.float32 or y.dtype != torch.int64 or y.ndim != 1:
                raise DataError(
                    f"{where}: x must be float32 and y a vector of int64, "
                    f"not {x.dtype} and {y.dtype} of {y.ndim} dimensions"
                )
            if len(x) != len(y) or len(x) == 0:
                raise DataError(f"{where}: {len(x)} inputs and {len(y)} labels; give one each")
            if x.shape[1:] != self.train[0].shape[1:]:
                raise DataError(
                    f"{where}: inputs of shape {tuple(x.shape[1:])}, but training has "
                    f"{tuple(self.train[0].shape[1:])}"
                )
            low, high = int(y.min()), int(y.max())
            if low < 0 or high >= len(self.classes):
                raise DataError(
                    f"{where}: labels run from {low} to {high}, but there are "
                    f"{len(self.classes)} classes; number them from 0"
                )

    def parts(self) -> dict[str, Pair]:
        """Return the parts that are there, by name."""
        named = {"train": self.train, "val": self.val, "test": self.test}
        return {name: pair for name, pair in named.items() if pair is not None}


class Stream:
    """Tasks by index, and the orders they may be learnt in."""

    def __init__(
        self,
        name: str,
        task_names: Sequence[str],
        build: Callable[[int], Task],
        *,
        input_shape: Sequence[int],
        orders: Mapping[str, Sequence[int]] | None = None,
        metric: Metric = "accuracy",
        seed: int = 0,
        notes: Sequence[str] = (),
    ) -> None:
        if not task_names:
            raise DataError(f"stream {name!r} has no tasks")
        self.name = name
        self.task_names = tuple(task_names)
        self.input_shape = tuple(input_shape)
        self.metric: Metric = metric
        self.seed = seed
        self.notes = tuple(notes)
        self._build = build
        natural = range(len(self.task_names))
        self.orders: Mapping[str, tuple[int, ...]] = {
            key: self._indices(order) for key, order in {"A": natural, **(orders or {})}.items()
        }

    def __len__(self) -> int:
        return len(self.task_names)

    def __getitem__(self, index: int) -> Task:
        if not -len(self) <= index < len(self):
            raise IndexError(
                f"stream {self.name!r} has {len(self)} tasks; there is none at {index}"
            )
        return self._build(index % len(self))

    def __iter__(self) -> Iterator[Task]:
        return self.in_order("A")

    def __repr__(self) -> str:
        shape = "x".join(map(str, self.input_shape))
        return f"<Stream {self.name}: {len(self)} tasks of {shape} inputs, seed {self.seed}>"

    def order(self, order: str | Sequence[int]) -> tuple[int, ...]:
        """Return the indices an order stands for: a name, `random:SEED`, or the indices."""
        if not isinstance(order, str):
            return self._indices(order)
        if order in self.orders:
            return self.orders[order]
        kind, _, seed = order.partition(":")
        if kind == "random" and seed.isdecimal():
            return tuple(permutation(len(self), int(seed), "order").tolist())
        raise ConfigError(
            f"stream {self.name!r} has no order {order!r}: {nearest(order, self.orders)} "
            "(or random:SEED, or a list of indices)"
        )

    def in_order(self, order: str | Sequence[int] = "A") -> Iterator[Task]:
        """Iterate over the tasks in an order, each built only when its turn comes."""
        return (self[i] for i in self.order(order))

    def _indices(self, order: Sequence[int]) -> tuple[int, ...]:
        indices = tuple(int(i) for i in order)
        if not indices or len(set(indices)) < len(indices):
            raise ConfigError(f"an order names each of its tasks once, but this one is {indices}")
        if min(indices) < 0 or max(indices) >= len(self):
            raise ConfigError(
                f"an order of {self.name!r} names tasks 0 to {len(self) - 1}: {indices}"
            )
        return indices
