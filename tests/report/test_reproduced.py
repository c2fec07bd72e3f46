from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sigmatau.cli import app
from sigmatau.errors import ConfigError, FileError
from sigmatau.report import beside
from sigmatau.report.reproduced import document, write

from .made import put, put_failed, result, wander
from .written import line, results, text, two

ROOT = Path(__file__).parents[2]


def test_a_row_is_what_its_definition_says(tmp_path: Path) -> None:
    reached, cost = line(text(results(tmp_path)), "APD(1)")[:2]
    # Means of 55, 57 and 57.5; orders move task one by 4 points and task two by 3.
    assert reached[1:4] == ["59.93", "56.50 (1.32)", "-3.43"]
    assert reached[4:6] == ["-3.82", "-3.50"]
    assert reached[6:10] == ["2.12", "3.50", "3.43", "4.00"]
    assert reached[10] == "3 x 1, of 3"
    assert cost[1:5] == ["134.0", "135.0", "166.5", "152.5"]
    assert cost[-1] == "1.50"


def test_no_row_is_dropped(tmp_path: Path) -> None:
    told = text(results(tmp_path))
    assert line(told, "DEN")[0][-1] == "not run yet"
    assert line(told, "DEN")[0][1] == "57.38"
    assert line(told, "RCL")[0][-1] == "not in the recipe"
    assert line(told, "APD(2)")[0][-1] == "1 x 1, of 3"
    # The paper's ablations are another table, and a budget is not in the paper.
    assert not line(told, "APD(1) without mask")
    assert line(told, "small")[0][1] == ""
    assert "19 of 24 cells are finished" in told


def test_a_recipe_that_nobody_ran_is_there_too(tmp_path: Path) -> None:
    folder = results(tmp_path)
    (tmp_path / "recipes" / "drift.yaml").write_text(
        "title: Drift\nstream: digits\nmethods: [{method: l2t, label: L2T}]\n"
    )
    told = text(folder)
    assert "## drift: Drift\n\n`sigmatau grid recipes/drift.yaml --out results/drift`" in told
    assert "0 of 1 cells are finished" in told


def test_stl_of_the_streams_table_serves_a_recipe_that_has_none(tmp_path: Path) -> None:
    folder = results(tmp_path)
    put(folder / "ablation", two("apd1", "alone", "A", 58, 58, capacity=1.7))
    told = text(folder)
    assert line(told, "alone")[0][5] == "-2.00"
    assert "STL is that of `split-cifar100`" in told


def test_settings_and_searches_are_listed(tmp_path: Path) -> None:
    folder = results(tmp_path)
    search = folder / "tuning" / "split-cifar100-apd1"
    search.mkdir(parents=True)
    trial = {"number": 0, "state": "complete", "value": 0.61, "score": 0.61, "capacity": 1.3}
    log = [{**trial, "settings": {"l1": 6.0002e-4}}, {**trial, "settings": {"l1": 1e-2}}]
    log[1]["state"] = "pruned"
    (search / "trials.json").write_text(json.dumps({"trials": log}))
    (search / "best.yaml").write_text(
        "method: apd1\nsettings: {epochs: 5, l1: 0.0006}\n"
        "validation: {score: 0.6123, capacity: 1.301}\ntrials: 2\n"
    )
    vain = folder / "tuning" / "vain"
    vain.mkdir()
    searched = {"search": {"cell": {"method": "apd1"}}, "trials": log[:1]}
    (vain / "trials.json").write_text(json.dumps(searched))
    with pytest.raises(FileError, match="vain is no finished search"):  # one fits: where is it?
        text(folder)
    log[0]["value"] = -2.0
    (vain / "trials.json").write_text(json.dumps(searched))
    told = text(folder)
    (none,) = line(told, "[vain](results/tuning/vain/trials.json)")
    assert none[1:] == ["apd1", "l1 0.0006", "1 (1 complete)", "none fits", "", "", "no row"]
    (found,) = line(told, "[split-cifar100-apd1](results/tuning/split-cifar100-apd1/trials.json)")
    assert found[1:4] == ["apd1", "l1 from 0.0006 to 0.01", "2 (1 complete, 1 pruned)"]
    assert found[4:] == ["l1 0.0006", "61.23", "130.1", "split-cifar100: APD(1)"]
    assert line(told, "DEN")[-1][1:] == ["nothing else", "asked for"]
    assert "l1 0.0006, l2 100" in line(told, "APD(1)")[-1][1]


def test_pictures_are_linked_and_the_same_each_time(tmp_path: Path) -> None:
    folder = results(tmp_path)
    put(folder / "drift", result("l2t", stream="digits", label="L2T"), wander(0.5))
    out = tmp_path / "docs" / "REPRODUCED.md"
    done = CliRunner().invoke(app, ["reproduced", str(folder), "--out", str(out)])
    assert done.exit_code == 0, done.output
    told = out.read_text()
    files = {path.name: path.read_bytes() for path in (folder / "figures").iterdir()}
    assert "split-cifar100-order-disparity.svg" in files
    assert "drift-drift.svg" in files
    for name, picture in files.items():
        assert f"](../results/figures/{name})" in told
        assert picture.startswith(b"<?xml")
    write(folder, out)
    assert out.read_text() == told
    assert files == {path.name: path.read_bytes() for path in (folder / "figures").iterdir()}


def test_a_cell_under_way_changes_nothing(tmp_path: Path) -> None:
    folder = results(tmp_path)
    before = text(folder)
    started = folder / "split-cifar100" / "cells" / "den-A-0"
    started.mkdir()
    (started / "config.json").write_text("{}")
    assert text(folder) == before


def test_a_broken_cell_is_shown_and_told(tmp_path: Path) -> None:
    folder = results(tmp_path)
    put_failed(folder / "split-cifar100", "den", "A", 0, "Traceback\nTrainingError: NaN")
    broken = folder / "split-cifar100" / "cells" / "den-B-0"
    broken.mkdir()
    (broken / "result.json").write_text("{")
    made = document(folder, tmp_path / "REPRODUCED.md")
    assert line(made.text, "DEN")[0][-1] == "not run yet, 2 failed"
    assert "- Not shown above: den-A-0: TrainingError: NaN" in made.text
    (told,) = [told for told in made.warnings if "den-B-0" in told]
    assert "result.json is unusable, delete it and run the cell again" in told


def test_what_is_no_result_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="a folder for each recipe"):
        text(tmp_path / "nowhere")
    (tmp_path / "results").mkdir()
    with pytest.raises(FileError, match="run a recipe first"):
        text(tmp_path / "results")
    (tmp_path / "results" / "empty").mkdir()
    with pytest.raises(FileError, match="empty holds no results: give a folder"):
        text(tmp_path / "results")


def test_a_broken_folder_is_named(tmp_path: Path) -> None:
    folder = results(tmp_path)
    mixed = folder / "mixed"
    put(mixed, result())
    put(mixed, result(stream="digits", label="x"))
    with pytest.raises(FileError, match="mixed holds cells of split-cifar100 and digits"):
        text(folder)
    (mixed / "recipe.yaml").write_text("methods: {")
    with pytest.raises(ConfigError, match=r"mixed/recipe\.yaml is not YAML"):
        text(folder)
    (mixed / "recipe.yaml").unlink()
    (mixed / "cells").rename(tmp_path / "elsewhere")
    mixed.rmdir()
    (folder / "split-cifar100" / "NOTES.md").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(FileError, match=r"NOTES\.md cannot be read"):
        text(folder)
    (folder / "split-cifar100" / "NOTES.md").unlink()
    (folder / "tuning" / "half").mkdir(parents=True)
    with pytest.raises(FileError, match=r"half is no finished search.*sigmatau tune"):
        text(folder)


@pytest.mark.skipif(not (ROOT / "results").is_dir(), reason="results are not part of the package")
def test_the_document_of_this_repository_is_up_to_date() -> None:
    made = document(ROOT / "results", ROOT / "REPRODUCED.md")
    assert (ROOT / "REPRODUCED.md").read_text() == made.text, (
        "REPRODUCED.md is not what results/ says: run `make reproduced`"
    )
    short = (ROOT / "docs" / "methods.md").read_text()
    assert short == beside.put_into(short, made.beside, ROOT), "run `make reproduced`"
    missing = [n for n in made.figures if not (ROOT / "results" / "figures" / n).exists()]
    assert not missing, "run `make reproduced`"


def test_the_short_form_stands_between_its_marks(tmp_path: Path) -> None:
    text = f"before\n{beside.BEGIN}\nold\n{beside.END}\nafter\n"
    once = beside.put_into(text, "new", tmp_path)
    assert "old" not in once
    assert once.startswith("before\n")
    assert once.endswith("\nafter\n")
    assert beside.put_into(once, "new", tmp_path) == once
    with pytest.raises(FileError, match="no place for the figures"):
        beside.put_into("nothing here", "new", tmp_path)
