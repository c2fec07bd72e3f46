"""Where cells run. An engine takes jobs and yields their outcomes as they come, in any order."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from sigmatau.experiment.config import Cell


@dataclass(frozen=True)
class Job:
    """A cell, the folder for its files, and the folder of the data."""

    cell: Cell
    folder: str
    root: str | None = None
    trackers: tuple[str, ...] = ()


@dataclass(frozen=True)
class Outcome:
    """How a job ended. `busy`: another process is at it, and will leave a result."""

    id: str
    state: Literal["done", "failed", "busy"]
    told: str = ""


class Engine(Protocol):
    """Runs jobs side by side."""

    workers: int

    def run(self, jobs: Sequence[Job]) -> Iterator[Outcome]: ...


def run_job(job: Job) -> dict[str, Any] | None:
    """Run a cell, with trackers if any are wanted."""
    from sigmatau.experiment.cell import run_cell
    from sigmatau.experiment.trackers import Tracked

    tracked = Tracked(job.trackers, Path(job.folder).parents[1], job.cell)
    try:
        told = tracked.task_ends
        return run_cell(job.cell, job.folder, root=job.root, hooks=[tracked], told=told)
    finally:
        tracked.close()


def attempt(job: Job) -> Outcome:
    """Run a cell; its failure is an outcome as well, so that the others go on."""
    try:
        result = run_job(job)
    except Exception as error:
        return Outcome(job.cell.id, "failed", f"{type(error).__name__}: {error}")
    if result is None:
        return Outcome(job.cell.id, "busy")
    forgot, capacity = result["forgetting"]["average"], result["capacity"]["paper"]
    return Outcome(
        job.cell.id,
        "done",
        f"{result['average_accuracy']:.4f}, forgetting {forgot:.4f}, capacity {capacity:.0%}, "
        f"{result['seconds']:.0f} s",
    )


def lost(job: Job, why: str) -> Outcome:
    """Record that a job's process was killed, which it could not do itself."""
    from sigmatau.experiment.cell import record_failure

    record_failure(job.cell, Path(job.folder), why)
    return Outcome(job.cell.id, "failed", why)


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
