"""What a shuffled epoch of batches costs beside the copying that no loader can avoid.

The floor is `torch.index_select` of the same rows into a reused buffer; torch's DataLoader stands
beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from benchmarks._document import Bar, Section, Table
from benchmarks._measure import alternate, median, over
from sigmatau.data import TensorBatches

LIMIT = 1.5
# Rows, shape and batch size of a task of Split CIFAR-100, Omniglot-rotation and permuted MNIST.
CASES = {
    "split-cifar100": (4000, (3, 32, 32), 128),
    "omniglot-rotation": (720, (1, 28, 28), 16),
    "permuted-mnist": (60000, (784,), 10),
}


def floor(x: Tensor, y: Tensor, size: int, order: Tensor) -> None:
    """Copy every row once, in a given order, into one buffer."""
    to_x, to_y = x.new_empty((size, *x.shape[1:])), y.new_empty(size)
    for start in range(0, len(x), size):
        rows = order[start : start + size]
        torch.index_select(x, 0, rows, out=to_x[: len(rows)])
        torch.index_select(y, 0, rows, out=to_y[: len(rows)])


def drain(batches: Iterator[object]) -> None:
    """Go through batches and do nothing with them."""
    for _ in batches:
        pass


def measure(rows: int, shape: tuple[int, ...], size: int, rounds: int) -> dict[str, float]:
    """Return the median time of the floor in ms, and the median ratios of the others to it."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand((rows, *shape), generator=generator)
    y = torch.randint(0, 10, (rows,), generator=generator)
    order = torch.randperm(rows, generator=generator)
    ours = TensorBatches(x, y, size)
    loader = DataLoader(TensorDataset(x, y), size, shuffle=True, generator=generator)
    sides: dict[str, Callable[[], None]] = {
        "floor": lambda: floor(x, y, size, order),
        "sigmatau": lambda: drain(ours.shuffled(generator)),
        "DataLoader": lambda: drain(iter(loader)),
    }
    times = alternate(sides, rounds)
    ratios = {name: over(times, name, "floor") for name in ("sigmatau", "DataLoader")}
    return {"floor": 1e3 * median(times, "floor"), **ratios}


def main(rounds: int = 11) -> Section:
    rows, bars = [], []
    for name, case in CASES.items():
        got = measure(*case, rounds)
        rows.append([name, f"{got['floor']:.1f}"])
        rows[-1] += [f"{got['sigmatau']:.2f}", f"{got['DataLoader']:.1f}"]
        bars.append(Bar(f"a shuffled epoch of {name}, over copying it", got["sigmatau"], LIMIT))
    columns = ["a shuffled epoch", "index_select, ms", "sigmatau over it", "DataLoader over it"]
    return Section([Table("", columns, rows)], bars)


if __name__ == "__main__":
    print(main())
