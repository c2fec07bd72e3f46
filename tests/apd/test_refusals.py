"""What bad input gets: one clear error, before any work."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import sigmatau
from sigmatau.errors import (
    BackboneError,
    ConfigError,
    DataError,
    FileError,
    SigmatauError,
    TaskError,
    TrainingError,
)

from ..conftest import blobs, small_mlp
from .made import QUICK, learnt


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"l1": -1.0}, "l1=-1.0"),
        ({"l2": -1.0}, "l2=-1.0"),
        ({"lr": 0}, "lr=0"),
        ({"epochs": 0}, "epochs=0"),
        ({"budget": 1.5}, "budget=1.5"),
        ({"budget": 0.1, "l1": 1e-3}, "l1 or budget"),
        ({"budget_growth": 0.5}, "budget_growth needs a budget"),
        ({"budget": 0.1, "l1_growth": 0.5}, "l1_growth needs an l1"),
        ({"sparse": False, "budget": 0.1}, "sparse=False"),
        ({"budget": 0.1, "retroactive": "gradient"}, "retroactive"),
        ({"budget": 0.1, "l1_until": 0.5}, "needs an l1"),
        ({"l1": 1e-3, "l1_cut": 2.0}, "l1_cut needs l1_until"),
        ({"retroactive": "gradient", "l1_until": 0.5}, "needs an l1, and retroactive"),
        ({"l2": 0.0}, "l2=0"),
        ({"penalty": "ewc"}, "retroactive='off'"),
        ({"start": "last", "mask": True}, "no masks and no groups"),
        ({"start": "last", "consolidate_every": 2}, "no masks and no groups"),
        ({"start": "last", "retroactive": "off"}, "start='last' needs sparse deltas"),
        ({"start": "last", "sparse": False}, "start='last' needs sparse deltas"),
        ({"epoch": 3}, "did you mean 'epochs'"),
        ({"retroactive": "later"}, "retroactive='later'"),
    ],
)
def test_settings_that_make_no_sense(settings: dict[str, object], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        sigmatau.APDNet(small_mlp(), **settings)


def test_bad_data_is_refused_before_any_work() -> None:
    net = learnt("a")
    x, y = blobs(1)
    wrong: list[tuple[object, str]] = [
        ((x[:0], y[:0]), "empty"),
        (TensorDataset(x[:0], y[:0]), "empty"),
        (DataLoader(TensorDataset(x[:0], y[:0])), "empty"),
        ((x, y[:5]), "as many inputs as targets"),
        ((x, -y), "out of range"),
        ((x / 0, y), "NaN or infinite"),
        (DataLoader(TensorDataset(x / 0, y)), "NaN or infinite"),
        ((x[:, :4], y), "cannot take inputs of shape"),
        ((x.double(), y), "cannot take inputs"),
        ([x], "pair"),
        ((x.tolist(), y), "tensors"),
        (x, "pair"),
        ((x, y + 10_000), "10,002 in 60 rows, and the head has an output for each"),
    ]
    for data, match in wrong:
        with pytest.raises(DataError, match=match):
            net.learn("b", data)
    with pytest.raises(DataError, match="0 to 1"):
        net.learn("b", (x, y), outputs=2)
    with pytest.raises(DataError, match="validation data has labels"):
        net.learn("b", (x[:40], y[:40] % 2), (x, y))
    with pytest.raises(DataError, match="validation data is empty"):
        net.learn("b", (x, y), (x[:0], y[:0]))
    with pytest.raises(DataError, match="validation inputs have shape"):
        net.learn("b", (x, y), (x[:, :3], y))
    with pytest.raises(DataError, match="outputs=0"):
        net.learn("b", (x, y), outputs=0)
    with pytest.raises(DataError, match="NaN or infinite"):
        net.predict("a", x / 0)
    assert net.tasks == ("a",)
    net.learn("b", (x, y + 10_000), outputs=10_003)  # asked for, many outputs are no mistake
    assert net.predict("b", x).shape == (60, 10_003)


def test_tasks_that_are_there_or_are_not() -> None:
    net = learnt("a", "b")
    with pytest.raises(TaskError, match="learnt already"):
        net.learn("b", blobs(1))
    for name in ("", 3, None):
        with pytest.raises(TaskError, match="must be a string"):
            net.learn(name, blobs(1))
    for call in (net.forget, net.export, lambda t: net.accuracy(t, blobs(1))):
        with pytest.raises(TaskError, match="no task 'bb'"):
            call("bb")
    with pytest.raises(KeyError):  # what a mapping raises, for those who catch that
        net.forget("zebra")


def test_a_loss_that_is_no_number_stops_at_once() -> None:
    net = learnt("a")
    with pytest.raises(TrainingError, match="became nan in epoch 1: lower lr"):
        net.learn("b", blobs(1), loss=lambda o, t: (o * float("nan")).sum(), outputs=3)
    with pytest.raises(TrainingError, match="inf"):
        net.learn("b", blobs(1), loss=lambda o, t: (o * float("inf")).abs().sum(), outputs=3)
    assert net.tasks == ("a",)


def test_backbones_that_cannot_work_are_refused() -> None:
    with pytest.raises(BackboneError, match="nothing to decompose"):
        sigmatau.APDNet(nn.Linear(3, 2))
    with pytest.raises(BackboneError, match=r"torch\.nn\.Module"):
        sigmatau.APDNet("resnet")
    for compiled in (torch.compile(small_mlp()), torch.jit.script(small_mlp())):
        with pytest.raises(BackboneError, match="the backbone is compiled"):
            sigmatau.APDNet(compiled)

    class Backwards(nn.Module):
        """Uses its layers in another order than it lists them."""

        def __init__(self) -> None:
            super().__init__()
            self.head, self.body = nn.Linear(8, 3), nn.Linear(6, 8)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.body(x))

    with pytest.raises(BackboneError, match="'head' comes last: name the head"):
        sigmatau.APDNet(Backwards(), **QUICK).learn("a", blobs(1))
    net = sigmatau.APDNet(Backwards(), head="head", **QUICK)
    net.learn("a", blobs(1))
    assert net.predict("a", blobs(1)[0]).shape == (60, 3)


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16])
def test_weights_that_small_steps_are_lost_in_are_refused(kind: torch.dtype) -> None:
    with pytest.raises(BackboneError, match=r"0\.weight.*16.*\.float\(\)"):
        sigmatau.APDNet(small_mlp().to(kind))
    frozen = small_mlp()
    frozen[0].to(kind).requires_grad_(False)
    sigmatau.APDNet(frozen)


class Wrapped(nn.Module):
    """A network with something done to its outputs."""

    def __init__(self, wrap: Callable[[Tensor], object]) -> None:
        super().__init__()
        self.net, self.wrap = small_mlp(), wrap

    def forward(self, x: Tensor) -> object:
        return self.wrap(self.net(x))


@pytest.mark.parametrize("wrap", [lambda out: {"logits": out}, lambda out: (out, None)])
def test_networks_that_return_more_than_outputs_are_told_so(wrap) -> None:
    with pytest.raises(BackboneError, match=r"returns a (dict|tuple), not a tensor"):
        sigmatau.APDNet(Wrapped(wrap), **QUICK).learn("a", blobs(1))


@pytest.mark.parametrize("head", ["auto", None])
@pytest.mark.parametrize(
    ("wrap", "shape"), [(lambda out: out.sum(1), "(2,)"), (lambda out: out[:, None], "(2, 1, 3)")]
)
def test_labels_need_a_row_of_scores_each(wrap, shape: str, head: str | None) -> None:
    with pytest.raises(
        BackboneError, match=rf"outputs of shape {re.escape(shape)}.*\(2, classes\)"
    ):
        sigmatau.APDNet(Wrapped(wrap), head=head, **QUICK).learn("a", blobs(1))


def test_what_follows_the_head_must_take_the_outputs_of_every_task() -> None:
    x, y = blobs(1)
    wider = (x, y.clone().fill_(5))
    behind = nn.Sequential(*small_mlp(), nn.BatchNorm1d(3))
    net = sigmatau.APDNet(behind, **QUICK)
    net.learn("a", (x, y))
    with pytest.raises(BackboneError, match=r"follows the head '4' fails on the 6 outputs.*same"):
        net.learn("b", wider)
    assert net.tasks == ("a",)
    with pytest.raises(BackboneError, match=r"2 rows into outputs of shape \(4, 3\)"):
        sigmatau.APDNet(Wrapped(lambda out: out.view(-1, 3)), **QUICK).learn("a", wider)

    images = x.reshape(len(x), 6, 1, 1)
    convolved = nn.Sequential(
        nn.Conv2d(6, 8, 1), nn.ReLU(), nn.Conv2d(8, 3, 1), nn.BatchNorm2d(3), nn.Flatten()
    )
    net = sigmatau.APDNet(convolved, **QUICK)
    net.learn("a", (images, y))
    with pytest.raises(BackboneError, match="follows the head '2' fails on the 6 outputs"):
        net.learn("b", (images, wider[1]))
    fits = sigmatau.APDNet(nn.Sequential(*convolved[:3], nn.Flatten()), **QUICK)
    fits.learn("a", (images, y))
    fits.learn("b", (images, wider[1]))
    assert fits.predict("b", images).shape == (60, 6)


def test_targets_that_a_loss_would_spread_over_all_outputs_are_refused() -> None:
    x, y = blobs(1)
    net = sigmatau.APDNet(small_mlp(), **QUICK)
    with pytest.raises(DataError, match=r"\(2, 1\) and targets of shape \(2,\).*unsqueeze"):
        net.learn("a", (x, y.float()), loss=F.mse_loss)
    with pytest.raises(DataError, match=r"the loss fails.*targets of shape \(2,\).*unsqueeze"):
        net.learn("a", (x, y.float()), loss=F.binary_cross_entropy_with_logits)

    def picky(out: Tensor, t: Tensor) -> Tensor:
        if len(t) < 3:
            raise ArithmeticError("too few rows, as the sample has that a loss is tried on")
        return F.mse_loss(out.squeeze(1), t) + 0 * torch.rand(())

    before = torch.random.get_rng_state()
    net.learn("a", (x, y.float()), loss=picky)
    net.learn("b", (x, y.float()[:, None]), loss=F.mse_loss)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_inputs_that_cannot_be_predicted_are_told_so() -> None:
    net = learnt("a")
    with pytest.raises(DataError, match=r"the network of 'a' cannot take inputs of shape \(3,\)"):
        net.predict("a", torch.rand(4, 3))
    with pytest.raises(DataError, match=r"the network of 'a' cannot take"):
        net.predict(["a"] * 4, torch.rand(4, 3))
    with pytest.raises(DataError, match="tensor or a NumPy array, got list"):
        net.predict("a", [[0.0] * 6])


def test_every_error_is_of_one_family() -> None:
    for kind in (BackboneError, ConfigError, DataError, FileError, TaskError, TrainingError):
        assert issubclass(kind, SigmatauError)
