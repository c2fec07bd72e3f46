"""How far the cells of a results folder are, read from its files: the live view and `status`."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from sigmatau.errors import ConfigError, FileError
from sigmatau.experiment.config import Cell, Recipe
from sigmatau.experiment.engines import Outcome
from sigmatau.experiment.files import read_json

SILENT = 600  # seconds without a sign of life after which a process elsewhere is given up
State = Literal["done", "running", "failed", "waiting"]


@dataclass(frozen=True)
class Standing:
    """Where one cell stands; `share` of it is done."""

    id: str
    state: State
    share: float = 0.0
    told: str = ""
    seconds: float | None = None  # done: what it took; running: since when
    time: float = 0.0


def standing(folder: Path) -> Standing:
    """Read where the cell in a folder stands."""
    name = folder.name
    try:
        result = read_json(folder / "result.json")
    except FileError as error:
        return Standing(name, "failed", 0.0, str(error))
    if result is not None:
        told = f"{result['average_accuracy']:.4f} at {result['capacity']['paper']:.0%}"
        written = (folder / "result.json").stat().st_mtime
        return Standing(name, "done", 1.0, told, result["seconds"], written)
    with contextlib.suppress(FileError):  # it may be replaced at this very moment
        if (failure := read_json(folder / "failure.json")) is not None:
            return Standing(name, "failed", 0.0, failure["error"], None, failure["time"])
        beat = read_json(folder / "status.json")
        if beat is not None:
            share = (beat["task"] - 1 + (beat["epoch"] - 1) / beat["epochs"]) / beat["tasks"]
            told = (
                f"task {beat['task']} of {beat['tasks']}, epoch {beat['epoch']} of {beat['epochs']}"
            )
            if _alive(beat):
                since = time.time() - beat["began"]
                return Standing(name, "running", share, told, since, beat["time"])
            return Standing(name, "waiting", share, f"stopped at {told}")
    return Standing(name, "waiting")


class Board:
    """All cells of a folder; what is done is read once."""

    def __init__(self, out: Path, ids: Sequence[str], workers: int | None = None) -> None:
        self.out, self.workers = out, workers
        self.cells = {name: Standing(name, "waiting") for name in ids}

    def look(self) -> None:
        """Read again whatever may have changed."""
        for name, before in self.cells.items():
            if before.state != "done":
                self.cells[name] = standing(self.out / "cells" / name)

    def count(self, state: State) -> int:
        return sum(cell.state == state for cell in self.cells.values())

    def left(self) -> float | None:
        """Estimate the seconds that are left, from what finished cells took."""
        took = [c.seconds for c in self.cells.values() if c.state == "done" and c.seconds]
        if not took:
            took = [
                c.seconds / c.share
                for c in self.cells.values()
                if c.state == "running" and c.seconds and c.share > 0.02
            ]
        if not took:
            return None
        shares = [1 - c.share for c in self.cells.values() if c.state in ("running", "waiting")]
        workers = self.workers or self.count("running") or 1
        return sum(shares) * sum(took) / len(took) / workers

    def render(self) -> Group:
        """Draw the state of affairs."""
        total = len(self.cells)
        table = Table("cell", "", "", box=None, pad_edge=False, show_header=False)
        marks: dict[State, str] = {"running": "cyan", "failed": "red", "done": "green"}
        latest = sorted(
            (c for c in self.cells.values() if c.state == "done"), key=lambda c: -c.time
        )
        shown = [
            *(c for c in self.cells.values() if c.state == "running"),
            *(c for c in self.cells.values() if c.state == "failed"),
            *latest[:5],
        ]
        for cell in shown[:30]:
            state = Text(cell.state, style=marks.get(cell.state, ""))
            table.add_row(Text(cell.id), state, Text(cell.told.splitlines()[0][:100]))
        left = self.left()
        line = ", ".join(f"{self.count(s)} {s}" for s in ("done", "running", "failed", "waiting"))
        if left is not None and self.count("done") < total:
            line += f"; about {_span(left)} left"
        done = sum(c.share for c in self.cells.values())
        bar = ProgressBar(total=max(total, 1), completed=done, width=60)
        top = Table.grid()
        top.add_row(bar)
        return Group(top, Text(f"{self.out}: {line}"), table)


@contextlib.contextmanager
def following(
    out: Path, cells: Sequence[Cell], workers: int
) -> Iterator[Callable[[Outcome], None]]:
    """Show a grid as it runs: a live view on a terminal, else a line for each cell that ends."""
    console = Console(stderr=True)
    if not console.is_terminal:

        def told(outcome: Outcome) -> None:
            line = f"{outcome.id} {outcome.state}: {outcome.told}"
            console.print(line, markup=False, soft_wrap=True)

        yield told
        return
    board = Board(out, [cell.id for cell in cells], workers)

    def drawn() -> Group:
        board.look()
        return board.render()

    with Live(get_renderable=drawn, console=console, refresh_per_second=1, transient=True):
        yield lambda outcome: None


def show_status(out: Path, watch: bool = False) -> None:
    """Print where the cells of a folder stand, once or until all are done."""
    board = open_board(out)
    console = Console()
    board.look()
    if watch:
        with Live(board.render(), console=console, auto_refresh=False) as live:
            while board.count("done") + board.count("failed") < len(board.cells):
                time.sleep(1)
                board.look()
                live.update(board.render(), refresh=True)
        return
    console.print(board.render())


def open_board(out: Path) -> Board:
    """Find the cells of a folder: those of its recipe, and any others that are there."""
    if not (out / "cells").is_dir() and not (out / "recipe.yaml").exists():
        raise ConfigError(f"{out} is no results folder: it has no cells")
    ids: dict[str, Any] = {}
    if (out / "recipe.yaml").exists():
        ids |= dict.fromkeys(cell.id for cell in Recipe.read(out / "recipe.yaml").cells())
    if (out / "cells").is_dir():
        ids |= dict.fromkeys(sorted(p.name for p in (out / "cells").iterdir() if p.is_dir()))
    return Board(out, list(ids))


def _alive(beat: dict[str, Any]) -> bool:
    if beat["host"] != socket.gethostname():
        return bool(time.time() - beat["time"] < SILENT)
    try:
        os.kill(beat["pid"], 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _span(seconds: float) -> str:
    minutes, hours = seconds / 60, seconds / 3600
    if hours >= 2:
        return f"{hours:.1f} hours"
    return f"{minutes:.0f} minutes" if minutes >= 2 else f"{seconds:.0f} seconds"
