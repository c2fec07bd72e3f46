"""Two result folders side by side, with confidence intervals over orders and seeds.

Cells of the same order and seed share the split and the initial network, so they are compared in
pairs: what both have in common cancels out. Labels without common cells are compared as two
independent samples (Welch). An interval is for the mean over cells, taken as independent draws.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy import stats

from sigmatau.errors import ConfigError, FileError
from sigmatau.metrics import aopd, mopd
from sigmatau.report.results import Key, Result, Run, read
from sigmatau.report.tables import Group, common_tasks

MEASURES: Mapping[str, Callable[[Result], float]] = {
    "accuracy": lambda r: 100 * r.average_accuracy,
    "forgetting": lambda r: 100 * r.forgetting.average,
    "worst forgetting": lambda r: 100 * r.forgetting.worst,
    "capacity": lambda r: 100 * r.capacity.paper,
    "seconds": lambda r: r.seconds,
}


@dataclass(frozen=True)
class Comparison:
    """One measure of one label in both folders; `low` and `high` bound b - a, if they can be had.

    `paired` counts cells that both have; 0 means that all cells of each side were pooled.
    """

    stream: str
    label: str
    measure: str
    a: float
    b: float
    low: float | None
    high: float | None
    cells_a: int
    cells_b: int
    paired: int
    identical: int

    @property
    def difference(self) -> float:
        return self.b - self.a

    @property
    def verdict(self) -> str:
        """Return what the interval says."""
        if self.paired and self.identical == self.paired and self.measure != "seconds":
            return "same"
        if self.low is None or self.high is None:
            return "no interval"
        if self.low > 0:
            return "higher"
        return "lower" if self.high < 0 else "unclear"


@dataclass(frozen=True)
class Compared:
    """What can be compared, and what only one of the folders has."""

    rows: tuple[Comparison, ...]
    only_a: tuple[str, ...]
    only_b: tuple[str, ...]
    level: float


def compare(a: Path, b: Path, level: float = 0.95) -> Compared:
    """Compare every stream and label that both folders have finished cells of."""
    if not 0 < level < 1:
        raise ConfigError(f"a confidence level lies between 0 and 1, not at {level:g}: try 0.95")
    first, second = _finished(a), _finished(b)
    common = [name for name in first if name in second]
    if not common:
        raise FileError(
            f"{a} and {b} have no method on the same stream in common: nothing to compare"
        )
    rows: list[Comparison] = []
    for name in common:
        x, y = first[name], second[name]
        rows += [_compare(name, measure, x, y, level) for measure in MEASURES]
        rows += _disparities(name, x, y)
    return Compared(
        tuple(rows),
        tuple(" ".join(name) for name in first if name not in second),
        tuple(" ".join(name) for name in second if name not in first),
        level,
    )


def _finished(folder: Path) -> dict[tuple[str, str], dict[Key, Run]]:
    found: dict[tuple[str, str], dict[Key, Run]] = {}
    for run in read([folder]).runs:
        if run.state == "done":
            found.setdefault((run.key.stream, run.key.label), {})[run.key] = run
    return found


def _compare(
    name: tuple[str, str], measure: str, a: dict[Key, Run], b: dict[Key, Run], level: float
) -> Comparison:
    of = MEASURES[measure]
    shared = [key for key in a if key in b]
    same = sum(a[k].done.accuracy_matrix == b[k].done.accuracy_matrix for k in shared)
    x = [of(a[key].done) for key in (shared or a)]
    y = [of(b[key].done) for key in (shared or b)]
    low, high = paired_interval(x, y, level) if shared else welch_interval(x, y, level)
    return Comparison(
        *name,
        measure,
        float(np.mean(x)),
        float(np.mean(y)),
        low,
        high,
        len(a),
        len(b),
        len(shared),
        same,
    )


def _disparities(name: tuple[str, str], a: dict[Key, Run], b: dict[Key, Run]) -> list[Comparison]:
    """Return AOPD and MOPD over the common cells; one number each, so without an interval."""
    shared = [key for key in a if key in b]
    sides = [_performance([runs[key] for key in shared]) for runs in (a, b)]
    if len(sides[0]) < 2 or not all(map(common_tasks, sides)):
        return []
    same = sum(a[k].done.accuracy_matrix == b[k].done.accuracy_matrix for k in shared)
    counts = (len(a), len(b), len(shared), same)
    return [
        Comparison(*name, told, 100 * of(sides[0]), 100 * of(sides[1]), None, None, *counts)
        for told, of in (("AOPD", aopd), ("MOPD", mopd))
    ]


def _performance(runs: Sequence[Run]) -> dict[str, list[dict[str, float]]]:
    return Group("", "", tuple(runs)).across_orders()


Interval = tuple[float, float] | tuple[None, None]


def paired_interval(x: Sequence[float], y: Sequence[float], level: float) -> Interval:
    """Return Student's interval for the mean of y - x; none for a single pair."""
    gaps = np.asarray(y) - np.asarray(x)
    if len(gaps) < 2:
        return None, None
    half = stats.t.ppf((1 + level) / 2, len(gaps) - 1) * gaps.std(ddof=1) / np.sqrt(len(gaps))
    return float(gaps.mean() - half), float(gaps.mean() + half)


def welch_interval(x: Sequence[float], y: Sequence[float], level: float) -> Interval:
    """Return Welch's interval for the difference of means; none if a side has a single cell."""
    if min(len(x), len(y)) < 2:
        return None, None
    u, v = np.var(x, ddof=1) / len(x), np.var(y, ddof=1) / len(y)
    gap = float(np.mean(y) - np.mean(x))
    if u + v == 0:
        return gap, gap
    freedom = (u + v) ** 2 / (u**2 / (len(x) - 1) + v**2 / (len(y) - 1))
    half = float(stats.t.ppf((1 + level) / 2, freedom) * np.sqrt(u + v))
    return gap - half, gap + half


def to_csv(compared: Compared) -> str:
    """Return the comparison as CSV with all digits."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    head = ["stream", "label", "measure", "a", "b", "difference", "low", "high"]
    writer.writerow([*head, "cells_a", "cells_b", "paired", "identical"])
    for r in compared.rows:
        bounds = ["" if v is None else repr(v) for v in (r.low, r.high)]
        numbers = [repr(r.a), repr(r.b), repr(r.difference), *bounds]
        counts = [r.cells_a, r.cells_b, r.paired, r.identical]
        writer.writerow([r.stream, r.label, r.measure, *numbers, *counts])
    return out.getvalue()
