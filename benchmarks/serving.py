"""Using what was learnt: switching tasks, opening files, first predictions, batches of many tasks.

Switching puts the weights of another task together from the sparse form; the measure is a plain
copy of the weights into the same network. Files are opened anew each time, from a warm disk cache,
and a first prediction (one row) includes opening the file; so does reading the shared part alone.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from benchmarks._document import Bar, Section, Table
from benchmarks._measure import Times, alternate, median, over
from benchmarks._past import CASES, LENET, MLP, batch, with_past
from sigmatau import APDNet
from sigmatau.core.archive import SHARED
from sigmatau.core.container import Container

TASKS, ROWS = 64, 256
FIRST = ("shared part alone, ms", "first prediction, ms", "ratio")


def switching(case: str, rounds: int) -> Times:
    """Time a switch to another task, of APD(1) and of APD(2), and a copy of all weights."""
    build = CASES[case][0]
    sides: dict[str, Callable[[], object]] = {}
    for kind in ("APD(1)", "APD(2)"):
        net = with_past(APDNet(build(), l1=4e-4), 8)
        if kind == "APD(2)":
            net.consolidate()
        turn = itertools.cycle(net.tasks)
        sides[kind] = lambda net=net, turn=turn: net._network(next(turn))  # type: ignore[misc]
    source, target = build(), build()
    pairs = list(zip(target.parameters(), source.parameters(), strict=True))

    def copy() -> None:
        for to, value in pairs:
            to.data.copy_(value.data)

    return alternate(sides | {"copy": copy}, rounds, warm=8)


def opening(case: str, few: int, many: int, rounds: int) -> Times:
    """Time opening files of few and of many tasks, a first prediction, and reading sigma alone."""
    build, shape, _ = CASES[case]
    backbone, (x, _) = build(), batch(shape, 1)
    with tempfile.TemporaryDirectory() as folder:
        paths = {count: Path(folder) / f"{count}.st" for count in (few, many)}
        for count, path in paths.items():
            with_past(APDNet(build()), count, distinct=10).save(path)

        def open_file(count: int) -> APDNet:
            return APDNet.load(paths[count], backbone)

        def shared_alone() -> None:
            with Container.open(paths[many]) as source:
                source.read(SHARED)

        sides: dict[str, Callable[[], object]] = {
            "few": partial(open_file, few),
            "many": partial(open_file, many),
            "first": lambda: open_file(many).predict(str(many // 2), x),
            "shared": shared_alone,
        }
        return alternate(sides, rounds, warm=3)


def batches(case: str, tasks: int, rows: int, rounds: int) -> Times:
    """Time a batch of rows of many tasks: in one call, task by task, and row by row."""
    build, shape, _ = CASES[case]
    net, (x, _) = with_past(APDNet(build()), tasks, distinct=10), batch(shape, rows)
    names = [str(i) for i in torch.randint(tasks, (rows,), generator=torch.Generator()).tolist()]
    outputs = net.predict(names[0], x[:1]).shape[1]

    def by_task() -> Tensor:
        out = x.new_empty(rows, outputs)
        for name in dict.fromkeys(names):
            index = torch.tensor([i for i, other in enumerate(names) if other == name])
            out[index] = net.predict(name, x[index])
        return out

    def by_row() -> Tensor:
        return torch.cat([net.predict(n, x[i : i + 1]) for i, n in enumerate(names)])

    sides = {"one call": lambda: net.predict(names, x), "tasks": by_task, "rows": by_row}
    return alternate(sides, rounds)


def main(few: int = 10, many: int = 1000, rounds: int = 15) -> Section:
    switched, opened, served, bars, numbers = [], [], [], [], {}
    for case in (LENET, MLP):
        times = switching(case, 10 * rounds)
        copied = 1e3 * median(times, "copy")
        ratios = [over(times, kind, "copy") for kind in ("APD(1)", "APD(2)")]
        switched.append([case, f"{copied:.2f}", *(f"{r:.2f}" for r in ratios)])
        bars.append(Bar(f"switching, {case}: worst over a copy", max(ratios), 3.0))

        times = opening(case, few, many, rounds)
        wide, first = over(times, "many", "few"), over(times, "first", "shared")
        shown = [f"{1e3 * median(times, side):.2f}" for side in ("few", "many", "shared", "first")]
        opened.append([case, *shown[:2], f"{wide:.2f}", *shown[2:], f"{first:.2f}"])
        bars.append(Bar(f"opening, {case}: {many} tasks over {few}", wide, 2.0))
        bars.append(Bar(f"first prediction, {case}: over reading the shared part", first, 3.0))
        numbers[f"{case}, first prediction, ms"] = 1e3 * median(times, "first")

        times = batches(case, TASKS, ROWS, max(3, rounds // 3))
        gains = [over(times, "one call", side) for side in ("tasks", "rows")]
        told = f"{ROWS} rows of {TASKS} tasks, {case}: one call over a loop over tasks"
        bars.append(Bar(told, gains[0], 1.0))
        served.append(
            [case, f"{1e3 * median(times, 'one call'):.0f}", *(f"{g:.2f}" for g in gains)]
        )
    return Section(
        [
            Table(
                "Switching", ["network", "copy, ms", "APD(1) over it", "APD(2) over it"], switched
            ),
            Table(
                "Files",
                ["network", f"open {few}, ms", f"open {many}, ms", "ratio", *FIRST],
                opened,
            ),
            Table(
                f"{ROWS} rows of {TASKS} tasks",
                ["network", "one call, ms", "over task by task", "over row by row"],
                served,
            ),
        ],
        bars,
        numbers,
    )


if __name__ == "__main__":
    print(main())
