import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from sigmatau import __version__, cli, streams
from sigmatau.errors import ConfigError, FileError
from sigmatau.streams.sheet import Checker, contact_sheet, picture


def run(*arguments: str):
    # Errors raised on purpose are turned into messages by main(), so they pass through here.
    return CliRunner().invoke(cli.app, arguments, env={"COLUMNS": "160"}, catch_exceptions=False)


def test_version_and_help_answer_without_loading_pytorch():
    assert run("--version").output == f"sigmatau {__version__}\n"
    code = "import sys; from sigmatau import cli; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_list_names_every_stream_and_what_is_missing(tmp_path, made):
    out = run("data", "list", "--root", str(tmp_path)).output
    for name in streams.names():
        assert name in out
    assert "missing" in out
    full = run("data", "list", "--root", str(made[0])).output
    assert full.count("missing") == 1  # FaceScrub


def test_show_writes_a_sheet_a_task_and_prints_the_checks(tmp_path):
    result = run("data", "show", "digits", "--out", str(tmp_path), "--order", "B", "--tasks", "2")
    assert result.exit_code == 0
    assert "220" in result.output
    assert result.output.count("holds") == 4
    sheets = sorted(tmp_path.iterdir())
    assert [s.name for s in sheets] == ["digits-000.png", "digits-002.png"]
    sheet = np.asarray(Image.open(sheets[0]))
    assert sheet.shape == (96, 726, 3)


def test_a_sheet_shows_the_pixels_of_the_task(tmp_path):
    task = streams.get("digits")[0]
    contact_sheet(task, tmp_path / "a.png")
    sheet = np.asarray(Image.open(tmp_path / "a.png"))
    x, y = task.train
    first = picture(x[int((y == 1).nonzero()[0, 0])], (1, 8, 8))
    cell = sheet[49:95, 151:197]
    enlarged = np.asarray(Image.fromarray(first).resize((46, 46), Image.Resampling.NEAREST))
    assert np.array_equal(cell, enlarged)


def test_a_vector_is_shown_as_a_square_where_it_can_be():
    x = torch.arange(64) / 64
    assert picture(x, (64,)).shape == (8, 8, 3)
    assert picture(x, (64,))[1, 0, 0] == 32
    assert picture(x[:60], (60,)).shape == (1, 60, 3)


def test_the_checks_notice_what_is_wrong(tmp_path):
    good = streams.get("digits")
    bad = good[0]
    object.__setattr__(
        bad, "train", (torch.cat([bad.train[0], bad.test[0][:1]]) * 2, torch.zeros(221).long())
    )
    checker = Checker(good)
    checker.see(good[1])
    assert all(check.holds for check in checker.result())
    checker.see(bad)
    held = {check.what: check.holds for check in checker.result()}
    assert not held["values in [0, 1]"]
    assert not held["every class in every part"]
    shares = Checker(good)
    object.__setattr__(bad, "train", bad.test)
    shares.see(bad)
    assert not shares.result()[0].holds


def test_fetch_leaves_alone_what_is_there_and_knows_what_cannot_be_had(made):
    result = run("data", "fetch", "hetero8", "--root", str(made[0]))
    assert result.output.count("is there already") == 7
    assert "facescrub: cannot be downloaded" in result.output
    assert "nothing to fetch" in run("data", "fetch", "digits").output


def test_fetch_offline_names_the_file_and_the_place(tmp_path, monkeypatch):
    from sigmatau.streams import fetch

    def unreachable(*_, **__):
        raise fetch.requests.ConnectionError("no route to host")

    monkeypatch.setattr(fetch.requests, "get", unreachable)
    monkeypatch.setattr(fetch.time, "sleep", lambda _: None)
    with pytest.raises(FileError) as caught:
        run("data", "fetch", "split-cifar100", "--root", str(tmp_path))
    assert "cifar-100-python.tar.gz" in str(caught.value)
    assert str(tmp_path) in str(caught.value)


def test_errors_raised_on_purpose_become_one_message(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["sigmatau", "data", "show", "digit"])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    assert stopped.value.code == 1
    assert capsys.readouterr().err == "error: there is no stream 'digit': did you mean 'digits'?\n"
    with pytest.raises(ConfigError, match="did you mean"):
        run("data", "fetch", "mnits")
