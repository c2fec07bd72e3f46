"""What the reproduction must reach, as data, and whether it does.

Limits are in % and points, like the tables. A bar says which row of which recipe it is about; what
is not there yet is said, with what was measured so far.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from sigmatau import metrics
from sigmatau.report.fits import exponent, fits
from sigmatau.report.published import BENCHMARKS
from sigmatau.report.results import Result
from sigmatau.report.tables import Group, Row, Table, above, flat

Verdict = Literal["kept", "missed", "not enough cells yet"]

# The tables of the paper, and how many orders and seeds a verdict needs.
NEEDED: Mapping[str, tuple[int, int]] = {
    "split-cifar100": (3, 1),
    "superclass-cifar100": (3, 1),
    "omniglot-rotation": (2, 1),
    "permuted-mnist": (1, 3),
    "hetero3": (1, 1),  # the paper gives each order a row
    "hetero8": (2, 1),
}
BASELINES = frozenset(
    ("l2t", "ewc", "pc", "pgn", "den", "rcl", "gem", "s-gem", "a-gem", "piggyback", "hat")
)
BASELINE_GAP = -2.0  # how far below the paper a baseline's distance to STL may be
EXACT = 1e-6  # numbers that are merged within this tell the same; further apart they need not
BELOW_LINEAR = 0.9  # of the exponent: growth that anyone can see is not a line

MEASURES: Mapping[str, str] = {
    "capacity": "capacity (paper)",
    "accuracy": "accuracy",
    "to_stl": "accuracy minus that of STL",
    "to_baselines": "accuracy minus that of the best baseline",
    "aopd": "AOPD",
    "mopd": "MOPD",
    "exponent": "exponent of the growth over tasks",
}


@dataclass(frozen=True)
class Bar:
    """A limit for one row: that of a label, or the largest growth budget `within` a capacity."""

    recipe: str
    row: str
    measure: str
    kind: Literal["at least", "at most", "above"]
    limit: float
    within: float | None = None

    @property
    def name(self) -> str:
        return self.row if self.within is None else f"{self.row} within {self.within:g} %"

    def holds(self, value: float) -> bool:
        # Differences of percentages are not exact in binary.
        gap = self.limit - value if self.kind == "at most" else value - self.limit
        return gap > (1e-9 if self.kind == "above" else -1e-9)


def _for(recipe: str, row: str, within: float | None = None, **limits: float) -> list[Bar]:
    least = {"accuracy", "to_stl", "to_baselines"}
    return [
        Bar(recipe, row, key, "at least" if key in least else "at most", limit, within)
        for key, limit in limits.items()
    ]


_SPLIT = {"capacity": 135, "to_stl": -2.0, "to_baselines": 2.0, "aopd": 2.1, "mopd": 3.5}
_SUPERCLASS = {"capacity": 133, "to_stl": -3.5, "aopd": 3.0, "mopd": 6.2}
_OMNIGLOT = {"capacity": 650, "to_stl": -0.5, "aopd": 4.1, "mopd": 9.4, "exponent": BELOW_LINEAR}
_PERMUTED = {
    "STL": 95.0,
    "GEM": 88.5,
    "S-GEM": 87.0,
    "A-GEM": 88.0,
    "EWC": 67.0,
    "PGN": 92.5,
    "APD(1), larger": 92.8,
}

BARS: tuple[Bar, ...] = (
    *_for("split-cifar100", "APD(1)", **_SPLIT),
    *_for("split-cifar100", "APD(2)", **_SPLIT),
    *_for("superclass-cifar100", "APD(1)", **_SUPERCLASS),
    *_for("superclass-cifar100", "APD(2)", **_SUPERCLASS),
    *_for("omniglot-rotation", "APD(2)", **_OMNIGLOT),
    *_for("omniglot-rotation", "APD(2) with a rising price, without l1_cut", **_OMNIGLOT),
    *(
        bar
        for row, least in _PERMUTED.items()
        for bar in _for("permuted-mnist", row, accuracy=least)
    ),
    *_for("permuted-mnist", "APD(1), larger", capacity=115),
)


def _aims(stream: str, within: float) -> list[Bar]:
    """Above STL, and no more dependent on the order than the paper's APD(2)."""
    row = "APD with a budget"
    return [
        Bar(stream, row, "to_stl", "above", 0.0, within),
        *_for(stream, row, within, **_disparity(stream)),
    ]


def _disparity(stream: str) -> dict[str, float]:
    """Return what the paper's APD(2) depends on the order."""
    paper = next(row for row in BENCHMARKS[stream].rows if row.name == "APD(2)")
    assert paper.aopd is not None
    assert paper.mopd is not None
    return {"aopd": paper.aopd, "mopd": paper.mopd}


_DROPOUT = "APD with a budget of 0.035, dropout"
_LARGE, _SMALL = (f"APD with a budget of {budget}, dropout" for budget in ("0.016", "0.0053"))

AIMS: tuple[Bar, ...] = (
    *_aims("split-cifar100", 135),
    *_for("split-cifar100", "APD with a budget", 110, to_stl=-1.5),
    *_aims("superclass-cifar100", 130),
    *_for("superclass-cifar100", "APD with a budget", 110, to_stl=-1.5),
    *_aims("omniglot-rotation", 400),
    *(
        bar
        for row in ("APD with a slowing budget", "APD with a slowing budget, from the last task")
        for bar in _for("omniglot-rotation", row, **{**_OMNIGLOT, "capacity": 400})
    ),
    # The limits of the table once more, for a row of another network and beside its baselines.
    Bar("split-cifar100-dropout", _DROPOUT, "to_stl", "above", 0.0),
    *_for("split-cifar100-dropout", _DROPOUT, **{k: v for k, v in _SPLIT.items() if k != "to_stl"}),
    Bar("superclass-cifar100-dropout", _LARGE, "to_stl", "above", 0.0),
    *_for("superclass-cifar100-dropout", _LARGE, capacity=130, **_disparity("superclass-cifar100")),
    *_for("superclass-cifar100-dropout", _SMALL, capacity=110, to_stl=-1.5),
)


@dataclass(frozen=True)
class Finding:
    """A bar, what was measured, and the verdict; `why` says what a reader should know of it."""

    recipe: str
    row: str
    bar: str
    value: str
    verdict: Verdict
    why: str = ""


def findings(tables: Mapping[str, Table], bars: tuple[Bar, ...]) -> list[Finding]:
    """Judge bars by the tables of the recipes."""
    return [_judged(bar, tables.get(bar.recipe)) for bar in bars]


def _judged(bar: Bar, table: Table | None) -> Finding:
    told = f"{MEASURES[bar.measure]} {bar.kind} {bar.limit:g}"
    row = None if table is None else _row(bar, table)
    if table is None or row is None or not row.group.done:
        why = "not run yet" if bar.within is None else "no such row was run yet"
        return Finding(bar.recipe, bar.name, told, "", "not enough cells yet", why)
    name = bar.name if bar.within is None else f"{bar.name}: {row.group.label}"
    value, why = _value(bar.measure, row, table)
    if value is None:
        return Finding(bar.recipe, name, told, "", "not enough cells yet", why)
    lacking = _lacking(row.group, NEEDED.get(bar.recipe) or NEEDED.get(table.stream, (1, 1)))
    verdict: Verdict = "kept" if bar.holds(value) else "missed"
    if lacking:
        return Finding(bar.recipe, name, told, _number(value), "not enough cells yet", lacking)
    return Finding(bar.recipe, name, told, _number(value), verdict, why)


def _row(bar: Bar, table: Table) -> Row | None:
    if bar.within is None:
        return next((row for row in table.rows if row.group.label == bar.row), None)
    # The largest that fits, not the most accurate one: test scores choose nothing.
    budgets = [row for row in table.rows if row.group.done and _plain_budget(row.group)]
    fitting = [row for row in budgets if row.ours["capacity"] <= bar.within + 1e-9]
    return max(fitting, key=lambda row: row.ours["capacity"], default=None)


def _plain_budget(group: Group) -> bool:
    chosen = flat(group.done[0].config)
    return chosen.get("settings.budget") is not None and chosen.get("settings.start") != "last"


def _value(measure: str, row: Row, table: Table) -> tuple[float | None, str]:
    """Return a row's value, and what is to be said of it or why there is none."""
    match measure:
        case "to_baselines":
            rivals = [r for r in table.rows if r.group.method in BASELINES]
            absent = [r.group.label for r in rivals if not r.group.done]
            if absent or not rivals:
                return None, f"not run yet: {', '.join(absent) or 'any baseline'}"
            gaps = {r.group.label: above(row.group, r.group) for r in rivals}
            best = min(gaps, key=lambda label: gaps[label])
            return gaps[best], f"the best is {best}"
        case "exponent":
            curve = networks(row.group, table)
            power = None if curve is None else exponent(curve)
            if curve is None or power is None:
                return None, "needs the curve of STL, and growth over four tasks"
            both = ", ".join(f"{f.kind} R² {f.r2:.3f}" for f in fits(curve) or ())
            return power, f"1 is a line; {both}"
        case "to_stl" if measure not in row.ours:
            return None, "STL was not run yet"
        case "aopd" | "mopd" if measure not in row.ours:
            return None, "needs two orders"
    return row.ours[measure], ""


def networks(group: Group, table: Table) -> list[float] | None:
    """Return what is stored after each task, in base networks of one head.

    Capacity as the paper counts it is over weights and all heads so far, which bends any curve
    down. STL stores k networks after k tasks, so its curve tells how much.
    """
    stl = next((g for g in table.groups if g.method == "stl" and g.done), None)
    if stl is None:
        return None
    curves = [[run.done.capacity_curve for run in g.done] for g in (group, stl)]
    length = min(len(curve) for found in curves for curve in found)
    mine, whole = (np.mean([curve[:length] for curve in found], axis=0) for found in curves)
    return [float(v) for v in mine * np.arange(1, length + 1) / whole]


def _lacking(group: Group, needed: tuple[int, int]) -> str:
    there = (len({r.key.order for r in group.done}), len({r.key.seed for r in group.done}))
    short = [
        f"{have} of {want} {word}"
        for have, want, word in zip(there, needed, ("orders", "seeds"), strict=True)
        if have < want
    ]
    return ", ".join(short)


def baselines(tables: Mapping[str, Table], notes: Mapping[str, str]) -> list[Finding]:
    """Judge every baseline by its distance to STL beside the paper's.

    One that misses must have its reason in the recipe's notes, under its label in bold. Where the
    paper has no STL there is nothing to judge.
    """
    found = []
    for recipe, needed in NEEDED.items():
        rows = tables[recipe].rows if recipe in tables else ()
        for row in (r for r in rows if r.group.method in BASELINES and "to_stl" in r.theirs):
            label = row.group.label
            told = f"to STL, ours minus the paper's at least {BASELINE_GAP:g}"
            if not row.group.done or "to_stl" not in row.ours:
                why = "not run yet" if not row.group.done else "STL was not run yet"
                found.append(Finding(recipe, label, told, "", "not enough cells yet", why))
                continue
            value = row.ours["to_stl"] - row.theirs["to_stl"]
            lacking = _lacking(row.group, needed)
            holds = Bar(recipe, label, "to_stl", "at least", BASELINE_GAP).holds(value)
            verdict: Verdict = "kept" if holds else "missed"
            reason = f"**{label}**" in notes.get(recipe, "")
            why = "" if holds else "reason in the notes" if reason else "no reason stated yet"
            if lacking:
                verdict, why = "not enough cells yet", lacking
            found.append(Finding(recipe, label, told, _number(value), verdict, why))
    return found


def promises(tables: Mapping[str, Table]) -> list[Finding]:
    """Judge what APD promises whatever the stream: no forgetting, and no trace of a drop."""
    found = []
    for method, name in (("apd1", "APD(1)"), ("apd2", "APD(2)")):
        # Once each: a cell that another folder took over is one run.
        runs: dict[str, tuple[str, Result]] = {}
        for recipe, table in tables.items():
            for group in (g for g in table.groups if g.method == method):
                for run in group.done:
                    runs.setdefault(_work(run.done), (f"{recipe}, {group.label}", run.done))
        lost: dict[str, list[tuple[float, str]]] = {name: []}
        for where, result in runs.values():
            if flat(result.config).get("settings.l2") == 100:
                beta = _beta(result)
                row = name if beta <= EXACT else f"{name}, beta of {beta:g}"
                lost.setdefault(row, []).append((_forgotten(result), where))
        told = "forgetting of every task 0.00 points, l2 = 100"
        found += [
            _promise(row, told, seen, lambda value: round(value, 2) == 0)
            for row, seen in lost.items()
        ]
        moved = [(100 * d.moved, where) for where, r in runs.values() for d in r.drops]
        told = "change of every other task when one is dropped exactly 0"
        found.append(_promise(name, told, moved, lambda value: value == 0))
    return found


def _promise(
    name: str, told: str, seen: list[tuple[float, str]], holds: Callable[[float], bool]
) -> Finding:
    """Judge the largest of what was seen, in points, each with where it was."""
    if not seen:
        return Finding("all", name, told, "", "not enough cells yet", "not run yet")
    value, where = max(seen, key=lambda found: abs(found[0]))
    if holds(value):
        return Finding("all", name, told, _number(value), "kept", f"seen {len(seen)} times")
    worse = sum(not holds(v) for v, _ in seen)
    why = f"in {worse} of {len(seen)}; the most in {where}"
    return Finding("all", name, told, _number(value), "missed", why)


def _work(result: Result) -> str:
    """Return what two results share if one was taken over from the other, not run again."""
    shared = {"stream", "order", "seed", "config", "seconds", "accuracy_matrix"}
    return json.dumps(result.model_dump(include=shared), sort_keys=True)


def _beta(result: Result) -> float:
    """Return how far apart numbers may be that consolidation makes one, 0 where there is none."""
    settings = flat(result.config)
    every = settings.get("settings.consolidate_every")
    return float(settings.get("settings.beta") or 0.0) if every else 0.0


def _forgotten(result: Result) -> float:
    """Return the forgetting furthest from 0, in points, of tasks that were not dropped."""
    stays = [i for i, score in enumerate(result.accuracy_matrix[-1]) if score is not None]
    # Scores that were not taken cannot be the best ones.
    matrix = [[-np.inf if s is None else s for s in row] for row in result.accuracy_matrix]
    lost = metrics.forgetting(np.array(matrix)[np.ix_(stays, stays)])
    return 100 * float(max(lost, key=abs, default=0.0))


def _number(value: float) -> str:
    return f"{round(value, 2) + 0.0:.2f}"
