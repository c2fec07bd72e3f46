"""One cell from beginning to end: every task learnt in turn, all of them scored, one result.

A cell is a loop over tasks that does what is not done yet; started again after a crash it finds the
network, the scores and the training under way as they were, and goes on to the same bits.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from sigmatau import methods, metrics
from sigmatau.capacity import Capacity
from sigmatau.cpu import fast_cpu
from sigmatau.errors import ConfigError, FileError, SigmatauError
from sigmatau.experiment.build import Plan
from sigmatau.experiment.checkpoint import Checkpoint, Recorder, Scores
from sigmatau.experiment.config import Cell
from sigmatau.experiment.files import FORMAT, locked, make_folder, read_json, write_json
from sigmatau.experiment.precision import settled
from sigmatau.experiment.provenance import machine, versions
from sigmatau.methods.learnt import Report
from sigmatau.report import drift
from sigmatau.streams.base import Pair
from sigmatau.training import Hook, State

if TYPE_CHECKING:
    from lightning_fabric import Fabric


class Stopped(Exception):
    """Raised by a listener to end a cell before its time; it is no failure."""


Listener = Callable[[int, float, float], None]


def run_cell(
    cell: Cell,
    folder: str | Path,
    *,
    root: str | Path | None = None,
    hooks: Iterable[Hook] = (),
    told: Listener = lambda learnt, score, capacity: None,
) -> dict[str, Any] | None:
    """Run a cell in its own folder and return its result; None if another process is at it.

    A finished cell is not run again. A failure is recorded in the folder, and raised. `told` hears
    after each task how many are learnt, their mean score and the capacity.
    """
    folder = make_folder(Path(folder))
    cell = settled(cell, folder)
    if (done := finished(cell, folder)) is not None:
        return done
    with locked(folder / "lock") as mine:
        if not mine:
            return None
        if (done := finished(cell, folder)) is not None:  # while the lock was taken
            return done
        (folder / "failure.json").unlink(missing_ok=True)
        try:
            with fast_cpu(), _threads(cell.threads_each):
                return _Run(cell, folder, Path(root) if root else None, hooks, told).go()
        except Stopped:
            for path in [folder / "status.json", *folder.glob("*.st")]:
                path.unlink(missing_ok=True)
            raise
        except Exception as error:
            record_failure(cell, folder, f"{type(error).__name__}: {error}")
            raise
        finally:
            (folder / "lock").unlink(missing_ok=True)


def follow(cell: Cell, folder: Path, root: Path | None, connect: Callable[[], Fabric]) -> None:
    """Learn a cell along with the process that leads it; see `ranks`."""
    with fast_cpu(), _threads(cell.threads_each):
        _Run(cell, folder, root, (), lambda learnt, score, capacity: None).follow(connect)


def finished(cell: Cell, folder: Path) -> dict[str, Any] | None:
    """Return the result in a folder, if there is one; refuse a folder of something else."""
    about = read_json(folder / "config.json")
    if about is None:
        if (folder / "result.json").exists():
            raise FileError(f"{folder} has a result but no config.json: restore or delete it")
        return None
    if not isinstance(about, dict) or about.get("format") != FORMAT:
        told = about.get("format") if isinstance(about, dict) else None
        raise FileError(
            f"{folder} is of results format {told}, and this sigmatau writes format {FORMAT}: use "
            "the version that wrote it, or another --out"
        )
    wanted, there = settled(cell, folder).same_work(), Cell.of(about["cell"]).same_work()
    if different := [k for k in wanted if wanted[k] != there[k]]:
        told = ", ".join(f"{k}: {there[k]} there, {wanted[k]} now" for k in different)
        raise ConfigError(f"{folder} holds another cell ({told}): give another --out")
    result: dict[str, Any] | None = read_json(folder / "result.json")
    return result


def record_failure(cell: Cell, folder: Path, why: str) -> None:
    """Leave a note of what went wrong; on a full disk there is nowhere to leave it."""
    trace = traceback.format_exc()
    about = {"cell": cell.model_dump(mode="json"), "error": why, "trace": trace}
    with contextlib.suppress(SigmatauError):
        write_json(folder / "failure.json", {**about, "time": time.time()})
    (folder / "status.json").unlink(missing_ok=True)


class _Run:
    def __init__(
        self, cell: Cell, folder: Path, root: Path | None, hooks: Iterable[Hook], told: Listener
    ) -> None:
        self.cell, self.folder, self.root, self.hooks = cell, folder, root, tuple(hooks)
        self.plan = Plan(cell, root)
        self.method = self.plan.method()
        self.resolved = self.plan.resolved(self.method)
        self.base = self.plan.base()
        self._capacity()  # a base that does not fit is refused before anything is learnt
        self.tests: dict[int, Pair] = {}
        self.began, self.beaten = time.time(), 0.0
        self.overhead, self.told = 0.0, told
        self.fabric: Fabric | None = None

    def go(self) -> dict[str, Any]:
        if not self.cell.parallel:
            return self._lead()
        from sigmatau.experiment.ranks import started

        with started(self.cell, self.folder, self.root) as self.fabric:
            return self._lead()

    def follow(self, connect: Callable[[], Fabric]) -> None:
        kept = self._taken_up()
        self.fabric = connect()
        for place in range(len(kept.progress.rows), len(self.plan.names)):
            if place >= kept.learnt:
                self._teach(place, kept.state, ())
                kept.state = None
            for dropped in self.plan.drops.get(place + 1, []):
                self.method.forget(dropped)

    def _taken_up(self) -> Checkpoint:
        """Read how far the cell is."""
        kept = Checkpoint(self.folder, self.resolved, self.cell.checkpoint_seconds)
        kept.load()
        if kept.learnt:
            self.method = methods.load(kept.network, self.plan.backbone())
        for name in kept.progress.dropped:
            if name in self.method.tasks:  # it was forgotten after the network was saved
                self.method.forget(name)
        return kept

    def _lead(self) -> dict[str, Any]:
        cell, folder, names = self.cell, self.folder, self.plan.names
        about = {"format": FORMAT, "cell": cell.model_dump(mode="json"), "resolved": self.resolved}
        write_json(folder / "config.json", {**about, "versions": versions()})
        kept = self._taken_up()
        kept.trim()
        for place in range(len(kept.progress.rows), len(names)):
            self._learn(place, kept)
            self._measure(place, kept)
            scores = [score for score in kept.progress.rows[-1] if score is not None]
            self.told(place + 1, float(np.mean(scores)), kept.progress.capacity[-1])
        result = self._result(kept)
        if cell.trace:
            drift.write(folder, kept.traces)
        write_json(folder / "result.json", result)
        kept.clear()
        (folder / "status.json").unlink(missing_ok=True)
        return result

    def _learn(self, place: int, kept: Checkpoint) -> None:
        if place < kept.learnt:  # it was killed before the scores were taken
            return
        told = Recorder(
            kept, self.method, place, lambda epoch, epochs: self._beat(place, epoch, epochs)
        )
        report = self._teach(place, kept.state, (told, *self.hooks))
        ran = report.epochs[0 if kept.state is None else len(kept.state["epochs"]) :]
        self.overhead = report.seconds - sum(epoch.seconds for epoch in ran)
        kept.state = None
        kept.save(self.method, place + 1, None)

    def _teach(self, place: int, resume: State | None, hooks: Iterable[Hook]) -> Report:
        task = self.plan.task(place)
        self.tests[place] = task.test
        return self.method.learn(
            self.plan.names[place],
            task.train,
            task.val,
            outputs=len(task.classes),
            metric=self.plan.metric,
            hooks=hooks,
            progress=False,
            resume=resume,
            fabric=self.fabric,
        )

    def _measure(self, place: int, kept: Checkpoint) -> None:
        progress, names = kept.progress, self.plan.names
        share = 1.0 if self.base is None else self.method.layout.size / _size(self.base)
        progress.growth.append(self.method.infos[names[place]].growth * share)
        drops = self.plan.drops.get(place + 1, [])
        all_of_them = self.cell.evaluate == "all" or drops or place == len(names) - 1
        scores = self._scores(place, 0 if all_of_them else place)
        for dropped in drops:
            self.method.forget(dropped)
            after = self._scores(place, 0)
            told = {"step": place + 1, "task": dropped, "before": scores, "after": after}
            progress.drops.append(told)
            scores = after
        progress.rows.append(scores)
        progress.capacity.append(self._capacity().paper)
        progress.overhead.append(self.overhead)
        self.overhead = 0.0
        if self.cell.trace:
            kept.traces.append({n: self._vector(n) for n in self.method.tasks})
            if len({v.numel() for trace in kept.traces for v in trace.values()}) > 1:
                raise ConfigError(f"{self.cell.method} grows its network: trace cannot compare it")

    def _scores(self, place: int, first: int) -> Scores:
        """Score the tasks from place `first` to `place`; None for those that are not there."""
        scores: Scores = [None] * len(self.plan.names)
        for k in range(first, place + 1):
            name = self.plan.names[k]
            if name in self.method.tasks:
                scores[k] = self.method.evaluate(name, self._test(k), self.plan.metric)
        return scores

    def _test(self, place: int) -> Pair:
        # Kept, since each is used again after every later task and building one may be slow.
        if place not in self.tests:
            self.tests[place] = self.plan.task(place).test
        return self.tests[place]

    def _capacity(self) -> Capacity:
        return self.method.capacity(self.base)

    def _vector(self, task: str) -> torch.Tensor:
        """Return the trunk's weights for a task, end to end."""
        network = self.method.export(task)
        head = self.method.layout.head
        trunk = [p for n, p in network.named_parameters() if not n.startswith(f"{head}.")]
        return torch.cat([p.detach().reshape(-1) for p in trunk])

    def _beat(self, place: int, epoch: int, epochs: int) -> None:
        """Tell whoever looks where we are, at most every two seconds."""
        if time.monotonic() - self.beaten < 2:
            return
        self.beaten = time.monotonic()
        status = {
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "task": place + 1,
            "tasks": len(self.plan.names),
            "epoch": epoch + 1,
            "epochs": epochs,
            "began": self.began,
            "time": time.time(),
        }
        with contextlib.suppress(FileError):  # a training does not end over a sign of life
            write_json(self.folder / "status.json", status, durable=False)

    def _digest(self) -> dict[str, Any]:
        """Return what tells two networks apart to the last bit."""
        path = self.folder / "network.st"
        size = self.method.save(path)
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        path.unlink()
        return {"bytes": size, "sha256": digest}

    def _result(self, kept: Checkpoint) -> dict[str, Any]:
        cell, plan, progress = self.cell, self.plan, kept.progress
        last = progress.rows[-1]
        stays = [i for i, score in enumerate(last) if score is not None]
        # Scores that were not taken cannot be the best ones.
        matrix = np.array([[-np.inf if s is None else s for s in row] for row in progress.rows])
        square = matrix[np.ix_(stays, stays)]
        seconds = list(progress.overhead)
        for line in kept.lines:
            seconds[line["place"]] += line["seconds"]
        return {
            "format": FORMAT,
            "stream": cell.stream,
            "method": cell.method,
            "order": cell.order,
            "seed": cell.seed,
            "label": cell.label,
            "metric": plan.stream.metric,
            "task_names": plan.names,
            "accuracy_matrix": progress.rows,
            "average_accuracy": metrics.average_accuracy(square),
            "forgetting": {
                "average": metrics.average_forgetting(square),
                "worst": metrics.worst_forgetting(square),
            },
            "final": {plan.names[i]: last[i] for i in stays},
            "capacity": asdict(self._capacity()),
            "capacity_curve": progress.capacity,
            "growth": dict(zip(plan.names, progress.growth, strict=True)),
            "drops": [
                {**drop, **{k: _named(plan.names, drop[k]) for k in ("before", "after")}}
                for drop in progress.drops
            ],
            "steps": sum(line["steps"] for line in kept.lines),
            "seconds": sum(seconds),
            "seconds_per_task": seconds,
            "network": self._digest(),
            "notes": list(plan.stream.notes),
            "config": self.resolved,
            "versions": versions(),
            "machine": machine(cell.accelerator),
        }


def _size(network: nn.Module) -> int:
    return sum(p.numel() for p in network.parameters())


def _named(names: list[str], scores: Scores) -> dict[str, float]:
    return {n: s for n, s in zip(names, scores, strict=True) if s is not None}


@contextlib.contextmanager
def _threads(count: int) -> Iterator[None]:
    """Compute with so many threads: how sums are split among threads changes their last bits."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
