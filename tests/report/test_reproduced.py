from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from sigmatau.cli import app
from sigmatau.errors import ConfigError, FileError
from sigmatau.report import bars, beside
from sigmatau.report.bars import Bar, Finding
from sigmatau.report.fits import exponent
from sigmatau.report.reproduced import document, write

from .made import drops, put, put_failed, result, wander

ROOT = Path(__file__).parents[2]
RECIPE = """
title: A table
stream: split-cifar100
orders: [A, B, C]
methods:
  - {method: stl, label: STL}
  - {method: l2t, label: L2T}
  - {method: ewc, label: EWC}
  - {method: den, label: DEN}
  - {method: apd1, label: APD(1), settings: {l1: 6e-4}}
  - {method: apd2, label: APD(2), settings: {l1: 6e-4}}
  - {method: apd1, label: small, settings: {budget: 0.01}}
  - {method: apd1, label: large, settings: {budget: 0.03}}
"""


def two(
    method: str, label: str, order: str, one: float, other: float, **more: Any
) -> dict[str, Any]:
    """Return a result of two tasks with these final scores, in %."""
    indices = (0, 1) if order == "A" else (1, 0)
    made = result(
        method, order, label=label, tasks=("one", "two"), order_indices=indices, spread=0, **more
    )
    final = {"one": one / 100, "two": other / 100}
    return {**made, "final": final, "average_accuracy": (one + other) / 200}


def results(root: Path) -> Path:
    """Write a recipe and cells whose table can be worked out by hand."""
    (root / "recipes").mkdir(parents=True)
    (root / "recipes" / "split-cifar100.yaml").write_text(RECIPE)
    folder = root / "results" / "split-cifar100"
    config = {"settings": {"l1": 6e-4, "l2": 100.0}}
    apd = {"capacity": 1.35, "seconds": 150.0, "config": config}
    for order, one, other in (("A", 50, 60), ("B", 54, 60), ("C", 52, 63)):
        put(folder, two("stl", "STL", order, 60, 60, capacity=2.0, seconds=100.0))
        put(folder, two("l2t", "L2T", order, 45, 55, capacity=1.0))
        put(folder, two("ewc", "EWC", order, 40, 50, capacity=1.0))
        put(folder, two("apd1", "APD(1)", order, one, other, **apd))
        for label, budget, score, size in (("small", 0.01, 59, 1.1), ("large", 0.03, 61, 1.3)):
            given = {"settings": {"budget": budget, "l2": 100.0}}
            put(folder, two("apd1", label, order, score, score, capacity=size, config=given))
    put(folder, two("apd2", "APD(2)", "A", 58, 60, capacity=1.3))
    return root / "results"


def text(folder: Path) -> str:
    return document(folder, folder.parent / "REPRODUCED.md").text


def line(told: str, *starts: str) -> list[list[str]]:
    """Return the cells of the table rows that start so."""
    rows = [[c.strip() for c in t.strip("|").split("|")] for t in told.splitlines() if "|" in t]
    return [row for row in rows if row[: len(starts)] == list(starts)]


def judged(told: str, recipe: str, row: str, bar: str) -> list[str]:
    (found,) = [r for r in line(told, recipe, row) if r[2].startswith(bar)]
    return found[3:]


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


def test_bars_are_kept_or_missed_by_what_was_measured(tmp_path: Path) -> None:
    told = text(results(tmp_path))
    split = "split-cifar100"
    assert judged(told, split, "APD(1)", "capacity")[:2] == ["135.00", "**kept**"]
    assert judged(told, split, "APD(1)", "accuracy minus that of STL")[:2] == [
        "-3.50",
        "**missed**",
    ]
    assert judged(told, split, "APD(1)", "AOPD")[:2] == ["3.50", "**missed**"]
    rivals = judged(told, split, "APD(1)", "accuracy minus that of the best baseline")
    assert rivals == ["", "not enough cells yet", "not run yet: DEN"]
    few = judged(told, split, "APD(2)", "capacity")
    assert few == ["130.00", "not enough cells yet", "1 of 3 orders"]
    assert judged(told, "permuted-mnist", "GEM", "accuracy")[1:] == [
        "not enough cells yet",
        "not run yet",
    ]
    assert judged(told, "all", "APD(1)", "forgetting")[:2] == ["0.00", "**kept**"]


def test_the_best_baseline_counts_once_all_are_run(tmp_path: Path) -> None:
    folder = results(tmp_path)
    for order in "ABC":
        put(folder / "split-cifar100", two("den", "DEN", order, 55, 54, capacity=1.8))
    rivals = judged(text(folder), "split-cifar100", "APD(1)", "accuracy minus that of the best")
    assert rivals == ["2.00", "**kept**", "the best is DEN"]
    # A seed that the baseline was not run with says nothing of the two.
    put(folder / "split-cifar100", {**two("apd1", "APD(1)", "A", 20, 20, capacity=1.3), "seed": 1})
    again = judged(text(folder), "split-cifar100", "APD(1)", "accuracy minus that of the best")
    assert again == rivals


def test_an_aim_is_about_the_largest_budget_that_fits(tmp_path: Path) -> None:
    told = text(results(tmp_path))
    rows = {r[1]: r for r in line(told, "split-cifar100") if "STL" in r[2] and "within" in r[1]}
    assert rows["APD with a budget within 135 %: large"][3:5] == ["1.00", "**kept**"]
    assert rows["APD with a budget within 110 %: small"][3:5] == ["-1.00", "**kept**"]


def test_a_baseline_that_misses_needs_a_reason_in_the_notes(tmp_path: Path) -> None:
    folder = results(tmp_path)
    l2t, ewc = (judged(text(folder), "split-cifar100", row, "to STL") for row in ("L2T", "EWC"))
    assert l2t[:2] == ["5.02", "**kept**"]
    assert ewc == ["-4.97", "**missed**", "no reason stated yet"]
    notes = "### Where it falls short\n\n- **EWC**: the | reason,\n  tested so.\n"
    (folder / "split-cifar100" / "NOTES.md").write_text(notes)
    told = text(folder)
    assert notes in told
    assert judged(told, "split-cifar100", "EWC", "to STL")[2] == "reason in the notes"


def test_a_baseline_whose_paper_has_no_stl_is_not_judged(tmp_path: Path) -> None:
    folder = results(tmp_path)
    for name in ("stl", "hat"):
        put(folder / "hetero8", two(name, name.upper(), "A", 55, 54, stream="hetero8"))
    told = text(folder)
    assert "| HAT | 80.36 |" in told
    assert not [row for row in line(told, "hetero8") if "to STL" in row[2]]


def test_what_apd_forgets_and_what_a_drop_moves_is_told(tmp_path: Path) -> None:
    folder = results(tmp_path)
    config = {"settings": {"l2": 100.0}}
    put(folder / "other", result("apd1", label="leaky", loss=0.001, spread=0, config=config))
    put(folder / "other", result("apd2", label="dropped", drops=drops()))
    told = text(folder)
    found = judged(told, "all", "APD(1)", "forgetting")
    # Each of nine later tasks costs the first one 0.1 points.
    assert found[:2] == ["0.90", "**missed**"]
    assert found[2] == "in 1 of 10; the most in other, leaky"
    assert judged(told, "all", "APD(2)", "change")[:2] == ["0.00", "**kept**"]


def test_merging_what_lies_far_apart_is_judged_by_itself(tmp_path: Path) -> None:
    folder = results(tmp_path)
    for beta, loss in ((1e-6, 0.0), (1e-2, 0.001)):
        settings = {"l2": 100.0, "consolidate_every": 5, "beta": beta}
        label, config = f"beta {beta:g}", {"settings": settings}
        put(folder / "other", result("apd2", label=label, loss=loss, spread=0, config=config))
    told = text(folder)
    assert judged(told, "all", "APD(2)", "forgetting")[:2] == ["0.00", "**kept**"]
    apart = judged(told, "all", "APD(2), beta of 0.01", "forgetting")
    assert apart == ["0.90", "**missed**", "in 1 of 1; the most in other, beta 0.01"]


def test_with_dropout_a_row_is_judged_beside_all_baselines_by_as_many_orders(
    tmp_path: Path,
) -> None:
    folder, name = results(tmp_path), "split-cifar100-dropout"
    label = "APD with a budget of 0.035, dropout"
    for order in "AB":
        put(folder / name, two("stl", "STL, dropout", order, 66, 66))
        put(folder / name, two("stl", "STL", order, 60, 60))
        put(folder / name, two("pgn", "PGN, dropout", order, 58, 58))
        put(folder / name, two("pgn", "PGN", order, 64, 63))
        put(folder / name, two("apd1", label, order, 65, 66, capacity=1.3))
    row = (name, label)
    few = judged(text(folder), *row, "accuracy minus that of STL")
    assert few == ["-0.50", "not enough cells yet", "2 of 3 orders"]
    put(folder / name, two("apd1", label, "C", 65, 66, capacity=1.3))
    told = text(folder)
    assert judged(told, *row, "accuracy minus that of STL")[:2] == ["-0.50", "**missed**"]
    assert judged(told, *row, "accuracy minus that of the best baseline") == [
        "2.00",
        "**kept**",
        "the best is PGN",
    ]


@pytest.mark.parametrize(("power", "verdict"), [(0.5, "kept"), (1.0, "missed")])
def test_growth_is_judged_by_stored_numbers_not_by_their_share(
    tmp_path: Path, power: float, verdict: str
) -> None:
    steps, head = np.arange(1, 41), 0.01
    share = (1 + head) / (1 + head * steps)  # the paper's divisor grows with the heads
    stored = 1 + 0.1 * (steps - 1.0) ** power
    assert exponent(stored.tolist()) == pytest.approx(power)
    given = {"stream": "omniglot-rotation", "tasks": ("one", "two"), "order_indices": (0, 1)}
    folder = tmp_path / "results" / "omniglot-rotation"
    for order in "AB":
        curve = (steps * share).tolist()
        put(folder, result("stl", order, label="STL", curve=curve, **given))
        curve = (stored * share).tolist()
        assert (exponent(curve) or 1) < 0.95
        put(folder, result("apd2", order, label="APD(2)", curve=curve, **given))
    found = judged(text(tmp_path / "results"), "omniglot-rotation", "APD(2)", "exponent")
    assert found[:2] == [f"{power:.2f}", f"**{verdict}**"]
    assert "linear R²" in found[2]


@pytest.mark.parametrize(
    ("kind", "value", "holds"),
    [
        ("at least", 67.4 - 69.4, True),
        ("at least", -2.01, False),
        ("at most", -2.0, True),
        ("at most", -1.99, False),
        ("above", -2.0, False),
        ("above", -1.99, True),
    ],
)
def test_a_limit_that_is_just_met_is_met(kind: Any, value: float, holds: bool) -> None:
    assert Bar("a", "b", "to_stl", kind, -2.0).holds(value) is holds


def test_every_bar_is_about_a_measure_and_a_recipe_that_exist() -> None:
    there = {path.stem for path in (ROOT / "recipes").glob("*.yaml")}
    for bar in (*bars.BARS, *bars.AIMS):
        assert bar.measure in bars.MEASURES
        assert bar.recipe in there
    assert set(bars.NEEDED) <= there


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


def test_findings_without_any_table_are_open() -> None:
    found: list[Finding] = [
        *bars.findings({}, (*bars.BARS, *bars.AIMS)),
        *bars.promises({}),
        *bars.baselines({}, {}),
    ]
    assert {finding.verdict for finding in found} == {"not enough cells yet"}


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
