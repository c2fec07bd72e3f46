"""What a training step of APD costs beside the plain step, with 1 to 100 past tasks.

The plain side is one network, one task and `torch.optim.Adam(fused=True)` on the same batches. Past
tasks have deltas of 3 % at random places. All sides take turns in every round.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from benchmarks._document import Bar, Section, Table
from benchmarks._measure import Times, alternate, median, over
from benchmarks._past import CASES, LENET, MLP, SMALL_LENET, batch, begun, plain, step, with_past
from sigmatau import APDNet

PAST = (1, 10, 50, 100)
KINDS: dict[str, dict[str, Any]] = {
    "APD(1)": {"l1": 4e-4},
    "APD(2)": {"l1": 4e-4, "consolidate_every": 5},
    "budget = 3 %": {"budget": 0.03},
}
LIMITS = {LENET: 1.25, SMALL_LENET: 1.35, MLP: 2.0}
FLAT = 1.05


def measure(case: str, kind: str, past: Sequence[int], rounds: int) -> Times:
    """Time plain steps (under "plain") and steps after so many tasks (under their number)."""
    build, shape, size = CASES[case]
    x, y = batch(shape, size)
    sides = {"plain": partial(step, plain(build()), x, y)}
    for tasks in past:
        net = with_past(APDNet(build(), **KINDS[kind]), tasks)
        if KINDS[kind].get("consolidate_every"):
            net.consolidate()
        sides[str(tasks)] = partial(step, begun(net, x), x, y)
    return alternate(sides, rounds, warm=2)


def main(past: Sequence[int] = PAST, rounds: int = 40) -> Section:
    tables, bars, numbers = [], [], {}
    first, last = str(past[0]), str(past[-1])
    for kind in KINDS:
        rows = []
        for case in CASES:
            # Short steps are noisier, and cheap to repeat.
            times = measure(case, kind, past, rounds * (5 if case == MLP else 1))
            ratios = [over(times, str(tasks), "plain") for tasks in past]
            flat = over(times, last, first)
            numbers[f"{case}, plain, ms"] = 1e3 * median(times, "plain")
            numbers |= {f"{case}, {kind}, {n}": r for n, r in zip(past, ratios, strict=True)}
            bars.append(Bar(f"step, {kind}, {case}: worst over plain", max(ratios), LIMITS[case]))
            bars.append(Bar(f"step, {kind}, {case}: with {last} over with {first}", flat, FLAT))
            shown = [f"{r:.2f}" for r in ratios]
            rows.append([case, f"{1e3 * median(times, 'plain'):.2f}", *shown, f"{flat:.2f}"])
        columns = ["network", "plain, ms", *map(str, past), f"{last} over {first}"]
        tables.append(Table(f"{kind}: step over the plain step, by past tasks", columns, rows))
    return Section(tables, bars, numbers)


if __name__ == "__main__":
    print(main())
