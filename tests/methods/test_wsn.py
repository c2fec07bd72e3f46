"""Winning SubNetworks: a task takes a share of the weights, and what it took is never changed."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from sigmatau import methods
from sigmatau.errors import FileError
from sigmatau.methods.masks import pack, unpack
from sigmatau.methods.wsn import WSN, Edge, WSNSettings, WSNTrainee, decode, encode
from sigmatau.training import Epoch, Hook
from tests.conftest import blobs, small_conv, small_mlp

IMAGE = (1, 6, 6)
WEIGHTS = ("0.weight", "5.weight")


def learnt(tasks: int = 3, **settings: float) -> WSN:
    chosen = {"epochs": 6, "batch_size": 10, "lr": 0.01, "share": 0.4, **settings}
    net = methods.create("wsn", small_conv(), **chosen)
    assert isinstance(net, WSN)
    for i in range(tasks):
        net.learn(f"t{i}", blobs(i, shape=IMAGE))
    return net


def masks_of(net: WSN, task: str) -> dict[str, Tensor]:
    state = net._memory.state
    return {n: unpack(state.tasks[task].masks[n], state.shared[n]) for n in WEIGHTS}


@given(
    st.integers(1, 60),
    st.floats(0.01, 1.0),
    st.integers(0, 99),
    st.lists(st.sampled_from([0.0, 1e-6, 1e-3, 0.1, 10.0]), max_size=8),
)
def test_the_strongest_are_the_top_of_the_sorted_however_they_move(
    size: int, share: float, seed: int, moves: list[float]
) -> None:
    drawn = torch.Generator().manual_seed(seed)
    scores, edge = torch.rand(size, generator=drawn), Edge(share)
    count = max(1, round(share * size))
    for move in [0.0, *moves]:
        scores = scores + move * torch.randn(size, generator=drawn)
        expected = scores >= scores.sort(descending=True).values[count - 1]
        assert torch.equal(edge.above(scores), expected)


def test_an_edge_that_moves_little_is_found_without_sorting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    drawn = torch.Generator().manual_seed(0)
    scores, edge, sorted_ = torch.rand(10_000, generator=drawn), Edge(0.5), []
    kthvalue = Tensor.kthvalue
    monkeypatch.setattr(
        Tensor, "kthvalue", lambda x, k: sorted_.append(x.numel()) or kthvalue(x, k)
    )
    for _ in range(20):
        scores += 1e-3 * torch.randn(scores.shape, generator=drawn)
        edge.above(scores)
    assert sorted_[0] == 10_000
    assert sum(sorted_[2:]) < 10_000


def test_gradients_pass_straight_through_and_stop_at_used_weights() -> None:
    module, (x, y) = small_mlp(), blobs(0)
    drawn = torch.Generator().manual_seed(0)
    names = ("0.weight", "2.weight")
    scores = {
        n: nn.Parameter(torch.randn(module.get_parameter(n).shape, generator=drawn)) for n in names
    }
    used = {n: torch.rand(s.shape, generator=drawn) < 0.5 for n, s in scores.items()}
    start = {n: module.get_parameter(n).detach().clone() for n in names}
    trainee = WSNTrainee(module, F.cross_entropy, scores, used, WSNSettings(share=0.3))
    trainee.loss(x, y).backward()

    plain = small_mlp()
    with torch.no_grad():
        for name in names:
            plain.get_parameter(name).mul_(Edge(0.3).above(scores[name].abs()))
    F.cross_entropy(plain(x), y).backward()
    for name in names:
        grad = plain.get_parameter(name).grad
        assert grad is not None
        assert torch.equal(scores[name].grad, grad * start[name] * scores[name].sign())
    for _ in range(5):
        trainee.step(0.1)
        trainee.loss(x, y).backward()
    for name in names:
        moved = module.get_parameter(name) != start[name]
        assert not bool(moved[used[name]].any())
        assert bool(moved[~used[name]].any())


def test_a_task_uses_its_share_and_freezes_it() -> None:
    net = learnt(2)
    shared, masks = net._memory.state.shared, masks_of(net, "t0")
    for mask in masks.values():
        assert int(mask.sum()) == round(0.4 * mask.numel())
    x, _ = blobs(9, shape=IMAGE)
    before = {task: net.predict(task, x) for task in net.tasks}
    net.learn("t2", blobs(2, shape=IMAGE))
    after = net._memory.state.shared
    for name, mask in masks.items():
        either = mask | masks_of(net, "t1")[name]
        assert torch.equal(after[name][either], shared[name][either])
    assert any(not torch.equal(after[name], shared[name]) for name in WEIGHTS)
    for task, out in before.items():
        assert torch.equal(net.predict(task, x), out)
    assert all(net.accuracy(f"t{i}", blobs(i, shape=IMAGE)) > 0.8 for i in range(3))


@pytest.mark.parametrize("gone", ["t0", "t1"])
def test_forgetting_frees_what_nobody_else_uses(gone: str) -> None:
    net = learnt()
    x, _ = blobs(9, shape=IMAGE)
    rest = [task for task in net.tasks if task != gone]
    before = {task: net.predict(task, x) for task in rest}
    net.forget(gone)
    state = net._memory.state
    assert not state.beside  # scores still knew of the task
    for name in WEIGHTS:
        free = ~(masks_of(net, rest[0])[name] | masks_of(net, rest[1])[name])
        assert bool(free.any())
        assert torch.equal(state.shared[name][free], small_conv().get_parameter(name)[free])
    net.learn("more", blobs(4, shape=IMAGE))
    for task, out in before.items():
        assert torch.equal(net.predict(task, x), out)


@given(st.integers(1, 300), st.floats(0, 1), st.floats(0, 1), st.integers(0, 99))
def test_coded_masks_come_back(size: int, density: float, change: float, seed: int) -> None:
    drawn = torch.Generator().manual_seed(seed)
    before = torch.rand(size, generator=drawn) < density
    mask = before ^ (torch.rand(size, generator=drawn) < change)
    for other in (None, pack(before)):
        blob = encode(pack(mask), other)
        assert torch.equal(decode(blob, other, (size + 7) // 8), pack(mask))
        with pytest.raises(FileError):
            decode(blob[:-1], other, (size + 7) // 8)


def test_damaged_masks_are_refused() -> None:
    drawn = torch.Generator().manual_seed(0)
    for density in (0.01, 0.5):
        mask = pack(torch.rand(800, generator=drawn) < density)
        blob = encode(mask, None)
        for wrong in (blob[:0], blob[:3], blob + 4, torch.cat([blob, blob])):
            with pytest.raises(FileError):
                decode(wrong, None, 100)
        with pytest.raises(FileError):
            decode(encode(mask, mask), None, 100)
        with pytest.raises(FileError):
            decode(blob, None, 1)


@pytest.mark.parametrize("density", [0.03, 0.1, 0.3, 0.5])
def test_the_code_is_near_the_entropy(density: float) -> None:
    size = 80_000
    drawn = torch.Generator().manual_seed(0)
    mask = torch.rand(size, generator=drawn) < density
    entropy = -sum(p * math.log2(p) for p in (density, 1 - density))
    assert encode(pack(mask), None).numel() * 8 / size < 1.06 * entropy
    # A task that keeps most of what the one before it used costs little more than the change.
    near = mask ^ (torch.rand(size, generator=drawn) < 0.03)
    assert encode(pack(near), pack(mask)).numel() * 8 / size < 1.06 * 0.1944


def test_saved_masks_are_coded_and_come_back(tmp_path: Path) -> None:
    net = learnt()
    net.save(tmp_path / "net")
    again, (x, _) = methods.load(tmp_path / "net", small_conv(1)), blobs(9, shape=IMAGE)
    for task in net.tasks:
        assert torch.equal(again.predict(task, x), net.predict(task, x))
    assert again.capacity() == net.capacity()
    for one in (net, again):
        one.learn("more", blobs(4, shape=IMAGE))
    assert torch.equal(again.predict("more", x), net.predict("more", x))


def test_scores_are_kept_only_to_be_carried_on() -> None:
    assert learnt(1).capacity().beside > 0
    assert learnt(1, carry=False).capacity().beside == 0


class Cut(Hook):
    def __init__(self, at: int) -> None:
        self.at, self.state = at, {}

    def epoch_ends(self, task: str, epoch: Epoch, state: Callable[[], dict[str, Tensor]]) -> None:
        if epoch.index == self.at:
            self.state = state()


def test_a_cut_off_training_goes_on_to_the_same_bits() -> None:
    nets = [learnt(1, lr_patience=1, epochs=12) for _ in range(2)]
    cut, data, val = Cut(6), blobs(1, shape=IMAGE), blobs(1, rows=30, shape=IMAGE)
    whole = nets[0].learn("b", data, val, hooks=[cut])
    rest = nets[1].learn("b", data, val, resume=cut.state)
    assert [e.lr for e in rest.epochs] == [e.lr for e in whole.epochs]
    x, _ = blobs(9, shape=IMAGE)
    assert torch.equal(nets[0].predict("b", x), nets[1].predict("b", x))
