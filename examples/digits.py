"""Five tasks of handwritten digits in three orders: APD with a growth budget against fine-tuning.

Run it with `make demo`. The digits come with scikit-learn; nothing is downloaded.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from sigmatau import backbones, methods, metrics, streams

ORDERS = ("A", "B", "C")
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "fine-tuning": ("finetune", {}),
    "APD(1)": ("apd1", {"l1": 2e-3}),
    "APD, budget 5 %": ("apd1", {"budget": 0.05}),
}
TRAINING: dict[str, Any] = {"epochs": 30, "batch_size": 16, "lr": 2e-3, "lr_decay": 0.97}
OUT = Path("runs/demo")


@dataclass
class Run:
    """What one order of tasks came to."""

    capacity: float
    accuracy: float
    forgetting: float
    final: dict[str, float]


def learn_all(label: str, order: str, tick: Callable[[], None]) -> Run:
    """Learn all tasks in one order, and save the network."""
    method, settings = METHODS[label]
    stream = streams.get("digits")
    torch.manual_seed(0)
    backbone = backbones.mlp(stream.input_shape, 2, (64, 64))
    net = methods.create(method, backbone, **TRAINING, **settings)
    tasks = list(stream.in_order(order))
    matrix = []
    for k, task in enumerate(tasks, 1):
        net.learn(task.name, task.train, task.val, progress=False)
        known = [net.accuracy(t.name, t.test) for t in tasks[:k]]
        matrix.append(known + [float("nan")] * (len(tasks) - k))
        tick()
    net.save(OUT / f"{label} {order}.st")
    return Run(
        net.capacity().paper,
        metrics.average_accuracy(matrix),
        metrics.average_forgetting(matrix),
        dict(zip((t.name for t in tasks), matrix[-1], strict=True)),
    )


def main() -> None:
    torch.set_num_threads(1)  # nets this small only lose by more
    OUT.mkdir(parents=True, exist_ok=True)
    console, began = Console(), time.perf_counter()
    table = Table(title="five two-class tasks of digits, three orders")
    for column in ("method", "capacity", "accuracy", "forgetting", "AOPD", "MOPD"):
        table.add_column(column, justify="left" if column == "method" else "right")
    results = {}
    columns = (TextColumn("{task.description:16}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as bar:
        for label in METHODS:
            row = bar.add_task(label, total=5 * len(ORDERS))

            def tick(row: Any = row) -> None:
                bar.advance(row)

            runs = {order: learn_all(label, order, tick) for order in ORDERS}
            results[label] = {order: asdict(run) for order, run in runs.items()}
            finals = {order: [run.final] for order, run in runs.items()}
            shown = (
                fmean(run.capacity for run in runs.values()),
                fmean(run.accuracy for run in runs.values()),
                fmean(run.forgetting for run in runs.values()),
                metrics.aopd(finals),
                metrics.mopd(finals),
            )
            table.add_row(label, *(f"{value:.1%}" for value in shown))
    console.print(table)
    (OUT / "results.json").write_text(json.dumps(results, indent=1))
    console.print(
        f"{time.perf_counter() - began:.0f} s. Results and learnt networks are in {OUT}; "
        "open one with sigmatau.load(path, backbone)."
    )


if __name__ == "__main__":
    main()
