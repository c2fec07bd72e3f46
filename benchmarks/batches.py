"""What a shuffled epoch of batches costs beside the copying that no loader can avoid.

The floor is `torch.index_select` of the same rows into a reused buffer; torch's DataLoader stands
beside it. Rounds alternate between the sides, so that a machine that slows down slows them all,
and the figure is the median of the ratios within a round. Run: python -m benchmarks.batches
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

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


def seconds(work: Callable[[], None]) -> float:
    """Time one call."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


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
    times: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(rounds + 1):
        names = list(sides) if turn % 2 else list(sides)[::-1]
        for name in names:
            taken = seconds(sides[name])
            if turn:  # the first round warms caches
                times[name].append(taken)
    ratios = {
        name: statistics.median(a / b for a, b in zip(times[name], times["floor"], strict=True))
        for name in ("sigmatau", "DataLoader")
    }
    return {"floor": 1e3 * statistics.median(times["floor"]), **ratios}


def main(rounds: int = 11) -> bool:
    """Print a line a case; return whether every shuffled epoch stays within the limit."""
    torch.set_num_threads(1)
    print(f"{'a shuffled epoch':<20}{'index_select':>14}{'sigmatau':>10}{'DataLoader':>12}")
    good = True
    for name, (rows, shape, size) in CASES.items():
        got = measure(rows, shape, size, rounds)
        good &= got["sigmatau"] <= LIMIT
        print(
            f"{name:<20}{got['floor']:>11.1f} ms{got['sigmatau']:>9.2f}x{got['DataLoader']:>11.1f}x"
        )
    print(f"limit for sigmatau: {LIMIT}x: {'kept' if good else 'EXCEEDED'}")
    return good


if __name__ == "__main__":
    raise SystemExit(not main())
