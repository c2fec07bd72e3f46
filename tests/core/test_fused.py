"""The kernel takes the same steps as the tensor code, in every form, and is never needed."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest
import torch
from torch import nn

from sigmatau import APDNet
from sigmatau.core import fused
from sigmatau.core.layout import Weight
from sigmatau.core.learner import Decomposed
from sigmatau.core.retroactive import PastTasks, SharedPenalty
from sigmatau.core.sparse import Sparse

from ..conftest import blobs, small_conv

SHAPES = {(33, 47): 0, (6, 5, 3, 3): 0, (7, 19): 1, (5, 6, 3, 3): 1}
HELD = ("fixed", "even", "unbounded", "retroactive", "still")


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    fused._library.cache_clear()
    yield
    fused._library.cache_clear()


def penalty(kind: str, weight: Weight, g: torch.Generator) -> SharedPenalty | None:
    if kind == "fixed":
        return None
    if kind == "even":
        return SharedPenalty.quadratic(2)  # whole numbers too
    if kind == "unbounded":
        return SharedPenalty.quadratic(torch.rand(weight.shape, generator=g))
    deltas, masks = [], []
    for _ in range(4):
        some = torch.rand(weight.shape, generator=g) < 0.3
        deltas.append(Sparse.from_dense(torch.randn(weight.shape, generator=g) * 0.01 * some))
        masks.append(torch.rand(weight.channels, generator=g) * 0.9 + 0.1)
    if kind == "still":  # a dead zone within what the two may differ by
        return SharedPenalty.retroactive(PastTasks(weight, deltas, masks, l1=0.02, l2=1e4), True)
    return SharedPenalty.retroactive(PastTasks(weight, deltas, masks, l1=1e-3, l2=0.5))


def build(shape: tuple[int, ...], held: str, mask: bool, sparse: str) -> Decomposed:
    g = torch.Generator().manual_seed(1)
    weight = Weight("w", shape, SHAPES[shape])
    before = torch.randn(shape, generator=g) * 0.1
    return Decomposed(
        weight,
        nn.Parameter(torch.empty(shape)),
        before.clone(),
        before,
        torch.zeros(shape),
        nn.Parameter(torch.randn(weight.channels, generator=g)) if mask else None,
        penalty(held, weight, g),
        (torch.rand(shape, generator=g) < 0.5).float() if sparse == "support" else None,
    )


def steps(weights: list[Decomposed], l1: float, count: int = 40) -> Iterator[None]:
    """Let weights take the same steps towards the same goal, and stop after each."""
    g = torch.Generator().manual_seed(2)
    goal = torch.randn(weights[0].weight.shape, generator=g) * 0.1
    for step in range(count):
        noise = torch.randn(goal.shape, generator=g) * 0.01
        grad = weights[0].theta.detach() - goal + noise
        for w in weights:
            w.theta.grad = grad.clone()
            w.mask_gradient()
            if w.logit is not None:
                assert w.logit.grad is not None
                w.logit.data -= 0.1 * w.logit.grad
            w.step(step + 1, 1e-3, l1, 1e-2)
        yield
        if step % 10 == 9:
            weights[0].refresh()


def train(w: Decomposed, l1: float, count: int = 40) -> None:
    for _ in steps([w], l1, count):
        pass


def live(w: Decomposed) -> dict[str, torch.Tensor]:
    return {**dict(w.parts()), **dict(w.moments()), "theta": w.theta}


def assert_alike(a: Decomposed, b: Decomposed) -> None:
    for name, tensor in live(a).items():
        torch.testing.assert_close(
            tensor, live(b)[name], rtol=1e-6, atol=1e-6, msg=lambda m, n=name: n + m
        )


@pytest.mark.parametrize(("shape", "held"), list(product(SHAPES, HELD)))
@pytest.mark.parametrize("mask", [True, False])
@pytest.mark.parametrize("sparse", ["price", "support", "dense"])
def test_every_form_of_the_step_is_that_of_the_tensor_code(
    shape: tuple[int, ...], held: str, mask: bool, sparse: str
) -> None:
    one, other = (build(shape, held, mask, sparse) for _ in range(2))
    assert one.kernel is not None, "this machine has no C compiler"
    other.kernel = None
    l1 = 0.05 if sparse == "price" else 0.0
    other.penalty = one.penalty
    for _ in steps([one, other], l1):
        assert_alike(one, other)
        if held == "still":
            at_rest = [int((w.shared == w.before).sum()) for w in (one, other)]
            assert abs(at_rest[0] - at_rest[1]) <= 2  # on the border of the zone
        # From the same numbers again: which curve an entry follows hangs on its last bit.
        with torch.no_grad():
            for name, tensor in live(other).items():
                tensor.copy_(live(one)[name])
    if held == "still":
        assert 0 < at_rest[0] < one.shared.numel()
    if held in ("retroactive", "still"):
        assert one.penalty is not None
        assert one.penalty.near is not None  # entries with curves of their own were among them


def test_steps_on_several_threads_have_the_same_bits() -> None:
    shape, found = (300, 400), []
    SHAPES[shape] = 0
    before = torch.get_num_threads()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            w = build(shape, "retroactive", True, "price")
            assert w.kernel is not None
            assert not w.kernel.serial
            train(w, 0.05, 5)
            found.append(w.theta.detach().clone())
    finally:
        torch.set_num_threads(before)
        del SHAPES[shape]
    assert torch.equal(*found)


def test_theta_is_composed_to_the_bits_of_the_tensor_code() -> None:
    w = build((33, 47), "retroactive", True, "price")
    train(w, 0.05)
    written = w.theta.detach().clone()
    w.compose()
    assert torch.equal(w.theta, written)


def test_a_strided_gradient_is_no_obstacle() -> None:
    one, other = (build((33, 47), "even", True, "dense") for _ in range(2))
    other.kernel = None
    grad = torch.randn(47, 33).T
    for w in (one, other):
        w.theta.grad = grad.clone(memory_format=torch.preserve_format)
        w.mask_gradient()
        w.step(1, 1e-3, 0.0, 0.0)
    assert_alike(one, other)


def test_a_network_learns_the_same_with_and_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    scores, sizes = [], []
    for switch in ("1", "0"):
        monkeypatch.setenv("SIGMATAU_FUSED", switch)
        assert (build((33, 47), "even", True, "price").kernel is not None) == (switch == "1")
        net = APDNet(small_conv(), epochs=5, l1=1e-3, seed=0)
        for i in range(3):
            net.learn(str(i), blobs(i, shape=(1, 6, 6)), progress=False)
        scores.append([net.accuracy(str(i), blobs(i, shape=(1, 6, 6))) for i in range(3)])
        sizes.append(net.capacity().paper)
    assert scores[0] == pytest.approx(scores[1], abs=0.02)
    assert sizes[0] == pytest.approx(sizes[1], rel=0.01)


@pytest.mark.parametrize("compiler", ["no-such-compiler", "false"])
def test_without_a_compiler_it_is_tensor_code(
    compiler: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CC", compiler)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with caplog.at_level(logging.INFO):
        w = build((33, 47), "retroactive", True, "price")
    assert w.kernel is None
    assert "tensor code" in caplog.text
    assert list((tmp_path / "sigmatau" / "kernels").iterdir()) == []
    train(w, 0.05)


def test_it_is_compiled_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert build((33, 47), "even", True, "price").kernel is not None
    (file,) = (tmp_path / "sigmatau" / "kernels").iterdir()
    stamp = file.stat().st_mtime_ns
    fused._library.cache_clear()
    assert build((33, 47), "even", True, "price").kernel is not None
    assert file.stat().st_mtime_ns == stamp


def test_double_precision_is_left_to_the_tensor_code() -> None:
    w = build((33, 47), "even", True, "price")
    parts = (w.theta, w.shared, w.before, w.delta)
    double = [t.detach().double() for t in parts]
    own = Decomposed(w.weight, nn.Parameter(double[0]), *double[1:], None, None)
    assert own.kernel is None
