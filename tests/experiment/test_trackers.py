from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sigmatau.errors import ConfigError
from sigmatau.experiment import trackers
from sigmatau.experiment.checkpoint import _lines
from sigmatau.experiment.engines import Job, run_job
from sigmatau.experiment.engines.local import Local
from sigmatau.experiment.grid import cell_folder, run_grid
from tests.experiment.conftest import timeless, tiny, tiny_recipe


def job(out: Path, *names: str) -> Job:
    cell = tiny("finetune")
    return Job(cell, str(cell_folder(out, cell)), None, names)


def test_tensorboard_is_told_of_every_epoch(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    result = run_job(job(tmp_path, "tensorboard"))
    assert result is not None
    (folder,) = (tmp_path / "tensorboard").iterdir()
    events = EventAccumulator(str(folder)).Reload()
    (last,) = [e.value for e in events.Scalars("score") if e.step == 3]
    assert last == pytest.approx(result["average_accuracy"])
    first = result["task_names"][0]
    written = _lines(Path(job(tmp_path).folder, "metrics.jsonl"))[:4]
    told = [e.value for e in events.Scalars(f"loss/{first}")]
    assert told == pytest.approx([line["loss"] for line in written])


def test_mlflow_is_told_of_every_task(tmp_path: Path, monkeypatch: Any) -> None:
    import mlflow

    store = f"file:{tmp_path / 'store'}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    result = run_job(job(tmp_path, "mlflow"))
    assert result is not None
    client = mlflow.MlflowClient(tracking_uri=store)
    experiment = client.get_experiment_by_name("digits")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.data.metrics["score"] == pytest.approx(result["average_accuracy"])
    assert run.data.params["seed"] == "0"
    assert run.info.status == "FINISHED"


def test_a_tracker_that_fails_costs_nothing(tmp_path: Path, monkeypatch: Any, caplog: Any) -> None:
    class Broken:
        def __init__(self, *_: Any) -> None: ...

        def number(self, *_: Any) -> None:
            raise ConnectionError("no server")

        def close(self) -> None:
            raise AssertionError("it was left out before")

    monkeypatch.setitem(trackers.TRACKERS, "mlflow", Broken)
    plain = run_job(job(tmp_path / "plain"))
    assert timeless(run_job(job(tmp_path / "tracked", "mlflow"))) == timeless(plain)
    assert "mlflow is left out from here on: no server" in caplog.text


def test_a_tracker_that_is_not_installed_costs_nothing(
    tmp_path: Path, monkeypatch: Any, caplog: Any
) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", None)
    assert run_job(job(tmp_path, "mlflow"))
    assert "pip install 'sigmatau[trackers]'" in caplog.text


def test_an_unknown_tracker_is_told_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="did you mean 'tensorboard'"):
        run_grid(tiny_recipe(), tmp_path, Local(1), trackers=["tensorbord"])
    assert not (tmp_path / "cells").exists()


def test_no_optional_part_is_imported_unasked() -> None:
    code = (
        "import sys, sigmatau.cli, sigmatau.experiment.grid, sigmatau.experiment.cell;"
        "print([m for m in ('ray', 'optuna', 'mlflow', 'tensorboard') if m in sys.modules])"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "[]"
