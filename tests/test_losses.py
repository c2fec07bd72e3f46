"""Losses of one's own: regression, several labels, weighted classes."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import sigmatau
from sigmatau import methods
from sigmatau.errors import DataError

from .apd.made import QUICK
from .conftest import blobs, small_mlp


def test_regression_and_several_labels_with_losses_of_ones_own() -> None:
    net = sigmatau.APDNet(small_mlp(), epochs=60, batch_size=16, lr=1e-2)
    x, y = blobs(1)
    level = x.sum(1, keepdim=True)
    net.learn("level", (x, level), (x, level), loss=F.mse_loss)
    assert net.predict("level", x).shape == (60, 1)
    assert net.evaluate("level", (x, level), lambda o, t: float(F.mse_loss(o, t))) < 1.0
    many = F.one_hot(y, 3).float()
    net.learn("tags", (x, many), loss=F.binary_cross_entropy_with_logits)
    agree = net.evaluate("tags", (x, many), lambda o, t: float(((o > 0) == (t > 0)).float().mean()))
    assert agree > 0.9
    with pytest.raises(DataError, match="was not learnt from labels"):
        net.accuracy("tags", (x, y))
    with pytest.raises(DataError, match="pass loss="):
        net.learn("oops", (x, level))
    with pytest.raises(DataError, match="outputs="):
        net.learn("oops", (x, y), loss=lambda o, t: F.cross_entropy(o, t))
    net.learn("own", (x, y), loss=lambda o, t: F.cross_entropy(o, t), outputs=3)
    held = sigmatau.APDNet(small_mlp(), retroactive="off", penalty="ewc")
    with pytest.raises(DataError, match="penalty='ewc' needs class labels"):
        held.learn("level", (x, level), loss=F.mse_loss)


@pytest.mark.parametrize("method", ["apd1", "ewc", "a-gem"])
def test_labels_may_be_smoothed(method: str) -> None:
    x, y = blobs(1)
    net = methods.create(method, small_mlp(), **QUICK)
    net.learn("plain", (x, y), (x, y), loss=F.cross_entropy)
    seen = net.learn("smooth", (x, y), (x, y), loss=nn.CrossEntropyLoss(label_smoothing=0.2))
    assert seen.score == net.accuracy("smooth", (x, y)) > 0.9  # selected by accuracy


@pytest.mark.parametrize("method", methods.names())
def test_classes_may_weigh_more(method: str) -> None:
    # The inputs tell nothing: what is predicted is the class that weighs the most, not the one with
    # the most rows; a third class has none.
    x, y = torch.zeros(60, 6), torch.tensor([0, 1, 1]).repeat(20)
    net = methods.create(method, small_mlp(), epochs=40, batch_size=16, lr=2e-2)
    for weights, most in ([1.0, 1.0, 1.0], 1), ([9.0, 1.0, 1.0], 0):
        task = f"weights of {weights}"
        net.learn(task, (x, y), loss=nn.CrossEntropyLoss(weight=torch.tensor(weights)))
        assert net.infos[task].outputs == 3
        assert bool((net.predict(task, x).argmax(1) == most).all())


def test_cross_entropy_of_what_is_no_label_is_a_loss_of_ones_own() -> None:
    x, y = blobs(1)
    net = sigmatau.APDNet(small_mlp(), **QUICK)
    shares = F.one_hot(y, 3).float()
    net.learn("shares", (x, shares), (x, shares), loss=nn.CrossEntropyLoss())
    some = torch.where(torch.arange(60) % 2 == 0, y, -100)
    net.learn("some", (x, some), loss=nn.CrossEntropyLoss(), outputs=3)  # leaves -100 out
    assert not net.infos["shares"].labels
    assert not net.infos["some"].labels
    agree = net.predict("some", x).argmax(1) == y
    assert float(agree.float().mean()) > 0.9
