"""Piggyback: masks are binary and cost a bit a weight; what is frozen stays frozen, to the bit."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sigmatau import methods
from sigmatau.backbones import vgg16_bn
from sigmatau.errors import ConfigError, FileError
from sigmatau.methods.masks import pack, straight_through, unpack
from sigmatau.methods.piggyback import Piggyback, PiggybackSettings, PiggybackTrainee
from tests.conftest import blobs, small_conv, small_mlp

IMAGE = (1, 6, 6)


def learnt(tasks: int = 3) -> Piggyback:
    # A rate at which scores cross the threshold within the few steps of a test.
    chosen = {"epochs": 6, "batch_size": 10, "lr": 0.01, "mask_lr": 1e-3}
    net = methods.create("piggyback", small_conv(), **chosen)
    assert isinstance(net, Piggyback)
    for i in range(tasks):
        net.learn(f"t{i}", blobs(i, shape=IMAGE))
    return net


def test_scores_get_the_gradient_of_the_weights_times_the_weights() -> None:
    module, (x, y) = small_mlp(), blobs(0)
    names, head = ("0.weight", "2.weight"), ("4.weight", "4.bias")
    trainee = PiggybackTrainee(module, F.cross_entropy, names, head, PiggybackSettings())
    with torch.no_grad():
        for i, score in enumerate(trainee.scores.values()):
            score.uniform_(0, 0.01, generator=torch.Generator().manual_seed(i))
    trainee.loss(x, y).backward()

    plain = small_mlp()
    with torch.no_grad():
        for name in names:
            plain.get_parameter(name).mul_(trainee.scores[name] > 0.005)
    F.cross_entropy(plain(x), y).backward()
    for name in names:
        grad = plain.get_parameter(name).grad
        assert grad is not None
        assert torch.equal(trainee.scores[name].grad, grad * small_mlp().get_parameter(name))
        assert module.get_parameter(name).grad is None


def test_a_task_is_the_frozen_network_under_a_binary_mask() -> None:
    net = learnt()
    first, later = net.export("t0"), net.export("t2")
    kept = 0
    for name, weight in first.named_parameters():
        masked = later.get_parameter(name)
        if name in ("0.weight", "5.weight"):
            assert bool(((masked == weight) | (masked == 0)).all())
            kept += int((masked != 0).sum())
        elif not name.startswith("7."):
            assert torch.equal(masked, weight), name
    assert 0 < kept < 4 * 9 + 36 * 8
    assert not torch.equal(first.get_buffer("1.running_mean"), later.get_buffer("1.running_mean"))


def test_later_tasks_change_nothing_and_are_learnt() -> None:
    net = learnt(2)
    x, _ = blobs(9, shape=IMAGE)
    before = {task: net.predict(task, x) for task in net.tasks}
    net.learn("t2", blobs(2, shape=IMAGE))
    for task, out in before.items():
        assert torch.equal(net.predict(task, x), out)
    # Chance is a third; four frozen channels of another task do not allow much more.
    assert all(net.accuracy(f"t{i}", blobs(i, shape=IMAGE)) > 0.6 for i in range(3))


@pytest.mark.parametrize("gone", ["t0", "t1"])
def test_forgetting_leaves_the_others_as_they_are(gone: str) -> None:
    net = learnt()
    x, _ = blobs(9, shape=IMAGE)
    before = {task: net.predict(task, x) for task in net.tasks if task != gone}
    net.forget(gone)
    net.learn("more", blobs(4, shape=IMAGE))
    for task, out in before.items():
        assert torch.equal(net.predict(task, x), out)
    records, _ = net._records(net._memory.state)
    assert f"task/{gone}" not in records


def test_a_mask_costs_a_bit_a_weight(tmp_path: Path) -> None:
    net = learnt(2)
    records, _ = net._records(net._memory.state)
    record = records["task/t1"]
    assert isinstance(record, dict)
    sizes = {name: item.nbytes for name, item in record.items() if name.startswith("mask/")}
    assert sizes == {"mask/0.weight": 5, "mask/5.weight": 36}
    assert not any(name.startswith("mask/") for name in records["task/t0"])
    net.save(tmp_path / "net")
    again, (x, _) = methods.load(tmp_path / "net", small_conv(1)), blobs(9, shape=IMAGE)
    for task in net.tasks:
        assert torch.equal(again.predict(task, x), net.predict(task, x))
    assert again.capacity() == net.capacity()


def test_masks_of_another_size_are_refused() -> None:
    mask = torch.rand(3, 5, generator=torch.Generator().manual_seed(0)) > 0.5
    assert torch.equal(unpack(pack(mask), mask), mask)
    with pytest.raises(FileError, match="restore"):
        unpack(pack(mask), torch.empty(4, 5))


def test_masks_must_not_start_switched_off() -> None:
    with pytest.raises(ConfigError, match="mask_start"):
        methods.create("piggyback", small_mlp(), mask_start=0.001)


def test_straight_through_is_exact() -> None:
    scores = nn.Parameter(torch.randn(100, generator=torch.Generator().manual_seed(0)) * 1e6)
    mask = scores > 0
    passed = straight_through(scores, mask)
    assert torch.equal(passed, mask.float())
    (passed * torch.arange(100.0)).sum().backward()
    assert torch.equal(scores.grad, torch.arange(100.0))


def test_vgg_learns() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = methods.create("piggyback", vgg16_bn((1, 32, 32), 3, 0.05), epochs=1, batch_size=30)
    x, _ = blobs(9, rows=4, shape=(1, 32, 32))
    net.learn("a", blobs(0, shape=(1, 32, 32)))
    before = net.predict("a", x)
    net.learn("b", blobs(1, classes=2, shape=(1, 32, 32)))
    assert torch.equal(net.predict("a", x), before)
    assert net.predict("b", x).shape == (4, 2)
