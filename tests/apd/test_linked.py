"""Tasks that start from the last one and keep the entries in which they differ from it."""

from __future__ import annotations

import copy
import functools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import sigmatau
from sigmatau.errors import ConfigError

from ..conftest import blobs, small_conv, small_mlp
from .made import IMAGE, QUICK, VARIANTS, learnt

LINKED = VARIANTS["linked"]
INPUTS = blobs(77)[0]


@functools.cache
def five() -> sigmatau.APDNet:
    return learnt(*"abcde", **LINKED)


def weights(net: sigmatau.APDNet, task: str) -> dict[str, Tensor]:
    exported = dict(net.export(task).named_parameters())
    return {w.name: exported[w.name].detach() for w in net.layout.weights}


@pytest.mark.parametrize("variant", ["linked", "linked-l1"])
def test_a_task_differs_from_the_last_one_where_its_delta_says_and_nowhere_else(
    variant: str,
) -> None:
    net = learnt("a", "b", "c", "d", **VARIANTS[variant])
    for last, task in zip("abc", "bcd", strict=True):
        before, after = weights(net, last), weights(net, task)
        deltas = net._memory.state.tasks[task]().deltas
        for name, delta in deltas.items():
            written = torch.zeros(delta.size, dtype=torch.bool)
            written[delta.indices.long()] = True
            assert 0 < delta.nnz < delta.size
            assert torch.equal((before[name] != after[name]).view(-1), written)
            assert torch.equal(after[name].view(-1)[written], delta.values)


def test_a_task_starts_with_the_weights_and_biases_of_the_last_one() -> None:
    net = learnt("a", "b", **LINKED)
    last = net.export("b").state_dict()
    net.settings = net.settings.model_copy(update={"epochs": 1, "lr": 1e-9})
    net.learn("c", blobs(9))
    for name, value in net.export("c").state_dict().items():
        if not name.startswith(f"{net.layout.head}."):
            assert torch.allclose(value, last[name], atol=1e-6)
    shared = net._memory.state.shared()
    assert all(torch.equal(weights(net, "a")[name], value) for name, value in shared.items())


def test_earlier_tasks_do_not_change_by_a_bit() -> None:
    net = learnt("a", "b", **LINKED)
    before = {task: net.predict(task, INPUTS) for task in net.tasks}
    net.learn("c", blobs(7))
    for task, expected in before.items():
        assert torch.equal(net.predict(task, INPUTS), expected)


def test_the_budget_holds_for_what_is_stored() -> None:
    net = sigmatau.APDNet(small_conv(), budget=0.25, start="last", **QUICK)
    for i in range(4):
        data = blobs(i, shape=IMAGE)
        report = net.learn(str(i), data, data)
        if i:
            assert 0.25 - 2 / net.layout.size < report.growth <= 0.25


@settings(max_examples=15, deadline=None, derandomize=True)
@given(order=st.permutations("abcde"), kept=st.integers(0, 4))
def test_whatever_is_forgotten_the_others_stay_bit_for_bit(order: list[str], kept: int) -> None:
    net = copy.deepcopy(five())
    before = {task: net.predict(task, INPUTS) for task in net.tasks}
    for task in order[kept:]:
        held = sum(part().nonzeros for part in net._memory.state.tasks.values())
        net.forget(task)
        now = sum(part().nonzeros for part in net._memory.state.tasks.values())
        assert now <= held
        for other in net.tasks:
            assert torch.equal(net.predict(other, INPUTS), before[other])
    assert net.tasks == tuple(t for t in "abcde" if t in order[:kept])


def test_learning_goes_on_after_forgetting_and_across_a_file(tmp_path) -> None:
    net = learnt("a", "b", "c", **LINKED)
    for task in ("b", "c"):
        net.forget(task)
    net.learn("d", blobs(4), blobs(4, rows=30))
    net.save(tmp_path / "net.st")
    again = sigmatau.load(tmp_path / "net.st", small_mlp(seed=3))
    for held in (net, again):
        held.learn("e", blobs(5), blobs(5, rows=30))
        held.forget("d")
    for task in ("a", "e"):
        assert torch.equal(net.predict(task, INPUTS), again.predict(task, INPUTS))
    assert net.accuracy("e", blobs(5)) > 0.8


def test_what_tasks_have_in_common_is_not_grouped_once_more() -> None:
    with pytest.raises(ConfigError, match="share what they have in common already"):
        learnt("a", "b", **LINKED).consolidate()
