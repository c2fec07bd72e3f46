"""Records to write and read, and whether they are the same."""

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save

from sigmatau.core.container import Container, Record
from sigmatau.core.sparse import Sparse
from sigmatau.errors import FileError


def same(a: Record, b: Record) -> bool:
    """Whether two records hold the same bits."""

    def bits(x: torch.Tensor) -> tuple[Any, ...]:
        # Complex numbers of nan compare unequal, and torch cannot view the bytes of all it has.
        return x.dtype, x.shape, save({"x": x.contiguous()})

    def flat(x: torch.Tensor | Sparse) -> tuple[Any, ...]:
        if isinstance(x, Sparse):
            return "sparse", x.shape, bits(x.indices), bits(x.values)
        return "dense", bits(x)

    return {n: flat(x) for n, x in a.items()} == {n: flat(x) for n, x in b.items()}


def sparse(shape: tuple[int, ...], density: float, seed: int = 0) -> Sparse:
    rng = torch.Generator().manual_seed(seed)
    dense = torch.randn(shape, generator=rng)
    return Sparse.from_dense(dense * (torch.rand(shape, generator=rng) < density))


def example() -> dict[str, Record]:
    return {
        "shared": {"conv.weight": torch.arange(12.0).view(3, 4), "steps": torch.tensor(7)},
        "birds/2024 äöü": {"conv.weight": sparse((3, 4), 0.4), "mask": torch.ones(3)},
    }


def read_all(path: Path) -> tuple[dict[str, Any], dict[str, Record]]:
    with Container.open(path) as file:
        return file.meta, {name: file.read(name) for name in file.names}


def outcome(path: Path, records: dict[str, Record]) -> bool:
    """Whether a file is an error, in whole or in part; what can be read of it must be right."""
    try:
        with Container.open(path) as file:
            assert file.meta == {"v": 1}
            assert file.names == list(records)
            failed = False
            for name in records:
                try:
                    assert same(file.read(name), records[name])
                except FileError:
                    failed = True
            return failed
    except FileError:
        return True
