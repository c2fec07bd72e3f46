"""The final score of every task, method by method and order by order: what the averages hide."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from sigmatau.report.published import BENCHMARKS
from sigmatau.report.tables import Group, Source, Table

MOST = 20  # a table of more tasks is for a machine to read


@dataclass(frozen=True)
class TaskLine:
    """A method's scores in one order, in %."""

    label: str
    order: str
    source: Source
    scores: Mapping[str, float]


@dataclass(frozen=True)
class TaskTable:
    """Tasks across, methods and orders down."""

    tasks: tuple[str, ...]
    lines: tuple[TaskLine, ...]


def task_table(table: Table) -> TaskTable | None:
    """Return ours, means over seeds, and the paper's lines where it tells tasks apart."""
    lines = [
        TaskLine(group.label, order, "ours", _means(runs))
        for group in table.groups
        for order, runs in sorted(group.performance().items())
    ]
    tasks = tuple(dict.fromkeys(task for line in lines for task in line.scores))
    if not 1 < len(tasks) <= MOST:
        return None
    benchmark = BENCHMARKS.get(table.stream)
    for row in benchmark.rows if benchmark else ():
        if row.tasks:
            lines.append(TaskLine(row.name, "/".join(row.orders), "paper", row.tasks))
    return TaskTable(tasks, tuple(lines))


def _means(runs: Iterable[Mapping[str, float]]) -> dict[str, float]:
    scores: dict[str, list[float]] = {}
    for run in runs:
        for task, score in run.items():
            scores.setdefault(task, []).append(100 * score)
    return {task: float(np.mean(found)) for task, found in scores.items()}


def to_markdown(table: TaskTable) -> str:
    """Return the table as Markdown."""
    rows = [["method", "order", "source", *table.tasks], ["---"] * 3 + ["---:"] * len(table.tasks)]
    for line in table.lines:
        scores = [f"{line.scores[t]:.2f}" if t in line.scores else "" for t in table.tasks]
        rows.append([line.label, line.order, line.source, *scores])
    cells = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in cells) + "\n"


def to_csv(groups: Iterable[Group]) -> str:
    """Return the final score of every task in every finished run, one line each."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["stream", "method", "order", "seed", "place", "task", "score"])
    for group in groups:
        for run in group.done:
            for place, task in enumerate(run.done.task_names):
                if task in run.done.final:
                    key = (run.key.stream, group.label, run.key.order, run.key.seed)
                    writer.writerow([*key, place + 1, task, repr(run.done.final[task])])
    return out.getvalue()
