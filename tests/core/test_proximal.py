"""Thresholds against brute-force minimisation."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar

from sigmatau.core.proximal import clipped_prox, dead_zone, huber, l1_prox_, soft_threshold

numbers = st.floats(-3, 3, width=32)
prices = st.sampled_from([1e-5, 1e-3, 0.1, 1.0, 30.0, 1e3])


FAR = torch.tensor(1e9)


def brute(f, width: float = 8.0) -> float:
    """Minimise a convex function of one number on [-width, width]."""
    return minimize_scalar(f, bounds=(-width, width), method="bounded", options={"xatol": 1e-10}).x


@given(numbers, prices, prices)
def test_soft_threshold_minimises_the_past_tasks_objective(r: float, l1: float, l2: float) -> None:
    tau = float(soft_threshold(torch.tensor(r, dtype=torch.float64), dead_zone(l1, l2)))

    def objective(t: float) -> float:
        return l1 * abs(t) + l2 * (r - t) ** 2

    best = brute(objective)
    assert objective(tau) <= objective(best) * (1 + 1e-9) + 1e-12
    assert objective(tau) <= objective(0.0)
    value = float(huber(torch.tensor(r, dtype=torch.float64), l1, l2))
    assert value == pytest.approx(objective(tau), rel=1e-9, abs=1e-12)


@given(
    numbers,
    st.floats(1e-3, 10),
    st.floats(0, 50),
    st.one_of(st.floats(0, 5), st.just(float("inf"))),
    st.floats(-3, 3),
)
def test_clipped_prox_minimises_its_definition(
    x: float, a: float, q: float, w: float, linear: float
) -> None:
    t = torch.tensor([x], dtype=torch.float64)
    bound = torch.tensor([w], dtype=torch.float64)
    z = float(clipped_prox(t, torch.tensor([a], dtype=torch.float64), q, bound, FAR, linear))

    def penalty(v: float) -> float:
        edge = w / q if q else float("inf")
        return q * v * v / 2 if abs(v) <= edge else w * abs(v) - w * edge / 2

    def objective(v: float) -> float:
        return (v - x) ** 2 / (2 * a) + penalty(v) + linear * v

    assert objective(z) <= objective(brute(objective)) + 1e-8
    same = float(clipped_prox(t, torch.tensor([a], dtype=torch.float64), q, w, FAR, linear))
    assert same == z


def test_prox_never_moves_further_than_its_limit() -> None:
    x = torch.tensor([0.5, -0.5, 1e-4])
    step = torch.full((3,), 1e6)
    assert torch.equal(
        l1_prox_(x.clone(), step, 1.0, torch.tensor(1e-3)), torch.tensor([0.499, -0.499, 0.0])
    )
    moved = clipped_prox(x, step, 1e3, torch.ones(3), torch.tensor(1e-3))
    assert (moved - x).abs().max() <= 1e-3 + 1e-7


def test_a_pull_and_what_holds_against_it_are_limited_together() -> None:
    """They meet where they are equal, however long the step."""
    x, step = torch.tensor([1e-3, -1e-3]), torch.full((2,), 1e5)
    linear, bound = torch.tensor([-0.1, 0.1]), torch.full((2,), 0.3)
    moved = clipped_prox(x, step, 200.0, bound, torch.tensor(1.001e-3), linear)
    torch.testing.assert_close(moved, torch.tensor([0.1 / 200, -0.1 / 200]), rtol=1e-3, atol=0)


@given(numbers, st.floats(0, 2))
def test_l1_prox_is_the_soft_threshold(x: float, t: float) -> None:
    got = l1_prox_(torch.tensor([x]), torch.tensor([t]), 1.0, FAR)
    assert torch.equal(got, soft_threshold(torch.tensor([x]), t))
    assert (got == 0).item() == (abs(torch.tensor(x).item()) <= torch.tensor(t).item())


def test_dead_zone_at_its_ends() -> None:
    assert dead_zone(0.0, 100.0) == 0
    assert dead_zone(1e-3, 0.0) == float("inf")
    assert dead_zone(4e-4, 100.0) == pytest.approx(2e-6)
