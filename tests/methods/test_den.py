"""DEN: units keep their timestamps, and each stage does to them what the paper says."""

from __future__ import annotations

from itertools import count, pairwise

import pytest
import torch

from sigmatau.errors import ConfigError, FileError
from sigmatau.methods import create
from sigmatau.methods.chain import Part, read_chain
from sigmatau.methods.den_training import RETRAIN, DENTrainee, _shrink_groups
from sigmatau.methods.den_units import connected, drift, expanded, first, split, thinned

from ..conftest import blobs, small_conv, small_mlp

BUILD = {"mlp": (small_mlp, (6,)), "conv": (small_conv, (1, 6, 6))}
FIRST, SECOND = blobs(0, rows=120), blobs(1, rows=120)


def net_of(kind="mlp", **settings):
    given = {"epochs": 4, "batch_size": 20, "lr": 5e-3, "expand": 3, **settings}
    return create("den", BUILD[kind][0](), **given)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def parts_of(build):
    net = build()
    chain = read_chain(net, list(dict(net.named_children()))[-1], "it")
    for module in net.modules():  # statistics that differ from channel to channel
        if isinstance(module, torch.nn.BatchNorm2d):
            module.running_mean.uniform_(generator=generator())
            module.weight.data.uniform_(generator=generator())
    return chain, chain.parts()


def same(chain, one, two, shape):
    x = blobs(3, shape=shape)[0]
    with torch.no_grad():
        torch.testing.assert_close(chain.assemble(one).eval()(x), chain.assemble(two).eval()(x))


# Timestamps


@pytest.mark.parametrize("kind", BUILD)
def test_units_keep_their_timestamps(kind):
    shape = BUILD[kind][1]
    net, x = net_of(kind, split_threshold=0.02), blobs(9, shape=shape)[0]
    stamps = {}
    for task in range(3):
        net.learn(f"{task}", blobs(task, rows=60, shape=shape), progress=False)
        stamps[f"{task}"] = net.timestamps(f"{task}")
        assert {name: net.timestamps(name) for name in net.tasks} == stamps
    assert stamps["0"] != stamps["1"] != stamps["2"]  # it did grow
    # A task uses the units of its time: whatever happens to younger ones, it does not notice.
    state = net._memory.state
    before, widths, last = net.predict("0", x), stamps["0"], net.predict("2", x)
    for i, part in enumerate(state.trunk):
        part.weight[widths[i] :] = 7.0
        if i:
            part.weight[:, widths[i - 1] :] = 7.0
    with torch.no_grad():
        assert torch.equal(net._compose(state, "0", small_mlp()).eval()(x), before)
        spoilt = net._compose(state, "2", small_mlp()).eval()(x)
    assert not torch.equal(spoilt, last)


def test_older_tasks_are_hardly_touched():
    net = net_of(epochs=10)
    for task in range(3):
        net.learn(f"{task}", blobs(task, rows=120), progress=False)
    for task in range(3):
        assert net.accuracy(f"{task}", blobs(task, rows=120)) > 0.9


# Stage 1: selective retraining


def test_the_search_finds_what_a_path_leads_to():
    g = generator()
    sizes = (5, 6, 7, 3)
    for _ in range(20):
        weights = [
            torch.randn(n, m, 2, generator=g) * (torch.rand(n, m, 1, generator=g) < 0.25)
            for m, n in pairwise(sizes)
        ]
        parts = [Part(weight, None) for weight in weights]

        def leads(layer, unit, weights=weights):
            if layer == len(weights) - 1:
                return True
            above = weights[layer + 1]
            readers = [j for j in range(len(above)) if bool((above[j, unit] != 0).any())]
            return any(leads(layer + 1, j) for j in readers)

        by_hand = [[leads(i, unit) for unit in range(n)] for i, n in enumerate(sizes[1:-1])]
        assert [found.tolist() for found in connected(parts)] == by_hand


def test_only_the_connected_units_are_retrained(monkeypatch):
    chosen = [torch.tensor([True] * 3 + [False] * 5), torch.tensor([False, True] * 3 + [True])]
    monkeypatch.setattr("sigmatau.methods.den_training.connected", lambda parts: chosen)
    net = net_of(loss_threshold=1e9, split_threshold=1e9)
    net.learn("0", FIRST, progress=False)
    before = net._memory.state.trunk
    net.learn("1", SECOND, progress=False)
    after = net._memory.state.trunk
    reads = [torch.ones(6, dtype=torch.bool), chosen[0]]
    for was, now, rows, columns in zip(before, after, chosen, reads, strict=True):
        assert was.weight.shape == now.weight.shape  # neither expanded nor split
        free = (rows[:, None] & columns[None])[:, :, None]
        assert torch.equal(now.weight[~free], was.weight[~free])
        assert not torch.equal(now.weight[free], was.weight[free])
        assert torch.equal(now.bias[~rows], was.bias[~rows])


def test_the_first_phase_trains_the_head_alone_and_makes_zeros():
    net = net_of(l1=0.02, epochs=8)
    net.learn("0", FIRST, progress=False)
    trunk = net._memory.state.trunk
    seen = []

    class Watch(DENTrainee):
        def enters(self, phase):
            if phase == 1:
                seen.extend(self.chain.read(self.module))
            super().enters(phase)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sigmatau.methods.den.DENTrainee", Watch)
        net.learn("1", SECOND, progress=False)
    for was, now in zip(trunk, seen, strict=False):
        assert torch.equal(was.weight, now.weight)
    assert 0 < int((seen[-1].weight == 0).sum()) < seen[-1].weight.numel()
    assert all(int((part.weight == 0).sum()) > 0 for part in trunk)  # l1 on all of the first task


# Stage 2: expansion


@pytest.mark.parametrize("kind", BUILD)
def test_expanding_changes_nothing_yet(kind):
    chain, parts = parts_of(BUILD[kind][0])
    wide = expanded(chain, parts, [3, 2], generator())
    assert [p.units for p in wide] == [parts[0].units + 3, parts[1].units + 2, 3]
    same(chain, parts, wide, BUILD[kind][1])
    cut = first(wide, [p.units for p in parts[:-1]])
    for was, now in zip(parts, cut, strict=False):
        assert torch.equal(was.weight, now.weight)


@pytest.mark.parametrize("kind", BUILD)
def test_useless_units_are_removed_and_only_they(kind):
    chain, parts = parts_of(BUILD[kind][0])
    old = [p.units for p in parts[:-1]]
    wide = expanded(chain, parts, [3, 3], generator())
    wide[1].weight[old[1] :, old[0] :] = 0
    wide[1].weight[:, old[0]] = 0.5  # of the new units below, the first is read
    wide[2].weight[:, old[1] + 1] = 0.5  # and of those above the second
    wide[0].weight[1] = 0  # an old unit is never removed
    wide[1].weight[old[1] + 2] = 0
    thin = thinned(wide, old)
    assert [p.units for p in thin] == [old[0] + 1, old[1] + 1, 3]
    same(chain, wide, thin, BUILD[kind][1])
    assert torch.equal(thin[2].weight[:, old[1]], wide[2].weight[:, old[1] + 1])


def test_units_come_only_when_the_loss_stays_high():
    easy, hard = net_of(loss_threshold=1e9, split_threshold=1e9), net_of(split_threshold=1e9)
    for net in (easy, hard):
        net.learn("0", FIRST, progress=False)
        net.learn("1", SECOND, progress=False)
    assert easy.timestamps("1") == easy.timestamps("0") == (8, 7)
    assert hard.timestamps("1") > (8, 7)
    # Priced out of the network, given the time to shrink.
    none = net_of(group=1e3, split_threshold=1e9, stage_epochs=25)
    none.learn("0", FIRST, progress=False)
    none.learn("1", SECOND, progress=False)
    assert none.timestamps("1") == (8, 7)


def test_all_phases_but_the_last_may_be_shorter():
    assert net_of(epochs=7).settings.phases == (7, 7, 7, 7)
    net = net_of(epochs=7, stage_epochs=2)
    net.learn("0", FIRST, progress=False)
    report = net.learn("1", SECOND, progress=False)
    assert len(report.epochs) == sum(net.settings.phases) == 2 + 2 + 2 + 7


def test_the_epoch_that_is_kept_is_of_the_last_phase():
    net, worse = net_of(epochs=2, select_last=5), count()
    net.learn("0", FIRST, progress=False)
    report = net.learn(
        "1", SECOND, SECOND, metric=lambda outputs, targets: -next(worse), progress=False
    )
    assert report.selected == 6  # the first of two: before it, the network may be another one


@pytest.mark.parametrize("kind", BUILD)
def test_what_is_old_is_held_by_the_square_of_its_drift(kind):
    shape, price = BUILD[kind][1], 0.3
    net = net_of(kind, drift=price, weight_decay=0.0)
    net.learn("0", blobs(0, rows=60, shape=shape), progress=False)
    old = net._memory.state.trunk
    parts = expanded(
        net.chain, net._memory.state.parts(net._memory.state.tasks["0"]), [2, 2], generator()
    )
    trainee = DENTrainee(net.chain, parts, old, torch.nn.functional.cross_entropy, net.settings, 0)
    trainee._ready(RETRAIN)
    live = list(trainee.module.parameters())
    with torch.no_grad():
        for parameter in live:
            parameter.add_(torch.randn(parameter.shape, generator=generator()))
    total = torch.zeros(())
    for (stage, layer), was in zip(trainee.layers, old, strict=False):
        n, m = was.weight.shape[:2]
        total = total + (stage.shaped(layer.weight)[:n, :m] - was.weight).square().sum()
        total = total + (layer.bias[:n] - was.bias).square().sum()
    due = torch.autograd.grad(price * total, live, materialize_grads=True, allow_unused=True)
    for parameter in live:
        parameter.grad = torch.zeros_like(parameter)
    with torch.no_grad():
        trainee._hold()
    for parameter, expected in zip(live, due, strict=True):
        torch.testing.assert_close(parameter.grad, expected)


def test_a_price_on_drift_keeps_old_units_where_they_were():
    moved = {}
    for price in (0.0, 100.0):
        net = net_of(drift=price, loss_threshold=1e9, split_threshold=1e9)
        net.learn("0", FIRST, progress=False)
        before = net._memory.state.trunk
        net.learn("1", SECOND, progress=False)
        pairs = list(zip(net._memory.state.trunk, before, strict=True))
        weights = sum(float((now.weight - was.weight).norm()) for now, was in pairs)
        moved[price] = weights, sum(float((now.bias - was.bias).norm()) for now, was in pairs)
    assert moved[100.0][0] < moved[0.0][0] / 2
    assert moved[100.0][1] < moved[0.0][1] / 2


def test_groups_shrink_to_the_minimum_of_their_objective():
    rows = (
        torch.randn(4, 3, 2, generator=generator()) * torch.tensor([1, 1, 0.1, 1e-3])[:, None, None]
    )
    squares, lr, price = torch.full_like(rows, 0.04), 0.05, 1.0
    start, size = rows.clone(), lr / 0.2
    _shrink_groups(rows, squares, lr, price)

    def objective(z):
        return ((z - start) ** 2).sum((1, 2)) / (2 * size) + price * z.flatten(1).norm(dim=1)

    reach = min(size * price, 2 * lr * 6**0.5)
    expected = start * (1 - reach / start.flatten(1).norm(dim=1)).clamp(min=0)[:, None, None]
    torch.testing.assert_close(rows, expected, rtol=1e-4, atol=1e-6)
    assert bool((rows[3] == 0).all())
    rows, price = start.clone(), 0.3  # below the limit: the proximal point itself
    _shrink_groups(rows, squares, lr, price)
    for seed in range(20):
        near = rows + 1e-2 * torch.randn(rows.shape, generator=generator(seed))
        assert bool((objective(rows) <= objective(near) + 1e-6).all())


# Stage 3: split and duplication


@pytest.mark.parametrize("kind", BUILD)
def test_splitting_restores_the_old_unit_and_keeps_the_new_function(kind):
    chain, old = parts_of(BUILD[kind][0])
    moved_to = [
        Part(
            p.weight + 0.3 * torch.randn(p.weight.shape, generator=generator(i)),
            p.bias + 0.1,
            p.norms,
        )
        for i, p in enumerate(old)
    ]
    wide = expanded(chain, moved_to, [2, 1], generator())
    wide[2].weight[:] = torch.randn(wide[2].weight.shape, generator=generator(5))
    everything = [torch.ones(p.units, dtype=torch.bool) for p in old[:-1]]
    doubled = split(wide, old[:-1], everything)
    same(chain, wide, doubled, BUILD[kind][1])  # the doubles do what the units did
    for was, now in zip(old[:-1], doubled, strict=False):
        n, m = was.weight.shape[:2]
        assert torch.equal(now.weight[:n, :m], was.weight)
        assert torch.equal(now.bias[:n], was.bias)
        assert bool((now.weight[:n, m:] == 0).all())


def test_drift_is_the_norm_of_what_a_unit_moved():
    old = [Part(torch.zeros(3, 4, 2), None)]
    now = [Part(torch.ones(5, 6, 2), None), Part(torch.ones(2, 5, 1), None)]
    assert drift(now, old)[0].tolist() == pytest.approx([8**0.5] * 3)


def test_units_that_moved_too_far_are_doubled_and_get_their_bits_back():
    net = net_of(loss_threshold=1e9, split_threshold=0.0)
    net.learn("0", FIRST, progress=False)
    before = net._memory.state.trunk
    net.learn("1", SECOND, progress=False)
    after = net._memory.state.trunk
    assert net.timestamps("1") > net.timestamps("0")
    for was, now in zip(before, after, strict=True):
        n, m = was.weight.shape[:2]
        assert torch.equal(now.weight[:n, :m], was.weight)  # whatever moved was split
        assert torch.equal(now.bias[:n], was.bias)


# Use


def test_the_number_of_units_must_fit_the_layers():
    with pytest.raises(ConfigError, match="2 before the head"):
        net_of(expand=(1, 2, 3))


def test_a_file_with_other_units_is_refused(tmp_path):
    net = net_of(epochs=1)
    net.learn("0", FIRST, progress=False)
    records, own = net._records(net._memory.state)
    own["widths"]["0"] = [9, 7]
    net._records = lambda state: (records, own)
    net.save(tmp_path / "bad")
    with pytest.raises(FileError, match="do not fit"):
        _ = type(net).load(tmp_path / "bad", small_mlp()).tasks
