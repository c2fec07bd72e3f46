"""What a task's frozen part makes of its rows: computed once, not anew in every epoch.

Methods that train new units beside frozen ones spend most of a step on what cannot change. Where
the data is tensors, a row is the same in every epoch, so it is enough to look up what is known of
it: batches then hold the numbers of rows, and the network turns those into inputs and what the
frozen part made of them. Given inputs instead, it computes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import torch
from torch import Tensor

from sigmatau.data import Batches, TensorBatches

LIMIT = 1 << 30  # bytes that are kept of one part of a task's data


Function = Callable[[Tensor], Sequence[Tensor]]


class Known:
    """What a function makes of rows, a function that stays the same while a task is learnt."""

    def __init__(self) -> None:
        self.served: dict[Batches, Batches] = {}
        self.parts: list[tuple[int, list[Tensor]]] = []  # with the number of its first row

    def fed(self, data: Batches, function: Function) -> Batches:
        """Return the data with numbers of rows for inputs; as it is, if that cannot be."""
        if data not in self.served:
            # Data of other kinds may give new inputs in every epoch, and single numbers as inputs
            # could be taken for those of rows.
            fixed = isinstance(data, TensorBatches) and data.x.ndim > 1
            self.served[data] = (
                self._numbered(cast(TensorBatches, data), function) if fixed else data
            )
        return self.served[data]

    def __call__(self, x: Tensor, function: Function) -> tuple[Tensor, ...]:
        """Return inputs and what is known of them, for numbers of rows or for the inputs."""
        if not self.parts or x.ndim != 1:
            return x, *function(x)
        first, known = next(part for part in reversed(self.parts) if part[0] <= int(x[0]))
        return tuple(_taken(tensor, x - first) for tensor in known)

    @torch.no_grad()
    def _numbered(self, data: TensorBatches, function: Function) -> Batches:
        known: list[Tensor] = []
        row = 0
        for x, _ in data.ordered():
            made = function(x)
            if not known:
                size = sum(tensor[0].numel() * tensor.element_size() for tensor in made)
                if not size or size * len(data) > LIMIT:
                    return data
                known = [_room(len(data), tensor) for tensor in made]
            for whole, tensor in zip(known, made, strict=True):
                whole[row : row + len(x)] = tensor
            row += len(x)
        first = sum(len(tensors[0]) for _, tensors in self.parts)
        self.parts.append((first, [data.x, *known]))
        numbers = torch.arange(first, first + len(data), device=data.x.device)
        return TensorBatches(numbers, data.y, data.batch_size)


def _room(rows: int, like: Tensor) -> Tensor:
    """Return room for so many rows, in memory in the order in which those of `like` lie."""
    order = sorted(range(like.ndim), key=lambda d: (like.stride(d), like.shape[d]), reverse=True)
    size = (rows, *like.shape[1:])
    return torch.empty_permuted(size, order, dtype=like.dtype, device=like.device)


def _taken(known: Tensor, rows: Tensor) -> Tensor:
    return torch.index_select(known, 0, rows, out=torch.empty_like(known[: len(rows)]))
