"""The paper's figures, of our runs: each function describes one, or returns None without data."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import combinations, pairwise

import numpy as np

from sigmatau.metrics import opd
from sigmatau.report.fits import fits
from sigmatau.report.plot import Figure, Panel, Series
from sigmatau.report.published import BENCHMARKS
from sigmatau.report.results import Run
from sigmatau.report.tables import Group, Table, common_tasks

TASKS = (1, 6, 11)  # whose forgetting the paper follows
MANY = 30


def all_figures(table: Table, tasks: Sequence[int] = TASKS) -> list[Figure]:
    """Return every figure of a stream for which there is data."""
    found = [
        order_disparity(table),
        efficiency(table),
        forgetting_curves(table, tasks),
        growth(table),
        dropping(table),
        drift(table),
    ]
    return [figure for figure in found if figure is not None]


def efficiency(table: Table) -> Figure | None:
    """Accuracy over capacity and over training time: up and to the left is better."""
    lines = {line.label: line for line in table.lines if line.source == "ours" and line.values}
    if not lines:
        return None
    hues = _hues(table.groups)
    over_capacity, over_time = [], []
    for label, line in lines.items():
        values, hue = line.values, hues[label]
        sd = values.get("sd")
        told = f"{label} (ours)<br>accuracy {values['accuracy']:.2f} %" + (
            "" if sd is None else f" ± {sd:.2f}"
        )
        error = () if sd is None else (sd,)
        y = [values["accuracy"]]
        hover = [f"{told}<br>capacity {values['capacity']:.1f} %<br>{line.cells} cells"]
        over_capacity.append(Series(label, [values["capacity"]], y, hue, error=error, hover=hover))
        if "time" in values:
            hover = [f"{told}<br>time {values['time']:.2f} x {table.plain}"]
            over_time.append(Series(label, [values["time"]], y, hue, error=error, hover=hover))
    benchmark = BENCHMARKS.get(table.stream)
    comparable = benchmark is not None and any(row.paper for row in table.rows)
    if benchmark is not None and comparable:
        rows = benchmark.rows
        over_capacity.append(
            Series(
                "the paper's",
                [row.capacity for row in rows],
                [row.accuracy for row in rows],
                7,
                hover=[f"{r.name} (paper)<br>{r.accuracy:.2f} % at {r.capacity:g} %" for r in rows],
                hollow=True,
            )
        )
    panels = [Panel("over capacity", over_capacity, "capacity (paper), %", "accuracy, %", (), True)]
    if over_time:
        x = f"training time / {table.plain}"
        panels.append(Panel("over training time", over_time, x, "accuracy, %", (), True))
    return Figure(
        "efficiency",
        "Accuracy over capacity and time",
        "Up and to the left is better. Bars are the sd over orders and seeds; both x axes are "
        "logarithmic." + (" Hollow marks are the paper's figures." if comparable else ""),
        panels,
    )


def order_disparity(table: Table) -> Figure | None:
    """Per-task accuracy for each order, one panel a method."""
    shown = [g for g in table.groups if len(g.across_orders()) > 1]
    orders = sorted({order for g in shown for order in g.across_orders()})
    panels, scores = [], []
    for group in shown:
        performance = group.across_orders()
        if not common_tasks(performance):
            continue
        gap = opd(performance)
        tasks = [task for task in _tasks(group.done) if task in gap]
        means = {
            order: [100 * float(np.mean([run[t] for run in runs])) for t in tasks]
            for order, runs in performance.items()
        }
        scores += [score for row in means.values() for score in row]
        if len(tasks) > MANY:
            # A hundred strokes side by side are noise; sorted, they are a band of some width.
            rank = np.argsort(np.mean(list(means.values()), axis=0), kind="stable").tolist()
            tasks = [tasks[k] for k in rank]
            means = {order: [row[k] for k in rank] for order, row in means.items()}
        place = range(len(tasks))
        low = [min(row[i] for row in means.values()) for i in place]
        high = [max(row[i] for row in means.values()) for i in place]
        series = [Series("spread", list(place), low, 7, "span", high)]
        for order, row in sorted(means.items()):
            hover = [
                f"order {order}: {score:.2f} %<br>{task}<br>disparity {100 * gap[task]:.2f} points"
                for task, score in zip(tasks, row, strict=True)
            ]
            hue = orders.index(order)
            series.append(Series(f"order {order}", list(place), row, hue, hover=hover))
        told = f"AOPD {100 * np.mean(list(gap.values())):.2f}, MOPD {100 * max(gap.values()):.2f}"
        panels.append(
            Panel(f"{group.label}: {told}", series, "task", "accuracy, %", _numbers(tasks))
        )
    if not panels:
        return None
    span = _padded(scores)
    return Figure(
        "order-disparity",
        "Order disparity: the same task, learnt in different orders",
        "Each dot is a task's final accuracy in one order (mean over seeds); the stroke behind it "
        "runs from the worst order to the best. Short strokes: the order does not matter. Tasks "
        f"are numbered as order A has them (or the first there is); more than {MANY} are sorted, "
        "the hardest first.",
        [replace(panel, y_range=span) for panel in panels],
    )


def forgetting_curves(table: Table, tasks: Sequence[int] = TASKS) -> Figure | None:
    """The accuracy of chosen tasks as later tasks arrive."""
    done = [run for g in table.groups for run in g.done]
    if not done:
        return None
    orders = [run.key.order for run in done]
    order = "A" if "A" in orders else orders[0]
    hues = _hues(table.groups)
    longest = max(len(run.done.accuracy_matrix) for run in done)
    panels, scores = [], []
    for place in (p for p in tasks if p < longest):
        series = []
        for group in table.groups:
            rows = [_column(run, place - 1) for run in group.done if run.key.order == order]
            rows = [row for row in rows if row]
            if not rows:
                continue
            length = min(map(len, rows))
            curve = [100 * float(np.mean([row[k] for row in rows])) for k in range(length)]
            x = [place + k for k in range(length)]
            hover = [
                f"{group.label}<br>{y:.2f} % after {k} tasks ({y - curve[0]:+.2f})"
                for k, y in zip(x, curve, strict=True)
            ]
            scores += curve
            series.append(Series(group.label, x, curve, hues[group.label], "line", hover=hover))
        if series:
            panels.append(
                Panel(f"task {place}", series, "tasks learnt", "accuracy, %", whole_x=True)
            )
    if not panels:
        return None
    span = _padded(scores)
    return Figure(
        "forgetting",
        "Forgetting: earlier tasks as later ones arrive",
        f"Order {order}, mean over seeds. A flat line has forgotten nothing.",
        [replace(panel, y_range=span) for panel in panels],
    )


def growth(table: Table) -> Figure | None:
    """Stored parameters over the number of tasks, with a logarithmic and a linear fit."""
    hues = _hues(table.groups)
    series, told = [], []
    # One network a task is a steep line by definition, and would flatten all the others.
    others = [g for g in table.groups if g.method != "stl"]
    for group in others or table.groups:
        curves = [run.done.capacity_curve for run in group.done]
        length = min(map(len, curves), default=0)
        if length < 3:
            continue
        curve = [100 * float(np.mean([c[k] for c in curves])) for k in range(length)]
        steps = list(range(1, length + 1))
        hover = [
            f"{group.label}<br>{y:.1f} % after {k} tasks" for k, y in zip(steps, curve, strict=True)
        ]
        hue = hues[group.label]
        series.append(Series(group.label, steps, curve, hue, "line", hover=hover))
        found = fits(curve)
        if found is None:
            told.append(f"{group.label} does not grow")
            continue
        best = found[0]
        note = [f"{group.label}: {best.formula}<br>R² {best.r2:.3f}"] * length
        series.append(Series(group.label, steps, best.values, hue, "dashed", hover=note))
        both = ", ".join(f"{f.kind} R² {f.r2:.3f}" for f in found)
        told.append(f"{group.label}: {best.formula} ({both})")
    if not series:
        return None
    return Figure(
        "growth",
        "Parameters over the number of tasks",
        "Dashed: the better of a logarithmic and a linear least-squares fit. "
        + ("STL, 100 % a task, is left out. " if len(others) < len(table.groups) else "")
        + "; ".join(told)
        + ".",
        [Panel("", series, "tasks learnt (t)", "capacity (paper), %", whole_x=True)],
        wide=True,
    )


def dropping(table: Table) -> Figure | None:
    """Per-task accuracy before and after a task is dropped."""
    panels, moved = [], 0.0
    for group in table.groups:
        for run in group.done:
            for drop in run.done.drops:
                tasks = list(drop.before)
                after = [drop.after.get(task) for task in tasks]
                moved = max(moved, drop.moved)
                place = list(range(len(tasks)))
                before = [100 * drop.before[t] for t in tasks]
                later = [
                    None if a is None or t == drop.task else 100 * a
                    for t, a in zip(tasks, after, strict=True)
                ]
                title = f"{group.label}, order {run.key.order}: {drop.task} at step {drop.step}"
                panels.append(
                    Panel(
                        title,
                        [
                            Series(
                                "before", place, before, 7, "bars", hover=_percent(tasks, before)
                            ),
                            Series("after", place, later, 2, "bars", hover=_percent(tasks, later)),
                        ],
                        "task",
                        "accuracy, %",
                        _numbers(tasks),
                    )
                )
    if not panels:
        return None
    verdict = (
        "No other task moved at all."
        if moved == 0
        else f"The largest change of another task is {100 * moved:.2f} points."
    )
    return Figure(
        "dropping",
        "Selective forgetting: a task is dropped",
        f"Accuracy of every task just before and after. {verdict}",
        panels,
    )


def drift(table: Table) -> Figure | None:
    """Where each task's parameters lay in the plane after each step of learning."""
    panels = []
    for group in table.groups:
        run = next((run for run in group.done if run.drift is not None), None)
        if run is None or run.drift is None:
            continue
        names = [*run.done.task_names, None]
        series, starts, ways = [], [], []
        for hue, task in enumerate(names):
            points = sorted((p for p in run.drift.points if p.task == task), key=lambda p: p.step)
            if not points:
                continue
            name = "shared" if task is None else task
            legs = [float(np.hypot(b.x - a.x, b.y - a.y)) for a, b in pairwise(points)]
            hover = [
                f"{name} after {p.step} tasks<br>moved {sum(legs[:k]):.3g} so far"
                for k, p in enumerate(points)
            ]
            xs, ys = [p.x for p in points], [p.y for p in points]
            if task is not None:
                starts.append((xs[0], ys[0]))
                ways += [sum(legs)] if legs else []
            series.append(
                Series(
                    name,
                    xs,
                    ys,
                    7 if task is None else hue,
                    "path",
                    hover=hover,
                    hollow=task is None,
                )
            )
        apart = [float(np.hypot(a[0] - b[0], a[1] - b[1])) for a, b in combinations(starts, 2)]
        title = group.label
        if ways and sum(apart):
            moved = float(np.mean(ways) / np.mean(apart))
            title += f": tasks moved {moved:.0%} of their distance apart"
        panels.append(Panel(title, series, "first component", "second component"))
    if not panels:
        return None
    return Figure(
        "drift",
        "Drift of the parameters over the steps of learning",
        "The first two principal components of the weights. A path follows one task's parameters "
        "from when it was learnt (large mark) to the end; a dot that stays has not drifted.",
        panels,
    )


def _hues(groups: Iterable[Group]) -> dict[str, int]:
    return {group.label: hue for hue, group in enumerate(groups)}


def _tasks(runs: Iterable[Run]) -> list[str]:
    """Return the tasks of the longest run, as order A has them if there is one."""
    ranked = sorted(runs, key=lambda run: (-len(run.done.task_names), run.key.order))
    return list(ranked[0].done.task_names) if ranked else []


def _numbers(tasks: Sequence[str]) -> list[str]:
    """Return what stands under an axis of tasks: their names are long, and shown on hovering."""
    return [str(place + 1) for place in range(len(tasks))]


def _column(run: Run, task: int) -> list[float]:
    """Return a task's scores from when it was learnt until they end."""
    scores: list[float] = []
    for row in run.done.accuracy_matrix[task:]:
        if task >= len(row) or (score := row[task]) is None:
            break
        scores.append(score)
    return scores


def _padded(scores: Sequence[float]) -> tuple[float, float]:
    """Return one range for all panels, so that they can be compared by eye."""
    low, high = min(scores), max(scores)
    pad = max(1.0, 0.06 * (high - low))
    return low - pad, high + pad


def _percent(tasks: Sequence[str], values: Sequence[float | None]) -> list[str]:
    told = ("dropped" if v is None else f"{v:.2f} %" for v in values)
    return [f"{task}: {score}" for task, score in zip(tasks, told, strict=True)]
