"""The peak memory of learning a task after 99 others, over that of learning the first.

Each is learnt in a fresh process, from a file of its past tasks, for one epoch of 4,000 rows of
3x32x32 with validation, on LeNet 20-50-800-500. "Learning" is the peak over what the process held
with libraries and data loaded; "process" is the whole. While a task ends, past tasks are there
twice, as they were and as they become: the sparse deltas count both.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks._document import Bar, Section, Table
from benchmarks._measure import Peak, in_fresh_process
from benchmarks._past import batch, with_past
from sigmatau import APDNet, backbones
from sigmatau.core.state import APDState

LIMIT = 1.1
KINDS: dict[str, dict[str, Any]] = {"l1 = 4e-4": {"l1": 4e-4}, "budget = 3 %": {"budget": 0.03}}


def deltas(*states: APDState) -> int:
    """Return the bytes of the sparse deltas of all tasks, counting what states share once."""
    found = {
        id(delta): delta.nbytes
        for state in states
        for part in state.tasks.values()
        for delta in part().deltas.values()
    }
    return sum(found.values())


def learn(path: str | None, settings: Mapping[str, Any], rows: int) -> dict[str, int]:
    """Learn one more task; to be called in a process of its own."""
    x, y = batch((3, 32, 32), rows)
    check = (x[: rows // 8], y[: rows // 8])
    # Libraries that load when first used belong to the process, not to the task.
    APDNet(backbones.lenet((3, 8, 8), 10, (2, 2, 2, 2)), epochs=1).learn(
        "warm", (x[:4, :, :8, :8], y[:4]), progress=False
    )
    with Peak() as held:
        backbone = backbones.lenet()
        chosen = {"epochs": 1, "batch_size": 100, **settings}
        net = APDNet.load(path, backbone) if path else APDNet(backbone, **chosen)
        before = net._memory.state
        net.learn("new", (x, y), check, progress=False)
    sparse = deltas(before, net._memory.state)
    return {"learning": held.extra, "process": held.peak, "deltas": sparse}


def main(tasks: Sequence[int] = (1, 2, 10, 100), rows: int = 4000) -> Section:
    tables, bars, numbers = [], [], {}
    for kind, settings in KINDS.items():
        found: dict[int, dict[str, int]] = {}
        with tempfile.TemporaryDirectory() as folder:
            for number in tasks:
                path = None
                if number > 1:
                    chosen = {"epochs": 1, "batch_size": 100, **settings}
                    path = str(Path(folder) / f"{number}.st")
                    with_past(APDNet(backbones.lenet(), **chosen), number - 1).save(path)
                found[number] = in_fresh_process("memory.learn", path, settings, rows)
        first, last = found[tasks[0]], found[tasks[-1]]
        ratio = (last["process"] - last["deltas"]) / first["process"]
        told = f"peak memory, {kind}: task {tasks[-1]} without the deltas over task {tasks[0]}"
        bars.append(Bar(told, ratio, LIMIT))
        numbers[f"{kind}, process"] = ratio
        numbers[f"{kind}, learning"] = (last["learning"] - last["deltas"]) / first["learning"]
        rows_ = [
            [str(number), *(f"{got[k] / 2**20:.0f}" for k in ("process", "learning", "deltas"))]
            for number, got in found.items()
        ]
        columns = ["task", "process, MiB", "learning, MiB", "sparse deltas, MiB"]
        tables.append(Table(f"APD, {kind}: peak memory", columns, rows_))
    return Section(tables, bars, numbers)


if __name__ == "__main__":
    print(main())
