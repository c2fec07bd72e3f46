"""What numbers too small to be normal cost, in a network that comes to fit its data.

Random rows with random labels, learnt by heart: LeNet 10-20-500-300, 480 rows in batches of 25, as
many as a task of Omniglot has. Each side trains with subnormal numbers and with zeros in their
place (`fast_cpu`); the sides take turns epoch by epoch.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from functools import partial

import torch

from benchmarks._document import Section, Table
from benchmarks._measure import seconds
from benchmarks._past import CASES, SMALL_LENET, batch, begun, plain, step
from sigmatau import APDNet
from sigmatau.training import Trainee

SIZE = 25


def measure(build: Callable[[], Trainee], rows: int, epochs: int) -> list[float]:
    """Return, epoch by epoch, the time with subnormal numbers over the time without."""
    x, y = batch(CASES[SMALL_LENET][1], rows)
    trainees = {flushed: build() for flushed in (False, True)}

    def epoch(flushed: bool) -> None:
        torch.set_flush_denormal(flushed)
        for i in range(0, rows, SIZE):
            step(trainees[flushed], x[i : i + SIZE], y[i : i + SIZE])
        torch.set_flush_denormal(False)

    found = []
    for number in range(epochs):
        order = (False, True) if number % 2 else (True, False)
        times = {flushed: seconds(partial(epoch, flushed)) for flushed in order}
        found.append(times[False] / times[True])
    return found


def main(rows: int = 480, epochs: int = 100) -> Section:
    parts = {"first": slice(0, epochs // 10), "last": slice(-(epochs // 10), None)}
    build, shape, _ = CASES[SMALL_LENET]
    x, _ = batch(shape, 2)
    kinds = {
        "plain": lambda: plain(build()),
        "APD(1)": lambda: begun(APDNet(build(), l1=4e-4), x),
    }
    lines: list[list[str]] = []
    numbers: dict[str, float] = {}
    for name, make in kinds.items():
        ratios = measure(make, rows, epochs)
        shown = {part: statistics.median(ratios[where]) for part, where in parts.items()}
        numbers |= {f"{name}, {part}": ratio for part, ratio in shown.items()}
        lines.append([name, *(f"{ratio:.2f}" for ratio in shown.values())])
    columns = ["training", *(f"{part} {epochs // 10} of {epochs} epochs" for part in parts)]
    title = "An epoch with subnormal numbers over one without"
    return Section([Table(title, columns, lines)], numbers=numbers)
