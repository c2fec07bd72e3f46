"""A thousand tasks learnt in one go: does the last hundred take longer than the first?

Each task is scikit-learn's 8x8 digits with the pixels in another order, learnt by an MLP
64-64-64-10 for six epochs of 600 rows. What a task needs beside its epochs (reading the past tasks'
deltas when it begins, rewriting them when it ends) grows with their number, and such a small task
shows it most. Under a budget the shared weights stay fixed, and there is nothing to read or to
rewrite. Under l1 they move for every new permutation, and past deltas fill up to make up for it.
"""

from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import Tensor

from benchmarks._document import DOCS, Bar, Section, Table
from sigmatau import APDNet, backbones
from sigmatau.core import container
from sigmatau.files import put
from sigmatau.report.plot import Figure, Panel, Series
from sigmatau.report.static import draw

LIMIT = 1.1
KINDS: dict[str, dict[str, Any]] = {"budget = 10 %": {"budget": 0.1}, "l1 = 4e-4": {"l1": 4e-4}}
ROWS = 600


@dataclass
class Run:
    """What a long run came to: seconds a task, accuracy a task, and bytes after some of them."""

    seconds: list[float] = field(default_factory=list)
    accuracy: list[float] = field(default_factory=list)
    size: dict[int, int] = field(default_factory=dict)

    def slowing(self, window: int) -> float:
        """Return the median task of the last `window` over that of the first."""
        return median(self.seconds[-window:]) / median(self.seconds[:window])


def digits() -> tuple[Tensor, Tensor]:
    found = load_digits()
    return torch.tensor(found.data / 16, dtype=torch.float32), torch.tensor(found.target)


def learn(tasks: int, settings: dict[str, Any], sized: Sequence[int], epochs: int = 6) -> Run:
    """Learn so many permutations one after the other."""
    x, y = digits()
    g = torch.Generator().manual_seed(0)
    net = APDNet(backbones.mlp((64,), 10, (64, 64)), epochs=epochs, batch_size=50, **settings)
    run = Run()
    for task in range(tasks):
        seen = x[:, torch.randperm(64, generator=g)]
        gc.collect()  # a collection counts objects of all tasks; it is not part of learning
        report = net.learn(str(task), (seen[:ROWS], y[:ROWS]), progress=False)
        run.seconds.append(report.seconds)
        run.accuracy.append(net.accuracy(str(task), (seen[ROWS:], y[ROWS:])))
        if task + 1 in sized:
            run.size[task + 1] = container.size(*net._file())
    return run


def plot(runs: dict[str, Run]) -> bytes:
    """Draw seconds a task and the file's size against the number of tasks, as SVG."""
    slow, large = [], []
    for hue, (kind, run) in enumerate(runs.items()):
        width = max(1, len(run.seconds) // 40)
        starts = range(0, len(run.seconds), width)
        middle = [median(run.seconds[i : i + width]) for i in starts]
        slow.append(Series(kind, list(starts), middle, hue, "line"))
        sizes = [size / 2**20 for size in run.size.values()]
        large.append(Series(kind, list(run.size), sizes, hue, "line"))
    top = 1.2 * max(value or 0 for series in slow for value in series.y)
    panels = [
        Panel("time", slow, "tasks learnt", "seconds a task", y_range=(0, top)),
        Panel("file", large, "tasks learnt", "MiB"),
    ]
    return draw(Figure("many-tasks", "Many tasks in one go", "", panels))["svg"]


def main(tasks: int = 1000, window: int = 100, epochs: int = 6) -> Section:
    rows, bars = [], []
    numbers: dict[str, float] = {}
    runs: dict[str, Run] = {}
    for kind, settings in KINDS.items():
        # Under l1 the shared weights move, past deltas fill up, and a thousand tasks take hours.
        share = 1 if "budget" in settings else 10
        count, part = tasks // share, window // share
        sized = sorted({max(1, count * k // 10) for k in range(11)})
        run = runs[kind] = learn(count, settings, sized, epochs)
        grown = (run.size[count] - run.size[sized[0]]) / (count - sized[0])
        first, last = median(run.seconds[:part]), median(run.seconds[-part:])
        shown = [kind, str(count), f"{1e3 * first:.0f}", f"{1e3 * last:.0f}"]
        shown += [f"{run.slowing(part):.2f}", f"{run.size[count] / 2**20:.1f}", f"{grown:.0f}"]
        rows.append([*shown, f"{sum(run.accuracy) / count:.1%}"])
        numbers |= {f"{kind}, bytes a task": grown, f"{kind}, slowing": run.slowing(part)}
        if share == 1:
            told = f"{count} tasks, {kind}: last {part} over first {part}"
            bars.append(Bar(told, run.slowing(part), LIMIT))
    put(DOCS / "many-tasks.svg", plot(runs))
    columns = ["APD", "tasks", "first tenth, ms a task", "last tenth, ms a task", "ratio"]
    columns += ["file, MiB", "bytes a task", "accuracy when learnt"]
    return Section([Table("", columns, rows)], bars, numbers, "many-tasks.svg")


if __name__ == "__main__":
    print(main())
