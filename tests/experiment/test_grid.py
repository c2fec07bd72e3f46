from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sigmatau.errors import ConfigError, FileError
from sigmatau.experiment.cell import run_cell
from sigmatau.experiment.config import Recipe
from sigmatau.experiment.engines import Outcome
from sigmatau.experiment.engines.local import Local
from sigmatau.experiment.files import locked
from sigmatau.experiment.grid import cell_folder, run_grid
from sigmatau.experiment.status import Board, open_board, standing
from tests.experiment.conftest import timeless, tiny_recipe


def results(out: Path, recipe: Recipe) -> dict[str, Any]:
    return {
        cell.id: timeless(json.loads((cell_folder(out, cell) / "result.json").read_text()))
        for cell in recipe.cells()
    }


@contextlib.contextmanager
def assassin(out: Path, wanted: Callable[[str, int], bool]) -> Iterator[list[str]]:
    """Kill the processes of cells as soon as they show a sign of life; yield whom it killed."""
    killed: list[str] = []
    pids: set[int] = set()
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.01):
            for path in out.glob("cells/*/status.json"):
                with contextlib.suppress(OSError, ValueError, FileError):
                    pid = json.loads(path.read_text())["pid"]
                    if pid in pids or pid == os.getpid():
                        continue
                    if wanted(path.parent.name, killed.count(path.parent.name)):
                        pids.add(pid)
                        killed.append(path.parent.name)
                        os.kill(pid, signal.SIGKILL)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    yield killed
    over.set()
    thread.join()


def test_cells_that_another_folder_has_finished_are_taken_over(tmp_path: Path) -> None:
    once, again = tmp_path / "once", tmp_path / "again"
    run_grid(tiny_recipe(methods=["finetune"]), once, Local(1))
    named = {"method": "finetune", "label": "Plain", "settings": {"batch_size": 32}}
    wider = tiny_recipe(methods=[named, "l2t"])  # 32 is what digits have by default
    summary = run_grid(wider, again, Local(1), reuse=[once])
    assert (summary.taken, summary.done, summary.before) == (2, 2, 0)
    assert str(summary).startswith("4 cells finished (0 of them before, 2 taken over)")
    there = {k: v for k, v in results(again, wider).items() if "finetune" in k}
    first = results(once, tiny_recipe(methods=["finetune"]))
    assert [{**r, "label": "Plain"} for r in first.values()] == list(there.values())
    assert run_grid(wider, again, Local(1)).before == 4
    other = tiny_recipe(methods=[named], seeds=[1])
    assert run_grid(other, tmp_path / "other", Local(1), reuse=[once]).taken == 0
    for path in once.glob("cells/*/result.json"):  # as if from before there were these settings
        result = json.loads(path.read_text())
        assert result["config"]["settings"].pop("weight_decay") == 1e-4
        assert result["config"].pop("base") is None
        path.write_text(json.dumps(result))
    assert run_grid(wider, tmp_path / "later", Local(1), reuse=[once]).taken == 2
    decayed = tiny_recipe(methods=[{**named, "settings": {"weight_decay": 0.1}}])
    assert run_grid(decayed, tmp_path / "decayed", Local(1), reuse=[once]).taken == 0
    result["config"]["method"] = "of-someone-else"
    path.write_text(json.dumps(result))
    assert run_grid(wider, tmp_path / "foreign", Local(1), reuse=[once]).taken == 1
    with pytest.raises(FileError, match="check --reuse"):
        run_grid(wider, tmp_path / "none", Local(1), reuse=[tmp_path / "missing"])


def test_one_or_two_workers_or_by_hand_give_the_same(tmp_path: Path) -> None:
    recipe = tiny_recipe()
    told: list[Outcome] = []
    summary = run_grid(recipe, tmp_path / "two", Local(2), told=told.append)
    assert (summary.done, summary.before, summary.failed) == (4, 0, ())
    assert sorted(o.id for o in told) == sorted(c.id for c in recipe.cells())
    run_grid(recipe, tmp_path / "one", Local(1))
    for cell in recipe.cells():
        run_cell(cell, cell_folder(tmp_path / "hand", cell))
    two = results(tmp_path / "two", recipe)
    assert two == results(tmp_path / "one", recipe)
    assert two == results(tmp_path / "hand", recipe)

    again = run_grid(recipe, tmp_path / "two", Local(2))
    assert (again.done, again.before) == (0, 4)
    assert Recipe.read(tmp_path / "two" / "recipe.yaml").cells() == recipe.cells()


def test_killed_workers_cost_nothing_but_the_guilty_cell(tmp_path: Path) -> None:
    """Every process at work on one cell is killed, and once each those on another."""
    recipe = tiny_recipe(orders=["A", "B", "C"], settings={"epochs": 60}, methods=["apd1"])

    def wanted(name: str, before: int) -> bool:
        return name == "apd1-A-0" or (name == "apd1-B-0" and not before)

    with assassin(tmp_path, wanted) as killed:
        summary = run_grid(recipe, tmp_path, Local(2))
    assert killed.count("apd1-A-0") >= 2
    assert [o.id for o in summary.failed] == ["apd1-A-0"]
    assert "killed twice" in summary.failed[0].told
    assert "killed twice" in (tmp_path / "cells" / "apd1-A-0" / "failure.json").read_text()
    assert summary.done == 2

    summary = run_grid(recipe, tmp_path, Local(1))  # it goes on where it was
    assert (summary.done, summary.before, summary.failed) == (1, 2, ())
    for cell in recipe.cells():
        run_cell(cell, cell_folder(tmp_path / "hand", cell))
    assert results(tmp_path, recipe) == results(tmp_path / "hand", recipe)


def test_a_failing_cell_does_not_stop_the_others(tmp_path: Path) -> None:
    broken = {"method": "finetune", "settings": {"lr": 1e30, "optimizer": "sgd"}}
    recipe = tiny_recipe(methods=[broken, "apd1"], orders=["A"])
    summary = run_grid(recipe, tmp_path, Local(1))
    assert (summary.done, len(summary.failed)) == (1, 1)
    assert "TrainingError" in summary.failed[0].told
    assert "1 failed" in str(summary)
    states = {
        name: standing(tmp_path / "cells" / name).state for name in open_board(tmp_path).cells
    }
    assert sorted(states.values()) == ["done", "failed"]


def test_what_cannot_run_is_told_before_anything_does(tmp_path: Path) -> None:
    recipe = tiny_recipe(methods=["apd1", {"method": "ewc", "settings": {"strenght": 3}}])
    with pytest.raises(ConfigError, match="strength"):
        run_grid(recipe, tmp_path, Local(1))
    with pytest.raises(ConfigError, match="no order"):
        run_grid(tiny_recipe(orders=["A", "Q"]), tmp_path, Local(1))
    assert not (tmp_path / "cells").exists()


def test_two_grids_on_one_folder_share_the_work(tmp_path: Path) -> None:
    """A cell that another process holds is waited for, and taken over when that one lets go."""
    recipe = tiny_recipe(methods=["finetune"])
    cell = recipe.cells()[0]
    folder = cell_folder(tmp_path, cell)
    folder.mkdir(parents=True)
    held, release = threading.Event(), threading.Event()

    def other() -> None:
        with locked(folder / "lock"):
            held.set()
            release.wait()

    thread = threading.Thread(target=other)
    thread.start()
    held.wait()

    def told(outcome: Outcome) -> None:
        release.set()  # comes with the other cell: only then is this one let go

    summary = run_grid(recipe, tmp_path, Local(1), told=told, poll=0.05)
    thread.join()
    assert summary.done == 2


def test_two_grids_at_once_give_what_one_gives(tmp_path: Path) -> None:
    recipe = tiny_recipe(settings={"epochs": 10})
    fork = multiprocessing.get_context("fork")
    both = [
        fork.Process(
            target=run_grid, args=(recipe, tmp_path / "both", Local(1)), kwargs={"poll": 0.05}
        )
        for _ in range(2)
    ]
    for process in both:
        process.start()
    for process in both:
        process.join()
    assert [process.exitcode for process in both] == [0, 0]
    run_grid(recipe, tmp_path / "one", Local(1))
    assert results(tmp_path / "both", recipe) == results(tmp_path / "one", recipe)
    for cell in recipe.cells():  # no cell was run by both
        lines = (cell_folder(tmp_path / "both", cell) / "metrics.jsonl").read_text().splitlines()
        assert len(lines) == 3 * 10


def test_standing_tells_running_from_stopped(tmp_path: Path) -> None:
    folder = tmp_path / "cells" / "apd1-A-0"
    folder.mkdir(parents=True)
    assert standing(folder).state == "waiting"
    beat = {"pid": os.getpid(), "host": os.uname().nodename, "task": 2, "tasks": 4, "epoch": 6}
    beat |= {"epochs": 10, "began": time.time() - 10, "time": time.time()}
    (folder / "status.json").write_text(json.dumps(beat))
    running = standing(folder)
    assert (running.state, running.share) == ("running", pytest.approx(0.375))
    board = Board(tmp_path, ["apd1-A-0", "apd1-B-0"], workers=2)
    board.look()
    assert board.left() == pytest.approx((10 / 0.375) * (0.625 + 1) / 2, rel=0.05)
    dead = {**beat, "pid": 2**22 + 1}
    (folder / "status.json").write_text(json.dumps(dead))
    assert standing(folder).state == "waiting"
    assert "stopped at task 2 of 4" in standing(folder).told
    (folder / "status.json").write_text(json.dumps({**beat, "host": "elsewhere", "time": 0}))
    assert standing(folder).state == "waiting"


def test_a_damaged_result_shows_as_failed(tmp_path: Path) -> None:
    folder = tmp_path / "cells" / "apd1-A-0"
    folder.mkdir(parents=True)
    (folder / "result.json").write_text('{"cut')
    assert standing(folder).state == "failed"
    assert "damaged" in standing(folder).told


def test_a_folder_without_cells_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no results folder"):
        open_board(tmp_path)
