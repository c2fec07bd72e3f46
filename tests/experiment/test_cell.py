from __future__ import annotations

import errno
import json
import multiprocessing
import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from sigmatau.errors import ConfigError, FileError, TrainingError
from sigmatau.experiment import files
from sigmatau.experiment.cell import run_cell
from sigmatau.experiment.config import Cell
from sigmatau.training import Hook
from tests.experiment.conftest import timeless, tiny


class Stop(Hook):
    """Raises at the end of an epoch, counted over all tasks."""

    def __init__(self, after: int) -> None:
        self.left = after

    def epoch_ends(self, *_: Any) -> None:
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_subnormal_numbers_are_zero_in_a_cell(tmp_path: Path) -> None:
    seen = set()

    class Look(Hook):
        def epoch_ends(self, *_: Any) -> None:
            seen.add(sys.float_info.min / 2)

    run_cell(tiny(tasks=1), tmp_path, hooks=[Look()])
    assert seen == {0.0}


def test_a_result_holds_what_is_promised(tmp_path: Path) -> None:
    result = run_cell(tiny(order="B", seed=3), tmp_path)
    assert result == json.loads((tmp_path / "result.json").read_text())
    assert (result["stream"], result["method"], result["order"], result["seed"]) == (
        "digits",
        "apd1",
        "B",
        3,
    )
    matrix = result["accuracy_matrix"]
    assert [[s is not None for s in row] for row in matrix] == [
        [True, False, False],
        [True, True, False],
        [True, True, True],
    ]
    assert result["average_accuracy"] == pytest.approx(sum(matrix[-1]) / 3)
    assert result["final"] == dict(zip(result["task_names"], matrix[-1], strict=True))
    assert set(result["forgetting"]) == {"average", "worst"}
    assert set(result["capacity"]) == {"paper", "strict", "bytes", "beside"}
    assert result["capacity_curve"][-1] == result["capacity"]["paper"]
    assert len(result["seconds_per_task"]) == 3
    assert result["steps"] == 3 * 4 * 2  # tasks, epochs, batches of 32 in 60 rows
    assert result["config"]["settings"]["lr_decay"] == 0.95  # a default, resolved
    assert result["config"]["settings"]["seed"] == 3
    assert result["config"]["backbone"]["widths"] == [8, 6]
    assert set(result["versions"]) == {"sigmatau", "torch", "numpy", "python"}
    assert result["machine"]["threads"] == 1
    assert len(lines(tmp_path)) == 12
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "config.json",
        "metrics.jsonl",
        "result.json",
    ]


def test_orders_of_a_seed_share_split_and_first_network(tmp_path: Path) -> None:
    """STL learns each task alone: the order must not change what comes out for a task."""
    one = run_cell(tiny("stl", tasks=None), tmp_path / "a")
    other = run_cell(tiny("stl", tasks=None, order="C"), tmp_path / "c")
    elsewhere = run_cell(tiny("stl", tasks=None, seed=1), tmp_path / "1")
    assert one is not None
    assert other is not None
    assert elsewhere is not None
    assert one["task_names"] != other["task_names"]
    assert one["final"] == other["final"]
    assert one["network"] != elsewhere["network"]


def test_capacity_is_told_in_networks_of_the_base(tmp_path: Path) -> None:
    own = run_cell(tiny("stl"), tmp_path / "own")
    half = run_cell(tiny("stl", base={"widths": [4, 6]}), tmp_path / "half")
    assert own is not None
    assert half is not None
    sizes = [64 * a + a + a * 6 + 6 + 6 * 2 + 2 for a in (8, 4)]
    ratio = pytest.approx(sizes[0] / sizes[1])
    assert half["capacity"]["strict"] / own["capacity"]["strict"] == ratio
    assert half["growth"] == dict.fromkeys(half["task_names"], ratio)
    assert half["capacity_curve"][0] == ratio  # one task, one head
    assert half["accuracy_matrix"] == own["accuracy_matrix"]
    with pytest.raises(ConfigError, match="backbone 'mlp'"):
        run_cell(tiny(base={"wide": 3}), tmp_path / "none")


def test_a_finished_cell_is_not_run_again(tmp_path: Path) -> None:
    first = run_cell(tiny(), tmp_path)
    before = (tmp_path / "result.json").stat().st_mtime_ns
    assert run_cell(tiny(), tmp_path, hooks=[Stop(1)]) == first
    assert (tmp_path / "result.json").stat().st_mtime_ns == before


@pytest.mark.parametrize("method", ["apd1", "apd2", "ewc", "pgn", "gem"])
@pytest.mark.parametrize("after", [1, 4, 7])
def test_a_stopped_cell_goes_on_to_the_same_bits(tmp_path: Path, method: str, after: int) -> None:
    cell = tiny(method)
    whole = run_cell(cell, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        run_cell(cell, tmp_path / "cut", hooks=[Stop(after)])
    seen = lines(tmp_path / "cut")
    resumed = run_cell(cell, tmp_path / "cut")
    assert timeless(resumed) == timeless(whole)
    # Only what was not finished was run again: the times of finished epochs are the old ones.
    assert lines(tmp_path / "cut")[: after - 1] == seen[: after - 1]


@pytest.mark.parametrize("method", ["apd1", "apd2", "finetune"])
def test_a_cell_killed_at_random_points_ends_with_the_same_bits(
    tmp_path: Path, method: str
) -> None:
    cell = tiny(method, settings={"epochs": 8})
    began = time.monotonic()
    whole = run_cell(cell, tmp_path / "whole")
    took = time.monotonic() - began
    dice, kills = random.Random(method), 0
    fork = multiprocessing.get_context("fork")
    while kills < 8 and not (tmp_path / "cut" / "result.json").exists():
        process = fork.Process(target=run_cell, args=(cell, tmp_path / "cut"))
        process.start()
        time.sleep(dice.uniform(0.01, min(took, 1.0)))
        if process.is_alive() and process.pid is not None:
            os.kill(process.pid, signal.SIGKILL)
            kills += 1
        process.join()
        assert process.exitcode in (0, -signal.SIGKILL)
    resumed = run_cell(cell, tmp_path / "cut")
    assert timeless(resumed) == timeless(whole)
    assert len(lines(tmp_path / "cut")) == 3 * 8
    assert not list((tmp_path / "cut").glob("*.st"))


def test_killed_between_network_and_scores(tmp_path: Path, monkeypatch: Any) -> None:
    """The network knows a task that the scores do not: it must be scored, not learnt again."""
    from sigmatau.experiment import cell as module

    whole = run_cell(tiny(), tmp_path / "whole")
    with monkeypatch.context() as patch:
        patch.setattr(module._Run, "_measure", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            run_cell(tiny(), tmp_path / "cut")
    seen = lines(tmp_path / "cut")
    assert len(seen) == 4
    assert timeless(run_cell(tiny(), tmp_path / "cut")) == timeless(whole)
    assert lines(tmp_path / "cut")[:4] == seen


def test_epochs_are_saved_no_more_often_than_asked(tmp_path: Path) -> None:
    slow = tiny(checkpoint_seconds=1000)
    with pytest.raises(KeyboardInterrupt):
        run_cell(slow, tmp_path, hooks=[Stop(3)])
    assert not list(tmp_path.glob("*.st"))
    whole = run_cell(tiny(), tmp_path / "whole")
    assert timeless(run_cell(slow, tmp_path)) == timeless(whole)


def test_dropped_tasks_are_gone_and_nothing_else_moves(tmp_path: Path) -> None:
    cell = tiny(tasks=4, drops={2: [1], 3: [3]})
    whole = run_cell(cell, tmp_path / "whole")
    assert whole is not None
    first, second = whole["drops"]
    names = whole["task_names"]
    assert (first["step"], first["task"], second["task"]) == (2, names[0], names[2])
    for drop in whole["drops"]:
        assert drop["after"] == {n: s for n, s in drop["before"].items() if n != drop["task"]}
    assert list(whole["final"]) == [names[1], names[3]]
    with pytest.raises(KeyboardInterrupt):
        run_cell(cell, tmp_path / "cut", hooks=[Stop(10)])
    assert timeless(run_cell(cell, tmp_path / "cut")) == timeless(whole)


def test_only_the_last_row_is_scored_in_full_if_asked(tmp_path: Path) -> None:
    all_of_them = run_cell(tiny("finetune"), tmp_path / "all")
    last = run_cell(tiny("finetune", evaluate="last"), tmp_path / "last")
    assert all_of_them is not None
    assert last is not None
    assert last["accuracy_matrix"][1][0] is None
    assert last["accuracy_matrix"][2] == all_of_them["accuracy_matrix"][2]


def test_traced_weights_are_laid_out_in_a_plane(tmp_path: Path) -> None:
    cell = tiny("finetune", trace=True)
    run_cell(cell, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        run_cell(cell, tmp_path / "cut", hooks=[Stop(9)])
    run_cell(cell, tmp_path / "cut")
    points = json.loads((tmp_path / "whole" / "parameters.json").read_text())["points"]
    assert len(points) == 1 + 2 + 3
    assert points == json.loads((tmp_path / "cut" / "parameters.json").read_text())["points"]


def test_a_failure_is_recorded_and_forgotten_once_it_is_mended(tmp_path: Path) -> None:
    class Broken(Hook):
        def batch_ends(self) -> None:
            raise TrainingError("the loss became nan")

    with pytest.raises(TrainingError):
        run_cell(tiny(), tmp_path, hooks=[Broken()])
    failure = json.loads((tmp_path / "failure.json").read_text())
    assert failure["error"] == "TrainingError: the loss became nan"
    assert "batch_ends" in failure["trace"]
    assert failure["cell"]["method"] == "apd1"
    assert run_cell(tiny(), tmp_path)
    assert not (tmp_path / "failure.json").exists()


def test_nan_is_a_failure(tmp_path: Path) -> None:
    with pytest.raises(TrainingError):
        run_cell(tiny("finetune", settings={"lr": 1e30, "optimizer": "sgd"}), tmp_path)
    assert "TrainingError" in (tmp_path / "failure.json").read_text()


def test_another_cell_in_the_folder_is_refused(tmp_path: Path) -> None:
    run_cell(tiny(), tmp_path)
    with pytest.raises(ConfigError, match="seed: 0 there, 1 now"):
        run_cell(tiny(seed=1), tmp_path)


def test_a_checkpoint_of_other_defaults_is_refused(tmp_path: Path, monkeypatch: Any) -> None:
    with pytest.raises(KeyboardInterrupt):
        run_cell(tiny(), tmp_path, hooks=[Stop(2)])
    monkeypatch.setattr("sigmatau.experiment.defaults._BY_STREAM", {})
    with pytest.raises(FileError, match="begun with other settings or by another version"):
        run_cell(tiny(), tmp_path)


def test_a_folder_of_another_format_is_refused(tmp_path: Path) -> None:
    run_cell(tiny(), tmp_path)
    about = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**about, "format": 0}))
    with pytest.raises(FileError, match="results format 0"):
        run_cell(tiny(), tmp_path)


def test_a_damaged_result_is_told_and_not_overwritten(tmp_path: Path) -> None:
    run_cell(tiny(), tmp_path)
    (tmp_path / "result.json").write_text('{"cut')
    with pytest.raises(FileError, match=r"result\.json is damaged"):
        run_cell(tiny(), tmp_path)
    assert (tmp_path / "result.json").read_text() == '{"cut'


@pytest.mark.parametrize("name", ["result.json", "metrics.jsonl", "checkpoint.st", "network.st"])
def test_a_full_disk_loses_nothing(tmp_path: Path, monkeypatch: Any, name: str) -> None:
    """Whichever file the disk has no room for, the cell fails clearly and can be finished later."""
    whole = run_cell(tiny(), tmp_path / "whole")
    real = os.fsync
    sizes = {"left": {"result.json": 1, "metrics.jsonl": 3}.get(name, 2)}

    def full(fd: int) -> None:
        target = os.readlink(f"/proc/self/fd/{fd}")
        kind = ".sigmatau-" if name.endswith(".st") else name
        if kind in target:
            sizes["left"] -= 1
            if sizes["left"] <= 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(fd)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(FileError, match="No space left"):
            run_cell(tiny(), tmp_path / "cut")
    assert not (tmp_path / "cut" / "result.json").exists()
    assert timeless(run_cell(tiny(), tmp_path / "cut")) == timeless(whole)
    assert not list((tmp_path / "cut").glob(".*.tmp"))


def test_a_place_that_cannot_be_written_to_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FileError, match="cannot make the folder"):
        run_cell(tiny(), tmp_path / "file" / "cell")


def test_a_read_only_folder_is_told(tmp_path: Path, monkeypatch: Any) -> None:
    """Root may write anywhere, so the refusal is the system's in form only."""

    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(files.FileLock, "acquire", refuse)
    with pytest.raises(FileError, match=r"cannot lock .*Read-only"):
        run_cell(tiny(), tmp_path)


def test_two_processes_do_not_work_on_one_cell(tmp_path: Path) -> None:
    with files.locked(tmp_path / "lock") as mine:
        assert mine
        assert run_cell(tiny(), tmp_path) is None
    assert run_cell(tiny(), tmp_path) is not None


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"drops": {2: [3]}}, "places go from 1 to 2"),
        ({"method": "ewc", "drops": {2: [1]}}, "cannot forget"),
        ({"backbone": {"depth": 3}}, "depth"),
        ({"backbone": {"name": "lenet", "dropout": 1.5}}, "dropout probability"),
        ({"settings": {"l11": 3}}, "did you mean 'l1'"),
        ({"order": "Z"}, "no order 'Z'"),
        ({"stream": "digit"}, "did you mean 'digits'"),
        ({"method": "apd"}, "did you mean"),
    ],
)
def test_bad_cells_are_told(tmp_path: Path, fields: dict[str, Any], told: str) -> None:
    given = {**tiny().model_dump(exclude={"name", "label"}), **fields}
    with pytest.raises(ConfigError, match=told):
        run_cell(Cell.of(given), tmp_path)
