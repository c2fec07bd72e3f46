from __future__ import annotations

import errno
import json
import os
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sigmatau.cli import app
from sigmatau.errors import FileError, MissingExtra
from sigmatau.report.write import write_report

from .made import gallery, put, put_failed, result


def call(*words: object) -> str:
    done = CliRunner(env={"COLUMNS": "80"}).invoke(
        app, [str(w) for w in words], catch_exceptions=False
    )
    assert done.exit_code == 0, done.output
    return done.output


def test_report_writes_page_tables_and_figures(tmp_path: Path) -> None:
    told = call("report", gallery(tmp_path / "results"), "--title", "A title & more")
    assert "34 of 36 cells, 1 failed" in told
    out = tmp_path / "results" / "report"
    tables = {path.name for path in (out / "tables").iterdir()}
    assert tables == {
        "split-cifar100.md",
        "split-cifar100.tex",
        "split-cifar100.csv",
        "split-cifar100-tasks.csv",
        "split-cifar100-tasks.md",
    }
    assert len(list((out / "figures").glob("*.png"))) == 6
    assert len(list((out / "figures").glob("*.svg"))) == 6
    page = (out / "index.html").read_text()
    assert "<title>A title &amp; more</title>" in page
    assert not list(out.rglob("*.tmp"))


def test_a_report_on_reports_folder_can_be_written_again(tmp_path: Path) -> None:
    put(tmp_path, result("apd1"))
    call("report", tmp_path)
    put(tmp_path, result("apd1", "B"))
    assert "2 of 2 cells" in call("report", tmp_path)


def test_what_users_named_is_shown_and_never_run(tmp_path: Path) -> None:
    evil = "</script><script>window.hacked=1</script>"
    made = result(label=evil, tasks=(evil, "two"), order_indices=(0, 1))
    folder = tmp_path / "cells" / "evil-A-0"
    folder.mkdir(parents=True)
    (folder / "result.json").write_text(json.dumps(made))
    put_failed(tmp_path, "ewc", "A", 0, evil)
    write_report([tmp_path], tmp_path / "out", title=evil)
    assert "<script>window" not in (tmp_path / "out" / "index.html").read_text()


@pytest.mark.parametrize("package", ["plotly.offline", "jinja2", "matplotlib"])
def test_a_missing_package_is_named_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    put(tmp_path, result())
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtra, match=r"sigmatau\[report\]"):
        write_report([tmp_path], tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("reason", [errno.ENOSPC, errno.EROFS])
def test_what_cannot_be_written_leaves_the_old_page_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reason: int
) -> None:
    put(tmp_path, result())
    before = write_report([tmp_path], tmp_path / "out").page.read_bytes()

    def refuse(file: int) -> None:
        raise OSError(reason, os.strerror(reason))

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(FileError, match=f"{os.strerror(reason)}.*--out"):
        write_report([tmp_path], tmp_path / "out")
    assert (tmp_path / "out" / "index.html").read_bytes() == before
    assert not list(tmp_path.rglob("*.tmp"))


def test_a_file_in_the_way_is_an_error_that_names_it(tmp_path: Path) -> None:
    put(tmp_path, result())
    (tmp_path / "out").write_text("a file")
    with pytest.raises(FileError, match="was not written"):
        write_report([tmp_path], tmp_path / "out")


def test_compare_prints_differences_and_writes_csv(tmp_path: Path) -> None:
    for seed in range(3):
        put(tmp_path / "a", result("apd1", "A", seed, score=0.60, spread=0.001))
        put(tmp_path / "b", result("apd1", "A", seed, score=0.63, spread=0.001))
    put(tmp_path / "b", result("ewc"))
    told = call("compare", tmp_path / "a", tmp_path / "b", "--csv", tmp_path / "x.csv")
    assert "+3.00" in told
    line = next(text for text in told.splitlines() if "accuracy" in text).split()
    assert [line[0], line[1], line[-2], line[-1]] == ["apd1", "accuracy", "3", "higher"]
    assert "…" not in told
    assert "only in B: split-cifar100 ewc" in told
    assert (tmp_path / "x.csv").read_text().startswith("stream,label,measure")
