"""What is frozen is computed once a row; training on what was looked up is the same training."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from sigmatau.backbones import ChannelsLast
from sigmatau.data import DatasetBatches, TensorBatches
from sigmatau.methods import create, known
from sigmatau.methods.columns import Columns
from sigmatau.methods.known import Known

from ..conftest import blobs, small_conv, small_mlp

BUILD = {"mlp": (small_mlp, (6,)), "conv": (small_conv, (1, 6, 6))}


def made(x):
    return [x * 2, x.flatten(1).sum(1, keepdim=True)]


@pytest.mark.parametrize("lay", [nn.Identity(), ChannelsLast()])
@pytest.mark.parametrize("shape", [(5,), (3, 4, 4), (1, 4, 4)])
def test_rows_are_looked_up_as_they_would_be_computed(shape, lay):
    def laid(x):
        doubled, total = made(x)
        return [lay(doubled) if x.ndim == 4 else doubled, total]

    store = Known()
    parts = [TensorBatches(*blobs(seed, rows=23, shape=shape), 4) for seed in (0, 1)]
    fed = [store.fed(data, laid) for data in parts]
    drawn = [torch.Generator().manual_seed(3) for _ in range(2)]
    for data, numbers in zip(parts, fed, strict=True):
        pairs = [
            *zip(data.ordered(), numbers.ordered(), strict=True),
            *zip(data.shuffled(drawn[0]), numbers.shuffled(drawn[1]), strict=True),
        ]
        for (x, y), (rows, labels) in pairs:
            assert rows.shape == y.shape
            assert torch.equal(y, labels)
            for wanted, found in zip((x, *laid(x)), store(rows, laid), strict=True):
                assert torch.equal(wanted, found)
                assert found.stride() == wanted.stride()


def test_each_row_is_computed_once():
    calls = []

    def counted(x):
        calls.append(len(x))
        return made(x)

    store, data = Known(), TensorBatches(*blobs(0, rows=50), 20)
    for _ in range(3):
        for rows, _ in store.fed(data, counted).ordered():
            store(rows, counted)
    assert calls == [20, 20, 10]
    x = blobs(1)[0]
    assert torch.equal(store(x, counted)[1], made(x)[0])  # inputs themselves are still computed


def test_what_may_change_or_takes_too_much_is_left_as_it_is(monkeypatch):
    x, y = blobs(0, rows=50)
    other = DatasetBatches(TensorDataset(x, y), 20, x.device)
    assert Known().fed(other, made) is other
    data = TensorBatches(x, y, 20)
    assert Known().fed(data, lambda _: []) is data
    size = sum(part.nbytes for part in made(x))
    monkeypatch.setattr(known, "LIMIT", size)
    assert Known().fed(data, made) is not data
    monkeypatch.setattr(known, "LIMIT", size - 1)
    assert Known().fed(data, made) is data


@pytest.mark.parametrize("kind", BUILD)
@pytest.mark.parametrize("method", ["pgn", "rcl", "pc"])
def test_training_is_the_same_with_and_without(method, kind, monkeypatch):
    build, shape = BUILD[kind]
    few = {"trials": 2, "child_epochs": 1} if method == "rcl" else {}
    outputs, x = [], blobs(9, shape=shape)[0]
    for limit in (known.LIMIT, 0):
        monkeypatch.setattr(known, "LIMIT", limit)
        net = create(method, build(), epochs=2, batch_size=16, seed=0, **few)
        for task in range(3):
            train, val = (blobs(task + 10 * part, shape=shape) for part in (0, 1))
            net.learn(f"{task}", train, val, progress=False)
        outputs.append(torch.cat([net.predict(task, x) for task in net.tasks], 1))
    torch.testing.assert_close(*outputs)


@pytest.mark.parametrize("method", ["pgn", "rcl"])
def test_frozen_columns_are_run_once_however_many_epochs(method, monkeypatch):
    seen = []
    frozen = Columns.frozen

    def watched(self, x):
        if len(self.nets) > 1:
            seen.append(len(x))
        return frozen(self, x)

    monkeypatch.setattr(Columns, "frozen", watched)
    net = create(method, small_mlp(), epochs=5, batch_size=20)
    for task in range(2):
        net.learn(f"{task}", blobs(task, rows=60), blobs(task + 5, rows=40), progress=False)
    assert sum(seen) == 60 + 40


class OneHot(torch.nn.Module):
    def forward(self, x):
        return (x[..., None] == torch.arange(6)).float()


@pytest.mark.parametrize("method", ["pgn", "rcl", "pc"])
def test_single_numbers_as_inputs_are_not_taken_for_rows(method):
    chain = torch.nn.Sequential(OneHot(), *small_mlp())
    few = {"trials": 1, "child_epochs": 1} if method == "rcl" else {}
    net = create(method, chain, epochs=40, batch_size=16, lr=1e-2, **few)
    x = torch.arange(60) % 6
    for task in range(2):
        y = (x + task) % 3
        net.learn(f"{task}", (x, y), (x, y), progress=False)
        assert net.accuracy(f"{task}", (x, y)) == 1
