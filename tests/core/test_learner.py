"""A step of shared part, mask and delta against autograd and PyTorch's own Adam."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from sigmatau.core.layout import Weight
from sigmatau.core.learner import Decomposed
from sigmatau.core.proximal import dead_zone, huber
from sigmatau.core.retroactive import PastTasks, SharedPenalty, far, rewrite
from sigmatau.core.sparse import Sparse

SHAPE = (3, 4)


def weight(out_dim: int = 0, mask: bool = True, penalty: SharedPenalty | None = None) -> Decomposed:
    g = torch.Generator().manual_seed(0)
    shared = torch.randn(SHAPE, generator=g)
    theta = nn.Parameter(torch.empty(SHAPE))
    logit = nn.Parameter(torch.randn(SHAPE[out_dim], generator=g)) if mask else None
    delta = torch.zeros(SHAPE)
    return Decomposed(
        Weight("w", SHAPE, out_dim), theta, shared.clone(), shared, delta, logit, penalty
    )


def loss(theta: Tensor, step: int) -> Tensor:
    g = torch.Generator().manual_seed(100 + step)
    return (
        (theta - torch.randn(SHAPE, generator=g)).pow(2).mul(torch.rand(SHAPE, generator=g)).sum()
    )


def test_theta_and_the_masks_gradient_are_those_of_autograd() -> None:
    for out_dim in (0, 1):
        w = weight(out_dim)
        shared, delta = w.shared.clone(), w.delta.clone()
        logit = w.logit.detach().clone().requires_grad_()
        theta = shared * torch.sigmoid(logit).view(w.weight.broadcast()) + delta
        assert torch.equal(theta.detach(), w.theta.detach())
        loss(theta, 0).backward()
        loss(w.theta, 0).backward()
        w.mask_gradient()
        assert torch.allclose(w.logit.grad, logit.grad, atol=1e-6)


def test_without_penalties_delta_and_shared_take_adams_own_steps() -> None:
    """With a mask of 1 both parts have theta's gradient, and Adam on each is the reference."""
    w = weight(mask=False, penalty=SharedPenalty.quadratic(0.0))
    shared = nn.Parameter(w.shared.clone())
    delta = nn.Parameter(w.delta.clone())
    adam = torch.optim.Adam([shared, delta], lr=1e-2)
    decay = 1e-3
    for step in range(20):
        theta = shared + delta
        (loss(theta, step) + decay / 2 * theta.pow(2).sum()).backward()
        adam.step()
        adam.zero_grad()
        loss(w.theta, step).backward()
        w.step(step + 1, 1e-2, 0.0, decay)
        w.compose()
        assert w.theta.grad is None
    assert torch.allclose(w.delta, delta.detach(), atol=1e-5)
    assert torch.allclose(w.shared, shared.detach(), atol=1e-5)


def test_no_gradient_no_step() -> None:
    w = weight()
    held = w.delta.clone(), w.shared.clone()
    w.mask_gradient()
    w.step(1, 0.1, 1.0, 0.1)
    assert torch.equal(w.delta, held[0])
    assert torch.equal(w.shared, held[1])


def test_a_price_makes_exact_zeros_and_a_high_one_nothing_else() -> None:
    dense, sparse, empty = weight(), weight(), weight()
    for step in range(200):
        for w, l1 in ((dense, 0.0), (sparse, 0.4), (empty, 100.0)):
            loss(w.theta, 0).backward()
            w.step(step + 1, 1e-2, l1, 0.0)
            w.compose()
    counts = [int((w.delta != 0).sum()) for w in (dense, sparse, empty)]
    assert counts[0] == 12
    assert 0 < counts[1] < 12
    # No threshold exceeds the learning rate, so a momentary longer step may stand out a little.
    assert empty.delta.abs().max() < 1e-2
    assert counts[2] <= 1


def test_shared_weights_that_are_not_worth_moving_stay_and_leave_past_deltas_zero() -> None:
    past = PastTasks(Weight("w", SHAPE, 0), [Sparse.empty(SHAPE)] * 3, [None] * 3, 10.0, 100.0)
    w = weight(penalty=SharedPenalty.retroactive(past))
    free = weight(penalty=SharedPenalty.quadratic(0.0))
    for step in range(50):
        for each in (w, free):
            loss(each.theta, step).backward()
            each.step(step + 1, 1e-2, 10.0, 0.0)
            each.refresh()
            each.compose()
    assert (w.shared - w.before).abs().max() <= past.reach
    assert (free.shared - free.before).abs().max() > 0.01


@pytest.mark.parametrize("fused", [True, False])
def test_past_tasks_stay_where_they_are_though_the_shared_weights_eat_up_their_deltas(
    fused: bool,
) -> None:
    g = torch.Generator().manual_seed(3)
    common, price, drift = torch.randn(SHAPE, generator=g) * 0.1, 0.4, 1e4
    reach = dead_zone(price, drift)
    masks = [torch.rand(SHAPE[0], generator=g) * 0.2 + 0.8 for _ in range(3)]
    deltas = [Sparse.from_dense(common * m[:, None]) for m in masks]  # alike under each mask
    deltas[2] = Sparse.from_dense(deltas[2].dense() * (torch.rand(SHAPE, generator=g) < 0.5))
    past = PastTasks(Weight("w", SHAPE, 0), deltas, masks, price, drift)
    w = weight(penalty=SharedPenalty.retroactive(past, still=True))
    if not fused:
        w.kernel = None
    for step in range(400):
        loss(w.theta, step).mul(0.01).backward()
        w.step(step + 1, 1e-2 * 0.99**step, price, 0.0)
        if step % 10 == 9:
            w.refresh()
    moved = w.shared - w.before
    dropped = 0
    for delta, mask in zip(deltas, masks, strict=True):
        new = rewrite(delta, mask, moved, far(moved, reach), 0, reach, still=True)
        now, then = (
            part * mask[:, None] + d.dense() for part, d in ((w.shared, new), (w.before, delta))
        )
        assert (now - then).abs().max() < reach / 10  # rounding; a dead zone leaves all of reach
        dropped += int(((delta.dense() != 0) & (new.dense() == 0)).sum())
    assert dropped >= 12


def test_settled_nonzeros_stay_the_only_ones_and_are_shrunk_no_more() -> None:
    shrunk, settled = weight(), weight()
    for step in range(1500):
        for w in (shrunk, settled):
            loss(w.theta, 0).backward()
            w.step(step + 1, 1e-2, 0.4, 0.0)
        if step == 199:
            kept = settled.delta != 0
            settled.settle()
    assert 0 < int(kept.sum()) < 12
    assert torch.equal(settled.delta != 0, kept)
    assert loss(settled.theta, 0) < loss(shrunk.theta, 0)
    # Where the delta is free it has come to its optimum, which l1 keeps it from.
    (gradient,) = torch.autograd.grad(loss(settled.theta, 0), settled.theta)
    assert gradient[kept].abs().max() < 0.01
    (gradient,) = torch.autograd.grad(loss(shrunk.theta, 0), shrunk.theta)
    assert gradient[kept].abs().min() > 0.3


def test_small_nonzeros_are_dropped_when_l1_ends_and_large_ones_trained_on() -> None:
    w = weight()
    with torch.no_grad():
        w.delta.copy_(torch.linspace(-0.06, 0.05, 12).view(SHAPE))
    large = w.delta.abs() > 0.03
    held = w.delta.clone()
    w.settle(l1=0.4, least=0.03)
    assert torch.equal(w.delta, held * large)
    assert torch.equal(w.theta, w.shared * w.spread(w.mask) + w.delta)
    for step in range(5):
        loss(w.theta, step).backward()
        w.step(step + 1, 1e-2, 0.4, 0.0)
    assert torch.equal(w.delta != 0, large)


@given(st.integers(0, 10_000), st.sampled_from([0.5, 1e4]), st.booleans())
def test_a_delta_takes_over_what_shared_weights_moved_where_that_is_cheaper(
    seed: int, drift: float, mask: bool
) -> None:
    """Theta stays, and the objective over all tasks, evaluated in full, is never the worse."""
    g = torch.Generator().manual_seed(seed)
    price, least = 0.4, 0.01
    masks = [torch.rand(SHAPE[0], generator=g) * 0.5 + 0.5 for _ in range(3)]
    deltas = [
        Sparse.from_dense(torch.randn(SHAPE, generator=g) * (torch.rand(SHAPE, generator=g) < 0.6))
        for _ in masks
    ]
    past = PastTasks(Weight("w", SHAPE, 0), deltas, masks, price, drift)
    w = weight(mask=mask, penalty=SharedPenalty.retroactive(past))
    with torch.no_grad():
        w.shared.add_(torch.randn(SHAPE, generator=g))
        w.delta.copy_(torch.randn(SHAPE, generator=g) * (torch.rand(SHAPE, generator=g) < 0.7))
    w.compose()

    def objective() -> float:
        drifts = [(w.shared - w.before) * m[:, None] for m in masks]
        residuals = [d.dense() - drift for d, drift in zip(deltas, drifts, strict=True)]
        best = sum(huber(r.double(), price, drift).sum() for r in residuals)
        return float(best + price * w.delta.double().abs().sum())

    before, theta = objective(), w.theta.detach().clone()
    w._split(price, least)
    w.compose()
    assert torch.allclose(w.theta, theta, atol=1e-6)
    # A movement too small to be kept goes whatever it costs.
    assert objective() <= before + price * least * len(masks) * 12 + 1e-3
    assert w.penalty is None


def test_a_movement_that_past_tasks_are_glad_of_stays_in_the_shared_weights() -> None:
    glad = Sparse.from_dense(torch.tensor([1.0, -1.0, 0.0])[:, None].expand(SHAPE).contiguous())
    past = PastTasks(Weight("w", SHAPE, 0), [glad] * 3, [None] * 3, 0.4, 1e4)
    w = weight(penalty=SharedPenalty.retroactive(past))
    with torch.no_grad():
        w.shared.add_(0.5)
    own = w.spread(w.mask) * (w.shared - w.before)
    w.settle(l1=0.4, least=0.01)
    assert torch.allclose(w.shared - w.before, torch.tensor([0.5, 0, 0])[:, None].expand(SHAPE))
    assert torch.equal(w.delta[0], torch.zeros(4))
    assert torch.allclose(w.delta[1:], own[1:])


def test_the_support_of_a_budget_is_kept() -> None:
    w = weight()
    w.support = torch.zeros(SHAPE)
    w.support[1] = 1
    for step in range(5):
        loss(w.theta, step).backward()
        w.step(step + 1, 1e-2, 0.0, 0.0)
        w.compose()
    assert bool((w.delta[1] != 0).all())
    assert int((w.delta != 0).sum()) == 4
    strength = w.strength()
    assert bool((strength[1] > 0).all())
    assert int((strength > 0).sum()) == 4
