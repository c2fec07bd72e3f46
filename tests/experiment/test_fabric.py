"""Cells learnt by several processes: same results, whoever of them is killed, and no one left."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from sigmatau.cli import app
from sigmatau.errors import ConfigError, MissingExtra, TrainingError
from sigmatau.experiment import ranks
from sigmatau.experiment.cell import run_cell
from sigmatau.experiment.config import Cell
from sigmatau.experiment.engines.local import Local
from sigmatau.experiment.grid import run_grid
from sigmatau.training import Hook
from tests.experiment.conftest import TINY, timeless, tiny, tiny_recipe
from tests.experiment.test_grid import results

FIELDS: dict[str, Any] = {"devices": 2, "drops": {2: [1]}}


class After(Hook):
    """Acts at the end of an epoch, counted over all tasks."""

    def __init__(self, epoch: int, act: Callable[[], None]) -> None:
        self.left, self.act = epoch, act

    def epoch_ends(self, *_: Any) -> None:
        self.left -= 1
        if self.left == 0:
            self.act()


@pytest.fixture
def followers(monkeypatch: pytest.MonkeyPatch) -> list[ranks.Follower]:
    """Return the list in which all followers will be that are started."""
    found: list[ranks.Follower] = []

    class Noted(ranks.Follower):
        def __init__(self, given: dict[str, Any]) -> None:
            super().__init__(given)
            found.append(self)

    monkeypatch.setattr(ranks, "Follower", Noted)
    return found


def running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def test_whoever_is_killed_the_same_bits_come_out(
    tmp_path: Path, followers: list[ranks.Follower]
) -> None:
    cell = tiny(**FIELDS)
    alone = run_cell(tiny(drops=FIELDS["drops"]), tmp_path / "alone")
    before = dict(os.environ)
    whole = run_cell(cell, tmp_path / "whole")
    assert dict(os.environ) == before
    assert whole is not None
    assert alone is not None
    assert whole["accuracy_matrix"] == alone["accuracy_matrix"]
    assert whole["config"]["devices"] == 2

    # The follower, in the first task.
    lost = After(2, lambda: followers[-1].process.kill())
    with pytest.raises(TrainingError, match="process 2 of 2 was lost with status -9"):
        run_cell(cell, tmp_path / "cut", hooks=[lost])
    assert "was lost" in json.loads((tmp_path / "cut" / "failure.json").read_text())["error"]

    # The leader, in the third task; its follower must not outlive it.
    def suicide() -> None:
        (tmp_path / "pid").write_text(str(followers[-1].process.pid))
        os.kill(os.getpid(), signal.SIGKILL)

    leader = multiprocessing.get_context("fork").Process(
        target=run_cell, args=(cell, tmp_path / "cut"), kwargs={"hooks": [After(8, suicide)]}
    )
    leader.start()
    leader.join()
    assert leader.exitcode == -signal.SIGKILL
    pid, patience = int((tmp_path / "pid").read_text()), time.monotonic() + 20
    while running(pid) and time.monotonic() < patience:
        time.sleep(0.05)
    assert not running(pid)

    assert timeless(run_cell(cell, tmp_path / "cut")) == timeless(whole)
    assert not any(running(f.process.pid) for f in followers)


def test_a_follower_that_cannot_start_is_told(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(ranks, "MODULE", "sigmatau.experiment.no_such_module")
    with pytest.raises(TrainingError, match=r"process 2 of 2 was lost with status 1 .*No module"):
        run_cell(tiny(devices=2), tmp_path / "cell")


def test_a_loss_of_nan_is_told_by_its_own_name(tmp_path: Path) -> None:
    cell = tiny("finetune", settings={"lr": 1e30, "optimizer": "sgd"}, devices=2)
    with pytest.raises(TrainingError, match="the loss of task"):
        run_cell(cell, tmp_path)


def test_a_grid_of_cells_that_share_their_batches(tmp_path: Path) -> None:
    recipe = tiny_recipe(methods=["finetune"], orders=["A"], devices=2, precision="bf16-mixed")
    # Two workers, as one would be this very process.
    summary = run_grid(recipe, tmp_path, Local(2))
    assert (summary.done, summary.failed) == (1, ())
    (shared,) = results(tmp_path, recipe).values()
    alone = run_cell(recipe.cells()[0].model_copy(update={"devices": 1}), tmp_path / "alone")
    assert alone is not None
    assert shared["network"] != alone["network"]
    assert shared["average_accuracy"] == pytest.approx(alone["average_accuracy"], abs=0.05)


def test_mixed_precision_in_one_process(tmp_path: Path) -> None:
    half = run_cell(tiny(precision="bf16-mixed"), tmp_path / "half")
    single = run_cell(tiny(), tmp_path / "single")
    assert half is not None
    assert single is not None
    assert half["network"] != single["network"]
    assert half["average_accuracy"] == pytest.approx(single["average_accuracy"], abs=0.1)


def test_results_from_before_are_the_same_work(tmp_path: Path) -> None:
    first = run_cell(tiny(), tmp_path)
    about = json.loads((tmp_path / "config.json").read_text())
    for part in ("cell", "resolved"):
        del about[part]["devices"], about[part]["precision"]
    (tmp_path / "config.json").write_text(json.dumps(about))
    assert run_cell(tiny(), tmp_path, hooks=[After(1, sys.exit)]) == first
    with pytest.raises(ConfigError, match="devices: 1 there, 2 now"):
        run_cell(tiny(devices=2), tmp_path)


def test_cores_are_shared_out() -> None:
    assert (tiny(devices=2).cores, tiny(devices=2).threads_each) == (2, 1)
    assert (tiny(devices=2, threads=8).cores, tiny(devices=2, threads=8).threads_each) == (8, 4)
    assert (tiny(threads=3).cores, tiny(threads=3).threads_each) == (3, 3)


def test_options_of_the_command_line_go_before_the_recipe(tmp_path: Path) -> None:
    given = {**TINY, "methods": ["finetune"], "devices": 3, "precision": "bf16-mixed"}
    (tmp_path / "r.yaml").write_text(yaml.safe_dump(given))

    def shown(*options: str) -> tuple[int, str]:
        told = CliRunner().invoke(app, ["grid", str(tmp_path / "r.yaml"), "--show", *options])
        resolved = yaml.safe_load(told.output)
        return resolved["devices"], resolved["precision"]

    assert shown() == (3, "bf16-mixed")
    assert shown("--devices", "2", "--precision", "32-true") == (2, "32-true")


def test_a_precision_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="should be '32-true', 'bf16-mixed' or 'auto'"):
        Cell.of({"stream": "digits", "method": "apd1", "precision": "16-mixed"})


def test_without_the_extra_nothing_is_begun(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "lightning_fabric", None)
    monkeypatch.delitem(sys.modules, "sigmatau.experiment.ranks")
    command = ["run", "digits", "apd1", "--devices", "2", "--out", str(tmp_path / "r")]
    with pytest.raises(MissingExtra, match=r"pip install 'sigmatau\[fabric\]'"):
        CliRunner().invoke(app, command, catch_exceptions=False)
    assert not (tmp_path / "r").exists()
