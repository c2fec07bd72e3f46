"""What must be reached: bars, baselines, promises and aims, judged from cells."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sigmatau.report import bars
from sigmatau.report.bars import Bar, Finding
from sigmatau.report.fits import exponent

from .made import drops, put, result
from .written import judged, line, results, text, two

ROOT = Path(__file__).parents[2]


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


def test_a_cell_that_another_folder_took_over_is_one_run(tmp_path: Path) -> None:
    folder = results(tmp_path)
    told = {"config": {"settings": {"l1": 6e-4, "l2": 100.0}}, "capacity": 1.3}
    (tmp_path / "recipes" / "other.yaml").write_text(
        "stream: split-cifar100\norders: [A, B]\nmethods: [{method: apd2, label: again}]\n"
    )
    once = two("apd2", "APD(2)", "B", 58, 60, **told)
    put(folder / "split-cifar100", once)
    put(folder / "other", {**once, "label": "again"})
    assert judged(text(folder), "all", "APD(2)", "forgetting")[2] == "seen 1 times"
    # The same work by another run, which took another time, is another run.
    again = two("apd2", "again", "A", 58, 60, **told, seconds=99.0)
    put(folder / "other", again)
    assert judged(text(folder), "all", "APD(2)", "forgetting")[2] == "seen 2 times"


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


def test_findings_without_any_table_are_open() -> None:
    found: list[Finding] = [
        *bars.findings({}, (*bars.BARS, *bars.AIMS)),
        *bars.promises({}),
        *bars.baselines({}, {}),
    ]
    assert {finding.verdict for finding in found} == {"not enough cells yet"}
