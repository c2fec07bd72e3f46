"""What newcomers run first: the code in the README, and the example to start from."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest
import torch

import sigmatau
from sigmatau import backbones

from .conftest import blobs

HERE = Path(__file__).parents[1]


def test_the_code_of_the_readme_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    [code] = re.findall(r"```python\n(.*?)```", (HERE / "README.md").read_text(), re.DOTALL)
    (x, y), (x_val, y_val) = blobs(1), blobs(1, rows=30)
    given = {"x": x, "y": y, "x_val": x_val, "y_val": y_val}
    given |= {"cars_train": blobs(2), "cars_val": blobs(2, rows=30), "cars_test": blobs(2)}
    backbone = backbones.mlp((6,), 3, (256, 256))
    after = dict(given, backbone=backbone)
    exec(code, after)
    assert isinstance(after["net"], sigmatau.APDNet)
    assert after["net"].tasks == ("cars",)
    assert torch.equal(after["plain"](x), after["net"].predict("cars", x))


def test_the_example_of_a_network_of_ones_own(capsys: pytest.CaptureFixture[str]) -> None:
    threads = torch.get_num_threads()
    try:
        runpy.run_path(str(HERE / "examples" / "own_network.py"), run_name="__main__")
    finally:
        torch.set_num_threads(threads)
    told = capsys.readouterr().out
    assert "predictions of '2-3' are the same: True" in told
    accuracies = re.findall(r"'2-3' (?:from the file|as a plain Net): ([\d.]+)%", told)
    assert len(accuracies) == 2
    assert min(map(float, accuracies)) > 95
