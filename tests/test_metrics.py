"""Measures against their definitions, on numbers small enough to check by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sigmatau import metrics

NAN = float("nan")
MATRIX = [[0.9, NAN, NAN], [0.7, 0.8, NAN], [0.8, 0.85, 0.6]]


def test_accuracy_and_forgetting_by_hand() -> None:
    assert metrics.average_accuracy(MATRIX) == pytest.approx(0.75)
    assert metrics.forgetting(MATRIX) == pytest.approx([0.1, -0.05])
    assert metrics.average_forgetting(MATRIX) == pytest.approx(0.025)
    assert metrics.worst_forgetting(MATRIX) == pytest.approx(0.1)
    assert metrics.average_forgetting([[0.5]]) == metrics.worst_forgetting([[0.5]]) == 0


@given(st.integers(2, 6), st.integers(0, 99))
def test_forgetting_is_the_best_before_minus_the_last(tasks: int, seed: int) -> None:
    a = np.tril(np.random.default_rng(seed).random((tasks, tasks)))
    expected = [max(a[k, i] for k in range(i, tasks - 1)) - a[-1, i] for i in range(tasks - 1)]
    assert metrics.forgetting(a).tolist() == pytest.approx(expected)


def test_disparity_by_hand() -> None:
    runs = {
        "A": [{"x": 0.9, "y": 0.5}, {"x": 0.7, "y": 0.5}],
        "B": [{"y": 0.6, "x": 0.6}, {"y": 0.8, "x": 0.6}],
        "C": [{"x": 0.65, "y": 0.55}],
    }
    found = metrics.opd(runs)
    assert found == {"x": pytest.approx(0.2), "y": pytest.approx(0.2)}
    assert metrics.aopd(runs) == pytest.approx(0.2)
    assert metrics.mopd({"A": [{"x": 1.0, "y": 0.0}], "B": [{"x": 0.5, "y": 0.0}]}) == 0.5


@pytest.mark.parametrize("bad", [[], [[1, 2]], [1, 2]])
def test_what_is_no_accuracy_matrix(bad: list[object]) -> None:
    with pytest.raises(ValueError, match="square"):
        metrics.average_accuracy(bad)


def test_what_has_no_disparity() -> None:
    for bad in ({}, {"A": []}, {"A": [{"x": 1.0}], "B": [{"y": 1.0}]}):
        with pytest.raises(ValueError):
            metrics.opd(bad)
