"""A sparse tensor as two flat tensors: the sorted indices of its nonzeros, and their values.

Task deltas (the paper's tau) and group parts (sigma tilde) are held this way, in memory and on
disk. Indices are 32-bit while the tensor they point into allows it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod

import numpy as np
import torch
from torch import Tensor

_INT32_MAX = 2**31 - 1


def index_dtype(size: int) -> torch.dtype:
    """Return the smallest index type that reaches every entry of a tensor of `size` numbers."""
    return torch.int32 if size <= _INT32_MAX else torch.int64


@dataclass(frozen=True, slots=True, eq=False)
class Sparse:
    """A tensor of `shape` that is zero but at `indices` (flat, sorted, unique)."""

    indices: Tensor
    values: Tensor
    shape: tuple[int, ...]

    @classmethod
    def empty(cls, shape: Iterable[int], like: Tensor | None = None) -> Sparse:
        """Return zeros, of the type and on the device of `like`."""
        shape = tuple(shape)
        values = torch.empty(0) if like is None else like.new_empty(0)
        return cls(values.new_empty(0, dtype=index_dtype(prod(shape))), values, shape)

    @classmethod
    def from_dense(cls, dense: Tensor) -> Sparse:
        """Keep the nonzero entries of `dense`."""
        flat = dense.detach().reshape(-1)
        indices = flat.nonzero().squeeze(1)
        return cls(indices.to(index_dtype(flat.numel())), flat[indices], tuple(dense.shape))

    @property
    def nnz(self) -> int:
        return self.values.numel()

    @property
    def size(self) -> int:
        """Return how many numbers the dense tensor has."""
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.indices.nbytes + self.values.nbytes

    def dense(self) -> Tensor:
        out = torch.zeros(self.size, dtype=self.values.dtype, device=self.values.device)
        return self.add_to(out).view(self.shape)

    def add_to(self, dense: Tensor) -> Tensor:
        """Add this to `dense` in place. Every index is unique, so the result has one meaning."""
        if self.nnz:
            dense.view(-1).index_add_(0, self.indices, self.values)
        return dense

    def put_into(self, dense: Tensor) -> Tensor:
        """Write the stored entries over those of `dense`, in place."""
        if self.nnz:
            dense.view(-1)[self.indices.long()] = self.values  # faster than index_copy_
        return dense

    def over(self, below: Sparse) -> Sparse:
        """Return one tensor that writes what `below` and then this one would."""
        indices = union([below.indices, self.indices])
        values = self.values.new_empty(indices.numel())
        for part in (below, self):
            values[torch.searchsorted(indices, part.indices)] = part.values
        return Sparse(indices, values, self.shape)

    def gather(self, dense: Tensor) -> Tensor:
        """Return the entries of `dense` that lie under this tensor's nonzeros."""
        return dense.reshape(-1).index_select(0, self.indices)

    def rows(self, dim: int) -> Tensor:
        """Return for each nonzero its coordinate along `dim`, the output channel say."""
        stride = prod(self.shape[dim + 1 :])
        return (self.indices // stride) % self.shape[dim]

    def nonzero(self) -> Sparse:
        """Drop stored entries whose value is zero."""
        if torch.count_nonzero(self.values) == self.nnz:
            return self
        keep = self.values.nonzero().squeeze(1)
        return Sparse(self.indices[keep], self.values[keep], self.shape)

    def __add__(self, other: Sparse) -> Sparse:
        """Return the sum, with support on the union; entries that cancel are dropped."""
        indices = union([self.indices, other.indices])
        values = torch.zeros(indices.numel(), dtype=self.values.dtype, device=self.values.device)
        for part in (self, other):
            values[torch.searchsorted(indices, part.indices)] += part.values
        return Sparse(indices, values, self.shape).nonzero()

    def to(self, device: torch.device | str) -> Sparse:
        return Sparse(self.indices.to(device), self.values.to(device), self.shape)


def union(parts: Iterable[Tensor]) -> Tensor:
    """Return the sorted union of sorted index tensors."""
    joined = torch.cat(list(parts))
    if joined.device.type != "cpu":
        found: Tensor = torch.unique(joined)
        return found
    # A stable sort merges runs that are sorted already, where a hash or a quicksort would not.
    merged = np.sort(joined.numpy(), kind="stable")
    first = np.ones(merged.size, bool)
    np.not_equal(merged[1:], merged[:-1], out=first[1:])
    return torch.from_numpy(merged[first])
