"""All cells of a recipe: what is finished stays, what is not is run, what fails is told."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import yaml

from sigmatau.experiment.config import Cell, Recipe
from sigmatau.experiment.engines import Engine, Job, Outcome
from sigmatau.experiment.files import make_folder
from sigmatau.experiment.trackers import known
from sigmatau.files import put


@dataclass(frozen=True)
class Summary:
    """What a grid came to."""

    before: int
    done: int
    failed: tuple[Outcome, ...]
    taken: int = 0

    def __str__(self) -> str:
        taken = f", {self.taken} taken over" if self.taken else ""
        failed = f", {len(self.failed)} failed" if self.failed else ""
        there = self.before + self.taken + self.done
        return f"{there} cells finished ({self.before} of them before{taken}){failed}"


def cell_folder(out: str | Path, cell: Cell) -> Path:
    """Return where a cell's files are in a results folder."""
    return Path(out) / "cells" / cell.id


def check(cells: Iterable[Cell], root: str | Path | None = None) -> None:
    """Build one cell of every row, so that what cannot run is told before anything does."""
    from sigmatau.experiment.build import Plan
    from sigmatau.experiment.precision import settled

    seen: set[tuple[str, str]] = set()
    for cell in map(settled, cells):
        if cell.parallel:
            import_module("sigmatau.experiment.ranks")  # to see that it has what it needs
        if (key := (cell.name, str(cell.order))) not in seen:
            plan = Plan(cell, Path(root) if root else None)
            if cell.name not in {name for name, _ in seen}:
                plan.resolved(plan.method())
            seen.add(key)


def run_grid(
    recipe: Recipe,
    out: str | Path,
    engine: Engine,
    *,
    cells: Sequence[Cell] | None = None,
    root: str | Path | None = None,
    trackers: Sequence[str] = (),
    reuse: Sequence[Path] = (),
    told: Callable[[Outcome], None] = lambda outcome: None,
    poll: float = 2.0,
) -> Summary:
    """Run the cells of a recipe (or those given) that are not finished yet, here or in `reuse`."""
    from sigmatau.experiment.cell import finished
    from sigmatau.experiment.reuse import take_over

    wanted = recipe.cells() if cells is None else list(cells)
    out = make_folder(Path(out))
    left = [c for c in wanted if finished(c, cell_folder(out, c)) is None]
    before = len(wanted) - len(left)
    check(left, root)
    known(trackers)
    where = None if root is None else Path(root).absolute()
    taken = take_over([(cell, cell_folder(out, cell)) for cell in left], reuse, where)
    left = [cell for cell in left if cell not in taken]
    plain = recipe.model_dump(mode="json", exclude_unset=True)
    put(out / "recipe.yaml", yaml.safe_dump(plain, sort_keys=False))
    data = None if where is None else str(where)
    jobs = [
        Job(cell, str(cell_folder(out, cell).absolute()), data, tuple(trackers)) for cell in left
    ]
    done, failed = 0, []
    while jobs:
        busy = []
        by_id = {job.cell.id: job for job in jobs}
        for outcome in engine.run(jobs):
            if outcome.state == "busy":
                busy.append(by_id[outcome.id])
                continue
            done += outcome.state == "done"
            if outcome.state == "failed":
                failed.append(outcome)
            told(outcome)
        # Another grid is at these: if it finishes them, good; if it dies, they are ours.
        jobs = busy
        if busy:
            time.sleep(poll)
    return Summary(before, done, tuple(failed), len(taken))
