from __future__ import annotations

import json
from pathlib import Path

import pytest

from sigmatau.errors import FileError
from sigmatau.report.results import read

from .made import gallery, put, put_failed, result


def states(folder: Path) -> dict[str, str]:
    return {run.id: run.state for run in read([folder]).runs}


def test_every_cell_has_a_state_and_none_is_hidden(tmp_path: Path) -> None:
    put(tmp_path, result("apd1", "A", 0))
    put(tmp_path, result("apd1", "B", 1))
    put_failed(tmp_path, "ewc", "A", 0, "boom")
    started = tmp_path / "cells" / "gem-A-0"
    started.mkdir()
    cell = {"stream": "split-cifar100", "method": "gem", "order": "A", "seed": 0}
    (started / "config.json").write_text(json.dumps({"format": 1, "cell": cell}))
    assert states(tmp_path) == {
        "apd1-A-0": "done",
        "apd1-B-1": "done",
        "ewc-A-0": "failed",
        "gem-A-0": "unfinished",
        "apd1-A-1": "missing",
        "apd1-B-0": "missing",
    }


def test_a_recipe_says_what_is_missing_and_what_a_cell_is_called(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text(
        "stream: split-cifar100\norders: [A, B]\n"
        "methods: [{method: apd1, label: APD(1)}, {method: ewc, label: EWC}]\n"
    )
    put(tmp_path, result("apd1", "A", 0, label="APD(1)"))
    started = tmp_path / "cells" / "ewc-B-0"
    started.mkdir()
    runs = {(r.key.label, r.key.order): r.state for r in read([tmp_path]).runs}
    assert runs == {
        ("APD(1)", "A"): "done",
        ("EWC", "B"): "unfinished",
        ("APD(1)", "B"): "missing",
        ("EWC", "A"): "missing",
    }


@pytest.mark.parametrize("text", ["", "{", "[]", '{"stream": "x"}'])
def test_a_damaged_result_is_a_failure_that_says_so(tmp_path: Path, text: str) -> None:
    put(tmp_path, result("apd1", "A", 0))
    broken = put_failed(tmp_path, "ewc", "A", 0, "an old trace")
    (broken / "result.json").write_text(text)
    run = next(r for r in read([tmp_path]).runs if r.method == "ewc")
    assert run.state == "failed"
    assert "result.json is unusable" in run.trace


def test_damaged_parameters_do_not_hide_the_result(tmp_path: Path) -> None:
    put(tmp_path, result(), parameters={"points": "none"})
    (run,) = read([tmp_path]).runs
    assert run.state == "done"
    assert run.drift is None
    assert "parameters.json is unusable" in run.trace


def test_the_same_cell_in_two_folders_counts_once_and_is_told(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    put(one, result(score=0.5, spread=0))
    put(two, result(score=0.7, spread=0))
    put(two, result("ewc"))
    results = read([one, two])
    assert [r.method for r in results.runs] == ["apd1", "ewc"]
    assert results.runs[0].done.average_accuracy == pytest.approx(0.5)
    assert any("same cell" in note for note in results.notes)


def test_a_folder_without_results_is_refused_with_a_way_out(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="sigmatau grid"):
        read([tmp_path])
    (tmp_path / "cells").mkdir()
    with pytest.raises(FileError, match="run one first"):
        read([tmp_path])


def test_the_gallery_has_all_states_that_it_promises(tmp_path: Path) -> None:
    found = list(states(gallery(tmp_path)).values())
    assert (found.count("done"), found.count("failed"), found.count("missing")) == (34, 1, 1)
