"""Result folders as they are read: what finished, what failed, what is under way, what is missing.

Nothing here fails over one bad cell: a file that cannot be read becomes a failed run that says so,
because a report that hides a cell is worse than one that shows a broken one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sigmatau.errors import ConfigError, FileError
from sigmatau.experiment.config import Cell, Recipe

State = Literal["done", "failed", "unfinished", "missing"]


class Forgetting(BaseModel):
    """How much was lost of earlier tasks, as fractions."""

    average: float
    worst: float


class Stored(BaseModel):
    """Capacity in three ways, as fractions of one base network."""

    paper: float
    strict: float
    bytes: float
    beside: float = 0.0


class Drop(BaseModel):
    """A task dropped after `step` tasks, and every task's score before and after."""

    step: int
    task: str
    before: dict[str, float]
    after: dict[str, float | None]

    @property
    def moved(self) -> float:
        """Return the largest change of another task; one that is gone too has moved by all."""
        others = [(score, self.after.get(t)) for t, score in self.before.items() if t != self.task]
        return max((1.0 if now is None else abs(now - was) for was, now in others), default=0.0)


class Result(BaseModel):
    """What a report needs of `result.json`; whatever else is there is kept too."""

    model_config = ConfigDict(extra="allow")

    stream: str
    method: str
    order: str | list[int]
    seed: int
    label: str = ""
    task_names: list[str] = Field(min_length=1)
    accuracy_matrix: list[list[float | None]] = Field(min_length=1)
    average_accuracy: float
    forgetting: Forgetting
    capacity: Stored
    final: dict[str, float]
    capacity_curve: list[float] = []
    growth: dict[str, float] | list[float] = []
    seconds: float
    seconds_per_task: dict[str, float] | list[float] = []
    config: dict[str, Any] = {}
    versions: dict[str, Any] = {}
    machine: dict[str, Any] = {}
    drops: list[Drop] = []
    metric: str = "accuracy"
    notes: list[str] = []

    @property
    def processor(self) -> str:
        """What it was trained on."""
        return str(self.machine.get("cuda") or self.machine.get("cpu", "?"))

    @property
    def task_seconds(self) -> list[float]:
        """The time of each task; the mean, where a file does not tell them apart."""
        each = self.seconds_per_task
        told = list(each.values()) if isinstance(each, dict) else each
        return told or [self.seconds / len(self.task_names)]


class Point(BaseModel):
    """Where a task's parameters (or, with no task, the shared ones) lay after a step."""

    task: str | None
    step: int
    x: float
    y: float


class Drift(BaseModel):
    """The content of a cell's `parameters.json`."""

    explained: list[float]
    points: list[Point]


@dataclass(frozen=True)
class Key:
    """What makes a cell the one it is."""

    stream: str
    label: str
    order: str
    seed: int


@dataclass(frozen=True)
class Run:
    """One cell of a results folder."""

    id: str
    key: Key
    method: str
    state: State
    result: Result | None = None
    trace: str = ""
    drift: Drift | None = None
    cell: Cell | None = None

    @property
    def config(self) -> Mapping[str, Any]:
        """Return what the run was made with; what was asked for, if it is not finished."""
        if self.result is not None:
            return self.result.config
        return {} if self.cell is None else self.cell.same_work()

    @property
    def done(self) -> Result:
        """Return the result of a finished run."""
        assert self.result is not None, f"{self.id} is {self.state}"
        return self.result


@dataclass
class Results:
    """All runs of one or more folders, with notes on what the reader should know."""

    runs: list[Run] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def streams(self) -> list[str]:
        return list(dict.fromkeys(run.key.stream for run in self.runs))

    def of(self, stream: str, state: State | None = None) -> list[Run]:
        return [r for r in self.runs if r.key.stream == stream and state in (None, r.state)]


def read(folders: Sequence[Path], recipe: Recipe | None = None) -> Results:
    """Read result folders; cells that a recipe asks for and nobody ran count as missing.

    A `recipe` takes the place of the folders' own; with one, a folder may be empty or not there.
    """
    results = Results()
    seen: dict[Key, str] = {}
    wanted = {} if recipe is None else {cell.id: cell for cell in recipe.cells()}
    for folder in folders:
        cells = folder / "cells"
        if not cells.is_dir() and recipe is not None:
            continue
        if not cells.is_dir():
            raise FileError(
                f"{folder} holds no results: give a folder that `sigmatau run` or `sigmatau grid` "
                "wrote (it has a folder `cells` in it)"
            )
        if recipe is None and (folder / "recipe.yaml").exists():
            wanted |= {cell.id: cell for cell in Recipe.read(folder / "recipe.yaml").cells()}
        for path in sorted(p for p in cells.iterdir() if p.is_dir()):
            run = _run(path, wanted.get(path.name))
            if run is None:
                results.notes.append(f"{path.name} in {folder.name} holds no cell: left out")
            elif run.key in seen:
                results.notes.append(
                    f"{path.name} in {folder.name} is the same cell as one in {seen[run.key]}: "
                    "the first is shown"
                )
            else:
                seen[run.key] = folder.name
                results.runs.append(run)
    results.runs += _missing(wanted.values(), results.runs)
    if not results.runs:
        raise FileError(f"no cell in {', '.join(map(str, folders))} was started yet: run one first")
    return results


def _run(path: Path, cell: Cell | None) -> Run | None:
    trace = ""
    if (path / "result.json").exists():
        try:
            result = Result.model_validate_json((path / "result.json").read_bytes())
        except (ValidationError, OSError) as error:
            trace = f"result.json is unusable, delete it and run the cell again: {error}"
        else:
            # A row may be renamed in the recipe after it was run.
            label = cell.label if cell else result.label or result.method
            key = _key(result.stream, label, result.order, result.seed)
            drift, told = _drift(path)
            return Run(path.name, key, result.method, "done", result, told, drift, cell)
    failure, config = _json(path / "failure.json"), _json(path / "config.json")
    if failure and not trace:
        trace = str(failure.get("trace") or failure.get("error") or failure)
    # A recipe knows a cell's label; after it the files of the cell do.
    given = next((g["cell"] for g in (failure, config) if isinstance(g.get("cell"), dict)), None)
    try:
        cell = cell or (None if given is None else Cell.of(given))
    except ConfigError as error:
        trace = f"{trace}\nconfig.json is unusable: {error}"
    if cell is None:
        return None
    key = _key(cell.stream, cell.label, cell.order, cell.seed)
    state: State = "failed" if trace else "unfinished"
    return Run(path.name, key, cell.method, state, trace=trace, cell=cell)


def _key(stream: str, label: str, order: str | list[int], seed: int) -> Key:
    named = order if isinstance(order, str) else "-".join(map(str, order))
    return Key(stream, label, named, seed)


def _json(path: Path) -> dict[str, Any]:
    """Return what a file holds; nothing if it is not there or damaged."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _drift(path: Path) -> tuple[Drift | None, str]:
    file = path / "parameters.json"
    if not file.exists():
        return None, ""
    try:
        return Drift.model_validate_json(file.read_bytes()), ""
    except (ValidationError, OSError) as error:
        return None, f"parameters.json is unusable: {error}"


def _missing(cells: Iterable[Cell], runs: Iterable[Run]) -> list[Run]:
    """Return the cells that nobody started: of the recipes, and the holes in what was run.

    A hole is an order and a seed that a label has elsewhere, but not together.
    """
    runs = list(runs)
    asked = {_key(c.stream, c.label, c.order, c.seed): c for c in cells}
    wanted = {key: cell.method for key, cell in asked.items()}
    grids: dict[tuple[str, str, str], list[Key]] = {}
    for run in runs:
        grids.setdefault((run.key.stream, run.key.label, run.method), []).append(run.key)
    for (stream, label, method), keys in grids.items():
        for order, seed in product({k.order: 0 for k in keys}, {k.seed: 0 for k in keys}):
            wanted.setdefault(Key(stream, label, order, seed), method)
    there = {run.key for run in runs}
    return [
        Run(f"{key.label}-{key.order}-{key.seed}", key, method, "missing", cell=asked.get(key))
        for key, method in wanted.items()
        if key not in there
    ]
