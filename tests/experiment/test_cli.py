from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from sigmatau.cli import app
from sigmatau.errors import ConfigError
from sigmatau.methods import names
from tests.experiment.conftest import TINY

QUICK = ["--set", "epochs=1", "--set", "tasks=2", "--set", "rows.train=40"]


def command(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def recipe(path: Path, **fields: Any) -> str:
    path.write_text(yaml.safe_dump({**TINY, "settings": {"epochs": 1}, **fields}))
    return str(path)


def test_run_writes_a_cell_and_tells_of_it(tmp_path: Path) -> None:
    told = command("run", "digits", "apd1", "--order", "3,1", "--out", str(tmp_path), *QUICK)
    assert "average accuracy" in told
    (path,) = tmp_path.glob("cells/*/result.json")
    result = json.loads(path.read_text())
    assert result["task_names"] == ["6-7", "2-3"]
    assert result["label"] == "apd1 epochs=1"
    assert "1 done" in command("status", str(tmp_path))


def test_every_default_can_be_printed() -> None:
    shown = yaml.safe_load(command("run", "digits", "apd1", "--show", "--set", "budget=0.05"))
    assert shown["settings"]["budget"] == 0.05
    assert shown["settings"]["beta"] == 1e-6
    assert shown["backbone"]["name"] == "mlp"


def test_the_methods_and_their_settings_are_listed() -> None:
    listed = command("methods")
    assert all(name in listed for name in names())
    shown = command("methods", "apd-fixed")
    assert re.search(r"retroactive +│ off ", shown)  # what the name stands for, not the default
    assert re.search(r"budget +│ null ", shown)
    assert "published for split-cifar100: epochs=20, l1=0.0004" in shown
    with pytest.raises(ConfigError, match="did you mean 'gem'"):
        command("methods", "gme")


@pytest.mark.parametrize(
    ("name", "default"),
    [("run", "results/STREAM"), ("grid", "results/RECIPE"), ("tune", "tuning/STREAM-METHOD")],
)
def test_the_help_tells_where_results_go(name: str, default: str) -> None:
    assert f"[default: ({default})]" in command(name, "--help")


def test_tune_tells_what_it_found_and_searches_in_the_precision_asked_for(tmp_path: Path) -> None:
    chosen = ["--search", "l1=[1e-3, 1e-2]", "--precision", "bf16-mixed"]
    told = command("tune", "digits", "apd1", *chosen, "--out", str(tmp_path), *QUICK)
    log = json.loads((tmp_path / "trials.json").read_text())
    assert log["search"]["cell"]["precision"] == "bf16-mixed"
    assert {trial["settings"]["l1"] for trial in log["trials"]} == {1e-3, 1e-2}
    best = max(log["trials"], key=lambda trial: trial["score"])
    assert yaml.safe_load(told.partition("the study")[0])["validation"]["score"] == best["score"]


def test_a_bad_setting_leaves_no_folder(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="did you mean 'epochs'"):
        command("run", "digits", "apd1", "--out", str(tmp_path / "r"), "--set", "epoch=3")
    assert not (tmp_path / "r").exists()


def test_grid_runs_the_chosen_part_of_a_recipe(tmp_path: Path) -> None:
    path = recipe(
        tmp_path / "r.yaml", methods=["finetune", "apd1"], orders=["A", "B"], seeds=[0, 1]
    )
    out = str(tmp_path / "out")
    told = command(
        "grid", path, "--out", out, "--workers", "1", "--order", "B", "--method", "finetune"
    )
    assert "2 cells finished (0 of them before)" in told
    names = sorted(p.parent.name for p in Path(out).glob("cells/*/result.json"))
    assert names == ["finetune-B-0", "finetune-B-1"]
    assert "2 done" in command("status", out)
    assert "6 waiting" in command("status", out)


def test_grid_fails_if_a_cell_did(tmp_path: Path) -> None:
    rows = [{"method": "finetune", "settings": {"lr": 1e30, "optimizer": "sgd"}}, "apd1"]
    path = recipe(tmp_path / "r.yaml", methods=rows)
    told = CliRunner().invoke(app, ["grid", path, "--out", str(tmp_path / "out"), "--workers", "1"])
    assert told.exit_code == 1
    assert "1 failed" in told.output
