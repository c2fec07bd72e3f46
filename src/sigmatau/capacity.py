"""How much a method stores, told in three ways, each counted from the very records it saves."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sigmatau.core.sparse import Sparse

# Records under this prefix are needed to go on learning, not to predict: Fisher, memories.
BESIDE = "beside/"


@dataclass(frozen=True)
class Capacity:
    """Fractions of one base network: 1.35 is what the paper prints as 135 %.

    `paper` counts nonzero stored numbers over the base weights with the heads learnt so far;
    `strict` counts every stored number, an index as one too, over one base network with one head;
    `bytes` is the saved file over the saved base network. `beside` is the part of `strict` that is
    kept only to go on learning (`paper` leaves it out).
    """

    paper: float
    strict: float
    bytes: float
    beside: float

    def __str__(self) -> str:
        return f"{self.paper:.1%} paper, {self.strict:.1%} strict, {self.bytes:.1%} bytes"


@dataclass(frozen=True)
class Count:
    """Numbers in a record: those that are not zero, and all of them with their indices."""

    nonzero: float = 0
    stored: float = 0

    def __add__(self, other: Count) -> Count:
        return Count(self.nonzero + other.nonzero, self.stored + other.stored)


def count(record: Mapping[str, Tensor | Sparse]) -> Count:
    """Count a record. A byte tensor holds packed bits: 32 of them make a number."""
    total = Count()
    for item in record.values():
        if isinstance(item, Sparse):
            total += Count(item.nnz, 2 * item.nnz)
        elif item.dtype == torch.uint8:
            total += Count(item.numel() / 4, item.numel() / 4)
        else:
            total += Count(int(torch.count_nonzero(item)), item.numel())
    return total


def saved_size(module: nn.Module) -> int:
    """Return the bytes of the network's state as a safetensors file."""
    state = module.state_dict()
    header, end = {}, 0
    for name, tensor in state.items():
        start, end = end, end + tensor.nbytes
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [start, end]}
    return 8 + len(json.dumps(header, separators=(",", ":"))) + end
