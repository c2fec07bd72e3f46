"""A stream's results as one table: for each method a line of ours, the paper's, the difference.

Every number is in %, as the paper prints them. Means and standard deviations are over cells, that
is over orders and seeds alike.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar

import numpy as np

from sigmatau.metrics import aopd, mopd
from sigmatau.report.published import BENCHMARKS, Benchmark, Published
from sigmatau.report.results import Results, Run

T = TypeVar("T")

Source = Literal["ours", "paper", "difference"]
PLAIN = ("finetune", "stl")  # what times are told relative to: the first that was run


@dataclass(frozen=True)
class Column:
    """A column of numbers: its key, its heading, what the heading means."""

    key: str
    title: str
    about: str
    digits: int = 2


COLUMNS = (
    Column("accuracy", "accuracy", "mean over tasks after the last one, in %"),
    Column("sd", "sd", "standard deviation of the accuracy over orders and seeds"),
    Column("capacity", "capacity", "nonzero stored numbers over the base network's, in %", 1),
    Column("strict", "strict", "every stored number over one base network's, in %", 1),
    Column("bytes", "bytes", "the saved file over the saved base network, in %", 1),
    Column("to_stl", "to STL", "accuracy minus that of STL, of the same source and seeds"),
    Column("aopd", "AOPD", "order disparity, average over tasks, in points"),
    Column("mopd", "MOPD", "order disparity, maximum over tasks, in points"),
    Column("forgetting_average", "forgetting", "average over tasks, in points"),
    Column("forgetting_worst", "worst", "forgetting of the worst task, mean over runs, in points"),
    Column("time", "time", "training time relative to plain training"),
)
COMPARED = ("capacity", "accuracy", "to_stl", "aopd", "mopd", "forgetting_average")


@dataclass(frozen=True)
class Line:
    """One line: a method's numbers from one source. `cells` says how many runs stand behind it."""

    label: str
    source: Source
    values: Mapping[str, float]
    cells: str = ""

    def text(self, column: Column) -> str:
        value = self.values.get(column.key)
        if value is None:
            return ""
        signed = self.source == "difference" or column.key == "to_stl"
        # Adding 0 makes -0.00 read 0.00.
        return f"{round(value, column.digits) + 0.0:{'+' if signed else ''}.{column.digits}f}"


@dataclass(frozen=True)
class Group:
    """The runs behind one row of ours."""

    label: str
    method: str
    runs: tuple[Run, ...]

    @property
    def done(self) -> list[Run]:
        return [run for run in self.runs if run.state == "done"]

    @property
    def cells(self) -> str:
        """Return how many of the wanted cells are there, and what became of the others."""
        states = [run.state for run in self.runs]
        told = [f"{states.count('done')}/{len(states)}"]
        others = ("failed", "unfinished", "missing")
        return ", ".join(told + [f"{states.count(s)} {s}" for s in others if s in states])

    def performance(self) -> dict[str, list[dict[str, float]]]:
        """Return the final score of every task in each run, by order, as `metrics.opd` takes it."""
        found: dict[str, list[dict[str, float]]] = {}
        for run in self.done:
            found.setdefault(run.key.order, []).append(run.done.final)
        return found

    def across_orders(self) -> dict[str, list[dict[str, float]]]:
        """Return the same of the seeds that every order has, or of all if there is no such seed.

        A seed stands for a split of the data, and some are easier than others: what only some
        orders have would be taken for a difference between orders.
        """
        seeds: dict[str, set[int]] = {}
        for run in self.done:
            seeds.setdefault(run.key.order, set()).add(run.key.seed)
        shared = set.intersection(*seeds.values()) if seeds else set()
        kept = tuple(run for run in self.done if run.key.seed in shared)
        return (replace(self, runs=kept) if kept else self).performance()


@dataclass(frozen=True)
class Row:
    """A row of ours beside the one of the paper that it repeats, if there is such a one."""

    group: Group
    ours: Mapping[str, float]
    paper: Published | None
    theirs: Mapping[str, float]


@dataclass(frozen=True)
class Table:
    """All lines of a stream, and what a reader must know beside them."""

    stream: str
    lines: tuple[Line, ...]
    notes: tuple[str, ...] = ()
    source: str = ""
    plain: str | None = None
    rows: tuple[Row, ...] = field(default=(), repr=False)

    @property
    def groups(self) -> tuple[Group, ...]:
        return tuple(row.group for row in self.rows)

    def columns(self) -> list[Column]:
        """Return the columns in which there is anything."""
        return [c for c in COLUMNS if any(c.key in line.values for line in self.lines)]


def groups(results: Results, stream: str) -> list[Group]:
    """Gather a stream's runs by row, in the paper's order, others after."""
    benchmark = BENCHMARKS.get(stream)
    per_order = benchmark is not None and benchmark.per_order
    found: dict[tuple[str, str], list[Run]] = {}
    for run in results.of(stream):
        label = f"{run.key.label}, order {run.key.order}" if per_order else run.key.label
        found.setdefault((run.method, label), []).append(run)
    known = list(dict.fromkeys(row.method for row in benchmark.rows)) if benchmark else ["stl"]
    ranks = {method: rank for rank, method in enumerate(known)}
    ordered = sorted(found, key=lambda k: (ranks.get(k[0], len(ranks)), k))
    return [Group(label, method, tuple(found[method, label])) for method, label in ordered]


def table(results: Results, stream: str, reference: Group | None = None) -> Table:
    """Put a stream's table together; `reference` is STL run elsewhere, for want of one here."""
    found = groups(results, stream)
    plain = next((g for name in PLAIN for g in found if g.method == name and g.done), None)
    pace = {} if plain is None else _pace(plain)
    benchmark = BENCHMARKS.get(stream)
    published = benchmark.rows if benchmark else ()
    ours = {group.label: _ours(group, pace) for group in found}
    theirs = {row.name: _theirs(row) for row in published}
    alone = {g.label: g for g in found if g.method == "stl" and g.done}
    if not alone and reference is not None:
        alone = {reference.label: reference}
    for group in found:
        stl = _alike(group.label, alone)
        if stl is not None and group.done:
            ours[group.label]["to_stl"] = above(group, stl)
    known = {r.name: v for r in published if r.method == "stl" and (v := r.accuracy) is not None}
    for name, values in theirs.items():
        score = _alike(name, known)
        if score is not None and "accuracy" in values:
            values["to_stl"] = values["accuracy"] - score
    rows = []
    for group in found:
        match = _match(group, ours[group.label], benchmark)
        rows.append(Row(group, ours[group.label], match, theirs[match.name] if match else {}))
    lines: list[Line] = []
    for row in rows:
        lines.append(Line(row.group.label, "ours", row.ours, row.group.cells))
        if row.paper is not None:
            lines.append(Line(row.paper.name, "paper", row.theirs))
            both = [k for k in COMPARED if k in row.ours and k in row.theirs]
            if both:
                gap = {k: row.ours[k] - row.theirs[k] for k in both}
                lines.append(Line("ours - paper", "difference", gap))
    shown = {row.paper.name for row in rows if row.paper is not None}
    lines += [Line(n, "paper", v, "not run here") for n, v in theirs.items() if n not in shown]
    notes = [benchmark.note] if benchmark and benchmark.note else []
    if any("sd" in row.ours for row in rows):
        notes.append("The sd of ours is over all cells, orders and seeds alike.")
    if plain is not None:
        each = ", ".join(f"{seconds:,.1f} s a task {where}" for where, seconds in pace.items())
        notes.append(
            f"Time is relative to {plain.label} on the same kind of processor, in the same "
            f"precision and by the same version ({each})."
        )
    return Table(
        stream,
        tuple(lines),
        (*notes, *_protocol(found, benchmark.tasks if benchmark else 0)),
        benchmark.source if benchmark else "",
        None if plain is None else plain.label,
        tuple(rows),
    )


def _pace(group: Group) -> dict[str, float]:
    """Return the seconds of a task by where it ran, at the median: a machine may have been busy."""
    seconds: dict[str, list[float]] = {}
    for run in group.done:
        seconds.setdefault(_where(run), []).extend(run.done.task_seconds)
    return {where: float(np.median(each)) for where, each in seconds.items()}


def _where(run: Run) -> str:
    """Return what times depend on but for the work itself."""
    precision = run.config.get("precision", "32-true")
    return f"on {run.done.processor} in {precision} by {run.done.versions.get('sigmatau', '?')}"


def _protocol(rows: Sequence[Group], tasks: int) -> list[str]:
    """Return what a reader must know of how the runs were made, each thing once."""
    notes: dict[str, None] = {}
    shared: dict[str, dict[str, None]] = {}  # what was done differently, and in which rows
    for group in rows:
        settings: dict[str, set[str]] = {}
        for run in group.done:
            result = run.done
            notes |= dict.fromkeys(result.notes)
            if len(result.task_names) < tasks:
                learnt = f"learnt {len(result.task_names)} of the paper's {tasks} tasks"
                shared.setdefault(learnt, {})[group.label] = None
            if result.metric != "accuracy":
                notes[f"Scores are {result.metric}, in %, wherever accuracy is written."] = None
            for key, value in flat(result.config).items():
                settings.setdefault(key, set()).add(json.dumps(value, sort_keys=True))
        mixed = {k: v for k, v in settings.items() if len(v) > 1 and k not in _DIFFER}
        for key, values in mixed.items():
            told = ", ".join(sorted(values))
            notes[f"{group.label} averages runs of different {key}: {told}."] = None
        for key in ("tasks", "rows"):
            if reduced := sorted(settings.get(key, set()) - {"null", "{}"}):
                told = f"reduced from the full protocol, {key} {', '.join(reduced)}"
                shared.setdefault(told, {})[group.label] = None
    every = {group.label for group in rows if group.done}
    for told, labels in shared.items():
        who = "all rows" if labels.keys() == every and len(every) > 1 else ", ".join(labels)
        notes[f"{told[0].upper()}{told[1:]}: {who}."] = None
    return list(notes)


# What cells of one row differ in by what they are.
_DIFFER = {"order", "order_indices", "seed", "settings.seed", "threads", "trace", "drops"}


def flat(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config with the method's settings as `settings.NAME`."""
    settings = config.get("settings")
    if not isinstance(settings, dict):
        return dict(config)
    rest = {k: v for k, v in config.items() if k != "settings"}
    return rest | {f"settings.{k}": v for k, v in settings.items()}


def _ours(group: Group, pace: Mapping[str, float]) -> dict[str, float]:
    done = [run.done for run in group.done]
    if not done:
        return {}
    accuracy = [100 * r.average_accuracy for r in done]
    values = {
        "capacity": float(np.mean([100 * r.capacity.paper for r in done])),
        "strict": float(np.mean([100 * r.capacity.strict for r in done])),
        "bytes": float(np.mean([100 * r.capacity.bytes for r in done])),
        "accuracy": float(np.mean(accuracy)),
        "forgetting_average": float(np.mean([100 * r.forgetting.average for r in done])),
        "forgetting_worst": float(np.mean([100 * r.forgetting.worst for r in done])),
    }
    if len(done) > 1:
        values["sd"] = float(np.std(accuracy, ddof=1))
    performance = group.across_orders()
    if len(performance) > 1 and common_tasks(performance):
        values |= {"aopd": 100 * aopd(performance), "mopd": 100 * mopd(performance)}
    times = [
        seconds / pace[_where(run)]
        for run in group.done
        if pace.get(_where(run))
        for seconds in run.done.task_seconds
    ]
    if times:
        values["time"] = float(np.median(times))
    return values


def common_tasks(performance: Mapping[str, Sequence[Mapping[str, float]]]) -> bool:
    """Return whether disparity can be told: some task is in every run."""
    return bool(set.intersection(*(set(run) for runs in performance.values() for run in runs)))


def _theirs(row: Published) -> dict[str, float]:
    keys = ("capacity", "accuracy", "sd", "aopd", "mopd", "forgetting_average", "forgetting_worst")
    return {key: v for key in keys if (v := getattr(row, key)) is not None}


def _alike(label: str, found: Mapping[str, T]) -> T | None:
    """Return what has the same words after the comma, else the first, else nothing."""
    kinds: dict[str, T] = {}
    for other, value in found.items():
        kinds.setdefault(_variant(other), value)
    return kinds.get(_variant(label), next(iter(kinds.values()), None))


def above(group: Group, other: Group) -> float:
    """Return how far a row is above another, each run beside those of its own seed.

    A seed stands for a split of the data and an initial network, and some are easier than others:
    runs of a seed that the other does not have say nothing, unless it has none of theirs.
    """
    known: dict[int, list[float]] = {}
    for run in other.done:
        known.setdefault(run.key.seed, []).append(run.done.average_accuracy)
    beside = [(run, known[run.key.seed]) for run in group.done if run.key.seed in known]
    every = [score for scores in known.values() for score in scores]
    pairs = beside or [(run, every) for run in group.done]
    return 100 * float(np.mean([run.done.average_accuracy - np.mean(s) for run, s in pairs]))


def _variant(label: str) -> str:
    return label.partition(", ")[2]


def _match(
    group: Group, values: Mapping[str, float], benchmark: Benchmark | None
) -> Published | None:
    """Return the row of the paper that ours repeats.

    It has the same method and settings; if there are several such rows, the same name, else the
    nearest capacity. A growth budget is in none of them, unless it is named as one; neither is a
    stream learnt in part.
    """
    config = next((run.config for run in group.done or group.runs if run.config), {})
    settings = flat(config)
    if benchmark is None or in_part(config, benchmark.tasks):
        return None
    orders = {run.key.order for run in group.runs}
    fitting = [
        row
        for row in benchmark.rows
        if row.method == group.method
        and (settings.get("settings.budget") is None or row.name == group.label)
        and all(settings.get(f"settings.{k}") == v for k, v in row.when.items())
        and (not row.orders or orders <= set(row.orders))
    ]
    # A row that asks for settings says more about a run than one that does not.
    special = [row for row in fitting if row.when] or fitting
    special = [row for row in special if row.name == group.label] or special
    capacity = values.get("capacity")
    if capacity is None:
        return special[0] if len(special) == 1 else None
    return min(special, key=lambda row: abs(row.capacity - capacity), default=None)


def in_part(config: Mapping[str, Any], tasks: int) -> bool:
    """Return whether a run left tasks of the stream out by choice."""
    order, most = config.get("order"), config.get("tasks")
    shortened = [len(order)] if isinstance(order, list) else []
    shortened += [most] if isinstance(most, int) else []
    return bool(config.get("drops")) or any(n < tasks for n in shortened)
