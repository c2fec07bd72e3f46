"""Cells on a GPU: refused where there is none, else what a cell is on a CPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import yaml
from typer.testing import CliRunner

from sigmatau.cli import app
from sigmatau.errors import ConfigError
from sigmatau.experiment.cell import run_cell
from sigmatau.experiment.precision import settled
from sigmatau.experiment.provenance import machine
from tests.elsewhere import DEVICE, elsewhere
from tests.experiment.conftest import TINY, tiny


def test_a_gpu_that_is_not_there_is_refused_before_any_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match="PyTorch finds no GPU"):
        run_cell(tiny(accelerator="cuda"), tmp_path / "cell")
    words = ["run", "digits", "apd1", "--accelerator", "cuda", "--out", str(tmp_path / "out")]
    told = CliRunner().invoke(app, words)
    assert told.exit_code != 0
    assert "PyTorch finds no GPU" in str(told.exception)
    assert not (tmp_path / "out").exists()
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(yaml.safe_dump({**TINY, "methods": ["apd1"], "accelerator": "cuda"}))
    told = CliRunner().invoke(app, ["grid", str(recipe), "--engine", "ray"])
    assert "leave out --engine ray" in str(told.exception)
    with pytest.raises(ConfigError, match="one GPU"):
        tiny(accelerator="cuda", devices=2)
    with pytest.raises(ConfigError, match="accelerator"):
        tiny(accelerator="tpu")


def test_what_is_said_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")
    assert machine("cuda")["cuda"] == "a GPU"
    assert settled(tiny(accelerator="cuda", precision="auto")).precision == "32-true"


@pytest.mark.parametrize("method", ["apd1", "ewc"])
def test_a_cell_elsewhere_is_what_it_is_here(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")
    monkeypatch.setenv("SIGMATAU_FUSED", "0")  # the kernel, for CPUs alone, rounds otherwise
    cell = tiny(method, trace=method == "apd1")
    here = run_cell(cell, tmp_path / "here")
    with elsewhere():
        there = run_cell(cell.model_copy(update={"accelerator": DEVICE.type}), tmp_path / "there")
    assert here is not None
    assert there is not None
    for part in ("accuracy_matrix", "capacity", "growth", "network"):
        assert there[part] == here[part]
    assert there["machine"][DEVICE.type] == "a GPU"
