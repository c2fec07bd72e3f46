"""The closed form against SciPy, autograd on the full sum, and the gradient form."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize
from torch import Tensor

from sigmatau.core.consolidate import consolidate
from sigmatau.core.layout import Weight
from sigmatau.core.proximal import dead_zone, huber, soft_threshold
from sigmatau.core.retroactive import (
    EATEN,
    Curve,
    PastTasks,
    SharedPenalty,
    far,
    past_objective,
    rewrite,
)
from sigmatau.core.sparse import Sparse

PRICES = [1e-5, 4e-4, 1e-2, 1.0, 1e3]


def problem(
    seed: int, l1: float, l2: float, tasks: int = 6, out_dim: int = 0
) -> tuple[PastTasks, Tensor]:
    """Return past tasks of one small weight, and a movement that spans all zones of the curve."""
    g = torch.Generator().manual_seed(seed)
    shape = (3, 7)
    deltas = []
    for _ in range(tasks):
        dense = torch.randn(shape, generator=g) * (torch.rand(shape, generator=g) < 0.4)
        deltas.append(Sparse.from_dense(dense))
    masks: list[Tensor | None] = [torch.rand(shape[out_dim], generator=g) for _ in range(tasks)]
    masks[0] = None
    reach = min(dead_zone(l1, l2), 1e3)
    scale = torch.tensor([0.0, 0.3, 1.0, 1.7, 30.0])[torch.randint(5, shape, generator=g)]
    moved = torch.randn(shape, generator=g) * (reach * scale)
    moved[0, 0] = 2.0
    return PastTasks(Weight("w", shape, out_dim), deltas, masks, l1, l2), moved


def by_autograd(past: PastTasks, moved: Tensor) -> Tensor:
    d = moved.clone().double().requires_grad_()
    total = torch.zeros((), dtype=torch.float64)
    for delta, mask in zip(past.deltas, past.masks, strict=True):
        m = torch.ones(()) if mask is None else mask.view(past.weight.broadcast())
        total = total + huber(delta.dense().double() - m.double() * d, past.l1, past.l2).sum()
    (grad,) = torch.autograd.grad(total, d)
    return grad.float()


@pytest.mark.parametrize("bound", [0.0, 0.3, float("inf")])
@pytest.mark.parametrize("curvature", [0.0, 0.5, 40.0])
def test_a_curves_cost_is_the_integral_of_its_derivative(curvature: float, bound: float) -> None:
    curve = Curve(0.2, curvature, bound)
    steps = torch.linspace(0, 1, 20_001, dtype=torch.float64)
    for end in (-1.5, 0.0, 0.004, 2.0):
        along = curve.bend(end * steps) + curve.linear
        integral = end * torch.trapezoid(along, steps)
        got = curve.cost(torch.tensor([end], dtype=torch.float64))
        assert torch.allclose(got, integral, atol=1e-6)


@pytest.mark.parametrize("l1", PRICES)
@pytest.mark.parametrize("l2", PRICES)
@pytest.mark.parametrize("out_dim", [0, 1])
def test_derivative_equals_autograd_on_the_full_sum(l1: float, l2: float, out_dim: int) -> None:
    for seed in range(3):
        past, moved = problem(seed, l1, l2, out_dim=out_dim)
        exact = by_autograd(past, moved)
        tolerance = 1e-5 * max(1.0, l1 * len(past.deltas))
        got = past.derivative(moved).view(exact.shape)
        assert (got - exact).abs().max() <= tolerance
        penalty = SharedPenalty.retroactive(past)
        penalty.refresh(moved)
        assert (penalty.derivative(moved) - exact).abs().max() <= tolerance
        # And back where it started: what was refreshed must not stick.
        penalty.refresh(torch.zeros_like(moved))
        start = by_autograd(past, torch.zeros_like(moved))
        assert (penalty.derivative(torch.zeros_like(moved)) - start).abs().max() <= tolerance


def test_no_refresh_is_needed_where_no_delta_is_near() -> None:
    past, _ = problem(0, 4e-4, 100.0)
    penalty = SharedPenalty.retroactive(past)
    near = min(float(d.values.abs().min()) for d in past.deltas)
    moved = torch.linspace(-0.9, 0.9, 21).view(3, 7) * near
    assert near > 100 * past.reach
    assert (penalty.derivative(moved) - by_autograd(past, moved)).abs().max() <= 1e-5


def test_only_entries_near_a_delta_are_looked_at_again() -> None:
    past, _ = problem(0, 4e-4, 100.0)
    penalty = SharedPenalty.retroactive(past)
    assert penalty.refresh(torch.zeros(3, 7)) == 0
    moved = torch.zeros(3, 7)
    moved[1, 2] = 100.0  # past every delta there
    held = any(i == 9 for d in past.deltas for i in d.indices.tolist())
    assert penalty.refresh(moved) == int(held)


@given(
    st.integers(0, 10_000),
    st.sampled_from([1e-5, 1e-3, 0.1, 10.0, 1e3]),
    st.sampled_from([1e-5, 1e-3, 0.1, 10.0, 1e3]),
)
def test_rewrite_is_the_minimiser(seed: int, l1: float, l2: float) -> None:
    past, moved = problem(seed, l1, l2, tasks=2)
    reach = dead_zone(l1, l2)
    beyond = far(moved, reach)
    for delta, mask in zip(past.deltas, past.masks, strict=True):
        new = rewrite(delta, mask, moved, beyond, 0, reach)
        m = torch.ones(()) if mask is None else mask.view(past.weight.broadcast())
        residual = delta.dense() - m * moved
        assert torch.allclose(new.dense(), soft_threshold(residual, reach), atol=1e-7)
        still = rewrite(delta, mask, moved, beyond, 0, reach, still=True).dense()
        kept = (residual.abs() > EATEN * reach) & ((delta.dense() != 0) | (moved.abs() > reach))
        left = torch.where(kept, residual, 0.0)
        assert torch.equal(still, torch.where(moved == 0, delta.dense(), left))
        cost = l1 * still.abs() + l2 * (residual - still).square()
        assert (cost <= (huber(residual, l1, l2) + l1 * reach / 2) * (1 + 1e-5) + 1e-12).all()
        r = residual.double().numpy()

        def objective(tau: np.ndarray, r: np.ndarray = r) -> float:
            return float(l1 * np.abs(tau).sum() + l2 * ((r.ravel() - tau) ** 2).sum())

        found = minimize(objective, r.ravel(), method="Powell", options={"ftol": 1e-12})
        ours = objective(new.dense().double().numpy().ravel())
        assert ours <= found.fun * (1 + 1e-6) + 1e-9
        assert (new.values != 0).all()
        assert (new.indices[1:] > new.indices[:-1]).all()


@pytest.mark.parametrize("l1", [1e-5, 4e-4, 0.1])
@pytest.mark.parametrize("l2", [1e-3, 1.0, 100.0])
def test_closed_form_is_never_above_the_gradient_form(l1: float, l2: float) -> None:
    past, moved = problem(4, l1, l2)
    reach, beyond = dead_zone(l1, l2), far(moved, dead_zone(l1, l2))
    before = torch.randn(3, 7, generator=torch.Generator().manual_seed(1))
    shared = before + moved
    closed = [
        rewrite(d, m, moved, beyond, 0, reach).dense()
        for d, m in zip(past.deltas, past.masks, strict=True)
    ]
    best = float(past_objective(shared, before, past, closed))
    trained = [d.dense().requires_grad_() for d in past.deltas]
    optimizer = torch.optim.Adam(trained, lr=1e-2)
    for _ in range(300):
        optimizer.zero_grad()
        loss = past_objective(shared, before, past, trained)
        loss.backward()
        optimizer.step()
        assert float(loss.detach()) >= best * (1 - 1e-5) - 1e-7


def test_quadratic_penalty_is_l2_transfer() -> None:
    penalty = SharedPenalty.quadratic(3.0)
    d = torch.tensor([-2.0, 0.0, 0.5])
    assert torch.equal(penalty.derivative(d), 6.0 * d)
    assert penalty.refresh(d) == 0
    step = torch.full((3,), 0.1)
    assert torch.allclose(penalty.prox(d, step, torch.full_like(d, 1e9)), d / 1.6)


def resting_place(past: PastTasks, target: Tensor) -> Tensor:
    """Bisect for the D where the slope of `(D - target)^2 / 2 + sum over tasks` changes sign."""
    low, high = torch.full_like(target, -50.0), torch.full_like(target, 50.0)
    for _ in range(60):
        middle = (low + high) / 2
        falling = middle - target + by_autograd(past, middle) < 0
        low, high = torch.where(falling, middle, low), torch.where(falling, high, middle)
    return (low + high) / 2


@pytest.mark.parametrize("l2", [2.0, 30.0, 1e3])
@pytest.mark.parametrize("seed", range(4))
def test_prox_steps_come_to_rest_at_the_minimum_of_the_whole_objective(
    l2: float, seed: int
) -> None:
    past, _ = problem(seed, 0.3, l2)
    penalty = SharedPenalty.retroactive(past)
    target = torch.randn(3, 7, generator=torch.Generator().manual_seed(seed))
    d, step = torch.zeros(3, 7), torch.full((3, 7), 0.05)
    for i in range(4000):
        if i % 20 == 0:
            penalty.refresh(d)
        d = penalty.prox(d - step * (d - target), step, torch.full_like(d, 1e9))
    zone = (past.reach / past.table[:, -1]).view(3, 1)
    assert ((d - resting_place(past, target)).abs() <= zone + 1e-4).all()


def test_no_sparsity_asks_nothing_of_the_shared_weights() -> None:
    past, moved = problem(0, 0.0, 10.0)
    assert torch.equal(past.derivative(moved), torch.zeros(21))
    penalty = SharedPenalty.retroactive(past)
    assert penalty.refresh(moved) == 0  # nothing has to be looked at again
    assert penalty.derivative(moved).abs().max() == 0


def test_derivative_equals_autograd_after_a_consolidation() -> None:
    """The groups' parts stand on both sides of the residual, so only own deltas are left in it."""
    l1, l2, shape = 4e-4, 100.0, (3, 7)
    g = torch.Generator().manual_seed(0)
    common = torch.randn(shape, generator=g) * (torch.rand(shape, generator=g) < 0.5)
    noise = [
        torch.randn(shape, generator=g) * (torch.rand(shape, generator=g) < 0.2) for _ in "abc"
    ]
    whole = [Sparse.from_dense(common + n) for n in noise]
    found = consolidate(whole, [None] * 3, 1, 1e-3, np.random.default_rng(0))
    assert found.groups[0].nnz > 0
    masks: list[Tensor | None] = [None, torch.rand(3, generator=g), torch.rand(3, generator=g)]
    weight = Weight("w", shape, 0)
    past = PastTasks(weight, found.deltas, masks, l1, l2)
    before = torch.randn(shape, generator=g)
    shared = (before + 0.5 * torch.randn(shape, generator=g)).requires_grad_()
    group, total = found.groups[0].dense(), torch.zeros(())
    for delta, mask in zip(found.deltas, masks, strict=True):
        m = torch.ones(()) if mask is None else mask.view(weight.broadcast())
        star = before * m + group + delta.dense()
        total = total + huber(star - shared * m - group, l1, l2).sum()
    (expected,) = torch.autograd.grad(total, shared)
    moved = shared.detach() - before
    penalty = SharedPenalty.retroactive(past)
    penalty.refresh(moved)
    assert (past.derivative(moved).view(shape) - expected).abs().max() <= 1e-5
    assert (penalty.derivative(moved) - expected).abs().max() <= 1e-5
