from __future__ import annotations

import csv
import io
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from sigmatau.errors import ConfigError, FileError
from sigmatau.report.compare import Comparison, compare, paired_interval, to_csv, welch_interval

from .made import put, result


def accuracy(a: Path, b: Path) -> Comparison:
    return next(row for row in compare(a, b).rows if row.measure == "accuracy")


def test_intervals_are_the_textbooks() -> None:
    generator = np.random.default_rng(0)
    x, y = generator.normal(60, 2, 6), generator.normal(63, 1, 6)
    paired = stats.ttest_rel(y, x).confidence_interval(0.9)
    assert paired_interval(x, y, 0.9) == pytest.approx((paired.low, paired.high))
    welch = stats.ttest_ind(y[:4], x, equal_var=False).confidence_interval(0.95)
    assert welch_interval(x, y[:4], 0.95) == pytest.approx((welch.low, welch.high))
    assert paired_interval([1.0], [2.0], 0.95) == (None, None)
    assert welch_interval([1.0, 1.0], [2.0, 2.0], 0.95) == (1.0, 1.0)


def test_an_interval_holds_the_truth_as_often_as_it_says() -> None:
    generator = np.random.default_rng(1)
    hits = 0
    for _ in range(600):
        shared = generator.normal(0, 5, 4)  # what order and seed do to both
        low, high = paired_interval(
            shared + generator.normal(0, 1, 4), shared + generator.normal(2, 1, 4), 0.9
        )
        assert low is not None
        hits += low <= 2 <= high
    assert 0.86 < hits / 600 < 0.94


def test_cells_of_one_order_and_seed_are_paired(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    gains = {"A": 0.01, "B": 0.011, "C": 0.012}
    for order, gain in gains.items():
        put(a, result("apd1", order, score=0.6, spread=0.05))
        put(b, result("apd1", order, score=0.6 + gain, spread=0.05))
    put(b, result("apd1", "A", 7, score=0.9))
    row = accuracy(a, b)
    assert (row.paired, row.identical, row.cells_a, row.cells_b) == (3, 0, 3, 4)
    assert row.difference == pytest.approx(1.1)
    # Orders lie far apart, what they gain does not: only pairs can tell.
    assert (row.low, row.high) == pytest.approx((1.1 - 0.24841, 1.1 + 0.24841), abs=1e-4)
    assert row.verdict == "higher"


def test_the_same_results_are_called_the_same(tmp_path: Path) -> None:
    for order in "AB":
        put(tmp_path / "a", result("apd1", order, seconds=100))
        put(tmp_path / "b", result("apd1", order, seconds=200 + ord(order)))
    told = {row.measure: row.verdict for row in compare(tmp_path / "a", tmp_path / "b").rows}
    assert told["accuracy"] == "same"
    assert told["seconds"] == "higher"


def test_without_common_cells_both_sides_are_pooled(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    for seed in range(3):
        put(a, result("apd1", "A", seed, score=0.6, spread=0.002))
        put(b, result("apd1", "A", 10 + seed, score=0.7, spread=0.002))
    row = accuracy(a, b)
    assert row.paired == 0
    assert row.verdict == "higher"
    assert accuracy(b, a).verdict == "lower"


def test_one_cell_gives_a_difference_but_no_interval(tmp_path: Path) -> None:
    put(tmp_path / "a", result("apd1", score=0.6))
    put(tmp_path / "b", result("apd1", score=0.7))
    put(tmp_path / "b", result("ewc"))
    row = accuracy(tmp_path / "a", tmp_path / "b")
    assert (row.low, row.high) == (None, None)
    assert row.verdict == "no interval"
    assert compare(tmp_path / "a", tmp_path / "b").only_b == ("split-cifar100 ewc",)


def test_csv_has_a_line_for_each_measure(tmp_path: Path) -> None:
    put(tmp_path / "a", result())
    put(tmp_path / "b", result())
    rows = list(csv.DictReader(io.StringIO(to_csv(compare(tmp_path / "a", tmp_path / "b")))))
    assert [row["measure"] for row in rows][:2] == ["accuracy", "forgetting"]
    assert all(float(row["difference"]) == 0 and row["low"] == "" for row in rows)


def test_nothing_in_common_and_silly_levels_are_refused(tmp_path: Path) -> None:
    put(tmp_path / "a", result("apd1"))
    put(tmp_path / "b", result("ewc"))
    with pytest.raises(FileError, match="nothing to compare"):
        compare(tmp_path / "a", tmp_path / "b")
    with pytest.raises(ConfigError, match="between 0 and 1"):
        compare(tmp_path / "a", tmp_path / "b", level=95)


def test_order_disparity_is_compared_over_common_cells(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    for order in "AB":
        put(a, result("apd1", order, spread=0.05))
        put(b, result("apd1", order, spread=0.0))
    put(b, result("apd1", "C", spread=0.5))
    told = {row.measure: row for row in compare(a, b).rows}
    finals = [result("apd1", order, spread=0.05)["final"] for order in "AB"]
    gaps = [100 * abs(finals[0][task] - finals[1][task]) for task in finals[0]]
    assert told["AOPD"].a == pytest.approx(np.mean(gaps))
    assert told["MOPD"].a == pytest.approx(max(gaps))
    assert told["AOPD"].b == pytest.approx(0)
    assert told["AOPD"].verdict == "no interval"
