"""Consolidating 100 LeNet tasks into 40 groups, against epochs of one task.

Deltas of 3 % at random places have nothing in common, which is the most work: none of it goes away
by merging. 40 groups are what APD(2) of the paper has after 100 tasks, two more every five tasks.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from benchmarks._document import Bar, Section, Table
from benchmarks._measure import alternate, median, over
from benchmarks._past import CASES, DENSITY, LENET, batch, begun, with_past
from benchmarks.ending import epoch
from sigmatau import APDNet
from sigmatau.data import TensorBatches

LIMIT = 5.0


def main(tasks: int = 100, groups: int = 40, rows: int = 4000, rounds: int = 3) -> Section:
    build, shape, size = CASES[LENET]
    x, y = batch(shape, rows)
    net = with_past(APDNet(build(), l1=4e-4, groups=groups), tasks)
    state = net._memory.state
    sides: dict[str, Callable[[], object]] = {
        "epoch": partial(epoch, begun(net, x), TensorBatches(x, y, size)),
        "consolidation": partial(net._grouped, state),
    }
    times = alternate(sides, rounds)
    ratio, taken = over(times, "consolidation", "epoch"), median(times, "consolidation")
    nonzeros = tasks * DENSITY * sum(w.size for w in net.layout.weights)
    row = [str(tasks), str(groups), f"{taken:.1f}", f"{median(times, 'epoch'):.1f}", f"{ratio:.2f}"]
    columns = ["tasks", "groups", "consolidation, s", "epoch, s", "ratio"]
    numbers = {"ratio": ratio, "ns a nonzero": 1e9 * taken / nonzeros}
    return Section(
        [Table("", columns, [row])],
        [Bar(f"consolidation of {tasks} tasks, in epochs of one", ratio, LIMIT)],
        numbers,
    )


if __name__ == "__main__":
    print(main())
