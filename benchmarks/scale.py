"""From constants of this machine to a million tasks, a billion weights and a hundred workers.

Measured are time and bytes for each stored number, bytes in training for each weight, and bytes of
a file's list for each task. They multiply out, and what breaks first is the need that exceeds one
such machine the most times. It may take an hour for what is done once a task and a second for what
a user waits for, and its disk holds a terabyte.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median

import numpy as np
import torch
from scipy.sparse import csr_matrix
from sklearn.cluster import MiniBatchKMeans

from benchmarks._document import Section, Table
from benchmarks._measure import seconds
from benchmarks._past import DENSITY, with_past
from benchmarks.methods import peak, rows
from sigmatau import APDNet, backbones
from sigmatau.core import container
from sigmatau.core.archive import to_records
from sigmatau.core.container import MAX_HEADER, pack, unpack
from sigmatau.core.retroactive import PastTasks, SharedPenalty

LENET_WEIGHTS = 3_000_000


@dataclass(frozen=True)
class Need:
    """What a plan takes of something, and what one machine like this has of it."""

    what: str
    need: float
    has: float
    unit: str

    @property
    def times(self) -> float:
        return self.need / self.has

    def row(self) -> list[str]:
        return [
            self.what,
            shown(self.need, self.unit),
            shown(self.has, self.unit),
            f"{self.times:.2g}",
        ]


def shown(value: float, unit: str) -> str:
    """Write a quantity for people."""
    if unit == "s":
        for size, name in ((86400 * 365, "years"), (86400, "days"), (3600, "h"), (60, "min")):
            if value >= size:
                return f"{value / size:,.1f} {name}"
        return f"{value:.2g} s"
    for power, name in ((1e15, "PB"), (1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if value >= power:
            return f"{value / power:,.1f} {name}"
    return f"{value:.0f} B"


def constants(tasks: int = 20, rounds: int = 5, width: int = 512) -> dict[str, float]:
    """Measure what the plans are reckoned with, per stored number, weight or task."""
    net = with_past(APDNet(backbones.mlp((784,), 10, (width, width)), l1=4e-4), tasks)
    state, weights = net._memory.state, sum(w.size for w in net.layout.weights)
    records, _ = to_records(state)
    record = records["task/0"]
    assert isinstance(record, dict)
    packed, nonzeros = pack(record), state.tasks["0"]().nonzeros
    data = packed.read()

    def timed(work: Callable[[], object], count: float) -> float:
        return 1e9 * median(seconds(work) for _ in range(rounds)) / count

    pasts = [
        PastTasks(
            w,
            [part().deltas[w.name] for part in state.tasks.values()],
            [part().masks[w.name] for part in state.tasks.values()],
            4e-4,
            100.0,
        )
        for w in net.layout.weights
    ]
    x, y = rows(-1, (784,), 2)
    listed = [len(container._header({str(i): packed for i in range(n)}, {})) for n in (100, 1100)]
    every = nonzeros * tasks
    return {
        "bytes of file a stored number": packed.size / nonzeros,
        "bytes of memory a stored number": 8.0,
        "ns to write a stored number": timed(partial(pack, record), nonzeros),
        "ns to read a stored number": timed(partial(unpack, data), nonzeros),
        "ns to begin a task, a stored number": timed(
            lambda: [SharedPenalty.retroactive(past) for past in pasts], every
        ),
        "ns to end a task, a stored number": timed(
            lambda: net._rewritten(state, state.shared()), every
        ),
        "ns to consolidate a stored number": timed(lambda: net._grouped(state), every),
        "ns of mini-batch K-means, a stored number and centre": clustering(rounds),
        "bytes in training a weight": peak(net, x, y) / weights,
        "bytes of a file's list a task": (listed[1] - listed[0]) / 1000,
        "ns to compose a weight": timed(
            lambda: net._compose(state, "1", net._network("0")), weights
        ),
    }


def clustering(rounds: int, batch: int = 256, width: int = 65536, centres: int = 32) -> float:
    """Return the ns that a mini-batch of sparse rows takes, by its nonzeros and the centres."""
    rng = np.random.default_rng(0)
    each = int(DENSITY * width)
    index = np.concatenate([np.sort(rng.choice(width, each, replace=False)) for _ in range(batch)])
    data = rng.standard_normal(batch * each).astype(np.float32)
    matrix = csr_matrix((data, index, np.arange(batch + 1) * each), shape=(batch, width))
    model = MiniBatchKMeans(centres, batch_size=batch, n_init=1, random_state=0)
    model.partial_fit(matrix)
    spent = median(seconds(partial(model.partial_fit, matrix)) for _ in range(rounds))
    return 1e9 * spent / (batch * each * centres)


def memory() -> float:
    return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


def million_tasks(c: dict[str, float], tasks: float, groups: float) -> list[Need]:
    """Reckon with many tasks of LeNet, each with 3 % of its weights."""
    stored = tasks * DENSITY * LENET_WEIGHTS
    batch = 1024 * DENSITY * LENET_WEIGHTS
    hour = 3600.0
    return [
        Need("file", stored * c["bytes of file a stored number"], 1e12, "B"),
        Need("list of the file", tasks * c["bytes of a file's list a task"], MAX_HEADER, "B"),
        Need(
            "deltas in memory, to learn with l1",
            stored * c["bytes of memory a stored number"],
            memory(),
            "B",
        ),
        Need(
            "beginning a task with l1",
            1e-9 * stored * c["ns to begin a task, a stored number"],
            hour,
            "s",
        ),
        Need(
            "ending a task with l1",
            1e-9 * stored * c["ns to end a task, a stored number"],
            hour,
            "s",
        ),
        Need("beginning and ending with a budget", 0.0, hour, "s"),
        Need(
            "first prediction of a task",
            1e-9 * DENSITY * LENET_WEIGHTS * c["ns to read a stored number"]
            + 1e-9 * LENET_WEIGHTS * c["ns to compose a weight"],
            1.0,
            "s",
        ),
        Need(
            f"one pass of mini-batch K-means, {groups:.0f} groups",
            1e-9 * stored * groups * c["ns of mini-batch K-means, a stored number and centre"],
            hour,
            "s",
        ),
        Need(f"its centres, {groups:.0f} groups, dense", 4 * groups * LENET_WEIGHTS, memory(), "B"),
        Need("a mini-batch of 1,024 tasks", batch * 8, memory(), "B"),
    ]


def billion_weights(c: dict[str, float], weights: float, density: float) -> list[Need]:
    """Reckon with a backbone of so many weights, and 100 tasks of so large a share each."""
    stored = 100 * density * weights
    return [
        Need("training a task with l1", weights * c["bytes in training a weight"], memory(), "B"),
        Need("serving: one network and the shared part", 8 * weights, memory(), "B"),
        Need(
            "one task in the file",
            density * weights * c["bytes of file a stored number"],
            1e12,
            "B",
        ),
        Need("switching to a task", 1e-9 * weights * c["ns to compose a weight"], 1.0, "s"),
        Need("100 deltas in memory", stored * c["bytes of memory a stored number"], memory(), "B"),
        Need(
            "ending a task after 100",
            1e-9 * stored * c["ns to end a task, a stored number"],
            3600.0,
            "s",
        ),
        Need(
            "consolidating 100 tasks",
            1e-9 * stored * c["ns to consolidate a stored number"],
            3600.0,
            "s",
        ),
    ]


def workers(c: dict[str, float], count: float, tasks: float) -> list[Need]:
    """Reckon with the million tasks cut by tasks over many workers, each like this machine."""
    stored = tasks * DENSITY * LENET_WEIGHTS / count
    wire = 1.25e9  # bytes a second of a 10 Gbit network
    return [
        Need("deltas in a worker's memory", 8 * stored, memory(), "B"),
        Need("file of a worker", stored * c["bytes of file a stored number"], 1e12, "B"),
        Need(
            "list of a worker's file",
            tasks / count * c["bytes of a file's list a task"],
            MAX_HEADER,
            "B",
        ),
        Need(
            "ending a task with l1",
            1e-9 * stored * c["ns to end a task, a stored number"],
            3600.0,
            "s",
        ),
        Need(
            "reading all deltas once over 10 Gbit/s",
            stored * c["bytes of file a stored number"] / wire,
            3600.0,
            "s",
        ),
        Need(
            "summing the curves of all workers, three tensors", 12 * LENET_WEIGHTS / wire, 3600, "s"
        ),
        Need(
            "one pass of mini-batch K-means, 1000 groups",
            1e-6 * stored * c["ns of mini-batch K-means, a stored number and centre"],
            3600.0,
            "s",
        ),
    ]


def table(title: str, needs: Sequence[Need]) -> Table:
    """Return the needs as a table, whose title names the one that breaks first."""
    worst = max(needs, key=lambda need: need.times)
    over = f"breaks first: {worst.what}" if worst.times > 1 else "nothing breaks"
    columns = ["what", "needs", "one machine has", "times"]
    return Table(f"{title} ({over})", columns, [need.row() for need in needs])


def main(rounds: int = 5, tasks: int = 20, width: int = 512) -> Section:
    found = constants(tasks, rounds, width)
    told = Table("Constants", ["what", "measured"], [[k, f"{v:.3g}"] for k, v in found.items()])
    tables = [
        told,
        table("A million tasks on LeNet, in one process", million_tasks(found, 1e6, 1000)),
        table("A thousand tasks on LeNet, in one process", million_tasks(found, 1e3, 400)),
        table("A billion weights, 3 % a task", billion_weights(found, 1e9, DENSITY)),
        table("A billion weights, 0.1 % a task", billion_weights(found, 1e9, 0.001)),
        table("A million tasks on LeNet, over a hundred workers", workers(found, 100, 1e6)),
    ]
    return Section(tables, numbers=found)


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(main())
