"""`precision: auto` takes what the machine is fast in, and either as a result."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sigmatau.errors import ConfigError
from sigmatau.experiment import precision
from sigmatau.experiment.cell import finished, run_cell
from sigmatau.experiment.engines.local import Local
from sigmatau.experiment.grid import run_grid
from tests.experiment.conftest import tiny, tiny_recipe


def begun(folder: Path) -> str:
    told: str = json.loads((folder / "config.json").read_text())["cell"]["precision"]
    return told


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("flags : fpu avx512f avx512_bf16", "bf16-mixed"),
        ("flags : amx_bf16 amx_tile", "bf16-mixed"),
        ("Features : fp asimd bf16", "bf16-mixed"),
        ("flags : fpu avx512f avx512_vnni", "32-true"),
    ],
)
def test_the_processors_flags_tell(flags: str, expected: str, tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text(f"processor : 0\n{flags}\n")
    assert precision.fastest(tmp_path / "cpuinfo") == expected


def test_where_there_are_no_flags_it_is_single(tmp_path: Path) -> None:
    assert precision.fastest(tmp_path / "none") == "32-true"


@pytest.mark.parametrize("here", ["32-true", "bf16-mixed"])
def test_auto_runs_in_this_machines_and_says_which(
    here: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(precision, "fastest", lambda: here)
    result = run_cell(tiny(precision="auto"), tmp_path / "auto")
    same = run_cell(tiny(precision=here), tmp_path / "named")
    assert result is not None
    assert same is not None
    assert result["network"] == same["network"]
    assert begun(tmp_path / "auto") == result["config"]["precision"] == here


def test_a_result_of_another_machine_is_a_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = run_cell(tiny(precision="bf16-mixed"), tmp_path)
    monkeypatch.setattr(precision, "fastest", lambda: "32-true")
    assert finished(tiny(precision="auto"), tmp_path) == there
    assert run_cell(tiny(precision="auto"), tmp_path) == there
    with pytest.raises(ConfigError, match="precision: bf16-mixed there, 32-true now"):
        run_cell(tiny(precision="32-true"), tmp_path)


def test_auto_takes_over_cells_of_either_precision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(precision, "fastest", lambda: "32-true")
    half, auto = (
        tiny_recipe(methods=["finetune"], orders=["A"], precision=p) for p in ("bf16-mixed", "auto")
    )
    run_grid(half, tmp_path / "half", Local(1))
    summary = run_grid(auto, tmp_path / "auto", Local(1), reuse=[tmp_path / "half"])
    assert (summary.done, summary.taken) == (0, len(auto.cells()))
    (cell,) = auto.cells()
    assert begun(tmp_path / "auto" / "cells" / cell.id) == "bf16-mixed"
    assert run_grid(auto, tmp_path / "auto", Local(1)).before == 1
