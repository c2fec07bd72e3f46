"""What a task may add to the network, and what it does."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import sigmatau
from sigmatau.errors import ConfigError
from sigmatau.training import Epoch, Hook

from ..conftest import blobs, small_conv, small_mlp
from .made import IMAGE, QUICK, learnt


@pytest.mark.parametrize("validated", [True, False])
@pytest.mark.parametrize("batch_size", [8, 30, 60, 100])
@pytest.mark.parametrize("settled", [0.2, 0.5, 0.95])
@pytest.mark.parametrize("epochs", [1, 2, 3, 8])
def test_a_budget_is_never_exceeded_and_used_up(
    epochs: int, settled: float, batch_size: int, validated: bool
) -> None:
    net = sigmatau.APDNet(
        small_conv(),
        budget=0.25,
        budget_settled=settled,
        epochs=epochs,
        batch_size=batch_size,
        lr=1e-2,
    )
    steps = epochs * -(-60 // batch_size)
    for i in range(3):
        data = blobs(i, shape=IMAGE)
        report = net.learn(str(i), data, data if validated else None)
        assert report.growth <= 0.25
        if i and steps > 1:  # in a single step there is nothing to choose from yet
            assert report.growth > 0.25 - 2 / net.layout.size
    assert net.infos["2"].growth == report.growth


def test_a_budget_can_grow_more_slowly_than_the_number_of_tasks() -> None:
    net = learnt(*"abcdef", budget=0.7, budget_growth=0.5)
    entries = [part().nonzeros for part in net._memory.state.tasks.values()]
    assert entries[0] == 0
    for n in range(1, 6):
        assert 0 <= entries[1] * n**0.5 - sum(entries[: n + 1]) < n
    assert net.infos["b"].growth > 0.7 - 2 / net.layout.size


def test_a_budget_too_small_for_masks_and_biases_is_refused() -> None:
    strict = sigmatau.APDNet(small_conv(), budget=0.01, **QUICK)
    strict.learn("a", blobs(0, shape=IMAGE))
    with pytest.raises(ConfigError, match=r"budget=0\.01 is less than what a task needs"):
        strict.learn("b", blobs(1, shape=IMAGE))


def test_capacity_is_what_is_stored(tmp_path) -> None:
    net = learnt("a", "b", "c", l1=1e-3)
    state = net._memory.state
    weights = {w.name: w.size for w in net.layout.weights}
    own, head, masks = 8 + 7, 7 * 3 + 3, 8 + 7
    nonzeros = sum(part().nonzeros for part in state.tasks.values())
    stored = sum(weights.values()) + 3 * (own + head) + 2 * masks
    found = net.capacity()
    assert found.strict == pytest.approx((stored + 2 * nonzeros) / net.layout.size)
    zeros = sum(int((t == 0).sum()) for t in state.shared().values())
    own_zeros = sum(int((t == 0).sum()) for p in state.tasks.values() for t in p().own.values())
    base = net.layout.trunk_size + 3 * head
    assert found.paper == pytest.approx((stored + nonzeros - zeros - own_zeros) / base)
    from safetensors.torch import save_file

    save_file(small_mlp().state_dict(), tmp_path / "base.safetensors")
    net.save(tmp_path / "net.st")
    sizes = [(tmp_path / name).stat().st_size for name in ("net.st", "base.safetensors")]
    assert found.bytes == pytest.approx(sizes[0] / sizes[1], rel=0.01)
    assert "paper" in str(found)


def test_summary_tells_what_becomes_of_every_part() -> None:
    net = sigmatau.APDNet(small_conv(), **QUICK)
    net.learn("birds", blobs(1, shape=IMAGE))
    told = net.summary()
    for words in ("0.weight", "decomposed", "head, per task", "running_mean", "birds", "capacity"):
        assert words in told


def test_l1_holds_for_its_part_of_the_training_and_chooses() -> None:
    net = learnt("a", l1=2e-2, l1_until=0.5)
    chosen: list[Tensor] = []

    class Look(Hook):
        def epoch_ends(self, task: str, epoch: Epoch, state) -> None:
            (delta,) = (t for n, t in state().items() if n == "weight/0.weight:delta")
            chosen.append(delta != 0)

    net.learn("b", blobs(1), hooks=[Look()])
    assert len(chosen) == 10
    assert 0 < chosen[4].float().mean() < 0.7
    assert all(bool((c <= chosen[4]).all()) for c in chosen[5:])


def test_a_cut_leaves_fewer_nonzeros_and_past_tasks_where_they_are() -> None:
    chosen = {"l1": 2e-2, "l1_until": 0.5}
    plain, cut = (learnt("a", "b", "c", **chosen, l1_cut=lrs) for lrs in (0.0, 2.0))
    grown, less = (sum(net.infos[t].growth for t in "abc") for net in (plain, cut))
    assert less < 0.8 * grown
    x = blobs(5)[0]
    before = learnt("a", "b", **chosen, l1_cut=2.0)
    for task in ("a", "b"):
        assert torch.allclose(before.predict(task, x), cut.predict(task, x), atol=1e-4)


@pytest.mark.parametrize("form", ["closed", "gradient", "off"])
def test_a_price_can_rise_with_the_number_of_tasks(form: str) -> None:
    price, power = 2e-3, 2.0
    rising = learnt(*"abcd", l1=price, l1_growth=power, retroactive=form)
    steps = learnt("a", "b", l1=price, retroactive=form)
    for past, task in ((2, "c"), (3, "d")):
        steps.settings = steps.settings.model_copy(update={"l1": price * past**power})
        steps.learn(task, blobs(ord(task)), blobs(ord(task), rows=30))
    x = blobs(5)[0]
    for task in "abcd":
        assert torch.equal(rising.predict(task, x), steps.predict(task, x))
    assert rising.infos["d"].growth < learnt(*"abcd", l1=price, retroactive=form).infos["d"].growth


@pytest.mark.parametrize("l2", [4.0, 16.0])
def test_past_tasks_stay_where_they_are_as_the_price_rises(l2: float) -> None:
    chosen = {"l1": 2e-3, "l1_growth": 2.0, "l2": l2}
    x = blobs(5)[0]
    net = learnt("a", "b", **chosen)
    assert net.settings.still
    kept = {task: net.predict(task, x) for task in "ab"}
    before = net._memory.state.shared()
    for task in "cdef":
        net.learn(task, blobs(ord(task)), blobs(ord(task), rows=30))
    after = net._memory.state.shared()
    assert any(not torch.equal(before[name], after[name]) for name in before)
    for task, outputs in kept.items():
        assert torch.allclose(net.predict(task, x), outputs, atol=2e-5)
