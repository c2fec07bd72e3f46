"""HAT against a plain rendering of its formulas: gates on activations, gradients held by hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sigmatau import methods
from sigmatau.backbones import alexnet, lenet, mlp, vgg16_bn
from sigmatau.errors import BackboneError
from sigmatau.methods.hat import HAT, HATSettings, HATTrainee
from sigmatau.methods.hat_chain import find_chain
from sigmatau.methods.patience import Patience, PatientSettings
from sigmatau.training import Epoch, Hook
from tests.conftest import blobs, small_conv, small_mlp

IMAGE = (1, 6, 6)
ORDER = ("0.weight", "3.weight", "6.weight", "8.weight")
COMMON = ("0.weight", "3.weight", "6.weight", "0.bias", "3.bias", "6.bias")


def net_of_four(seed: int = 0) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(
            *(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(3, 4, 1), nn.ReLU()),
            *(nn.Flatten(), nn.Linear(16, 5), nn.ReLU(), nn.Linear(5, 3)),
        )


def trainee_of(module: nn.Module, past: dict[str, Tensor], **settings: float) -> HATTrainee:
    drawn = torch.Generator().manual_seed(1)
    chosen = HATSettings(**settings)
    return HATTrainee(module, F.cross_entropy, ORDER, COMMON, past, chosen, drawn)


def past_attention(seed: int = 3) -> dict[str, Tensor]:
    drawn = torch.Generator().manual_seed(seed)
    past = {n: torch.rand(u, generator=drawn) for n, u in zip(ORDER, (3, 4, 5), strict=False)}
    for attention in past.values():
        attention[0], attention[1] = 1.0, 0.0
    return past


def learnt(tasks: int = 3, **settings: float) -> HAT:
    chosen = {"epochs": 25, "batch_size": 5, "lamb": 0.1, **settings}
    net = methods.create("hat", small_conv(), **chosen)
    assert isinstance(net, HAT)
    for i in range(tasks):
        net.learn(f"t{i}", blobs(i, shape=IMAGE))
    return net


def test_one_step_is_that_of_the_formulas() -> None:
    module, plain, past = net_of_four(), net_of_four(), past_attention()
    trainee, (x, y) = trainee_of(module, past, lamb=0.4, smax=50.0, clip=0.7), blobs(0, shape=IMAGE)
    es = [e.detach().clone().requires_grad_() for e in trainee.scores.values()]
    trainee.begins_batch(3, 10)
    s = 1 / 50 + (50 - 1 / 50) * 0.3
    assert trainee.hardness == pytest.approx(s)
    loss = trainee.loss(x, y)

    a, b, c = (torch.sigmoid(s * e) for e in es)
    h = plain[2](plain[1](plain[0](x))) * a.view(1, -1, 1, 1)
    h = plain[4](plain[3](h)) * b.view(1, -1, 1, 1)
    h = plain[7](plain[6](h.flatten(1))) * c
    free = [1 - p for p in past.values()]
    paid = sum((g * f).sum() for g, f in zip((a, b, c), free, strict=True))
    expected = F.cross_entropy(plain[8](h), y) + 0.4 * paid / sum(f.sum() for f in free)
    assert float(loss.detach()) == pytest.approx(float(expected.detach()), rel=1e-6)

    loss.backward()
    trainee.step(0.1)
    expected.backward()
    p1, p2, p3 = past.values()
    held = {
        "0.weight": p1.view(3, 1, 1, 1),
        "3.weight": torch.minimum(p2.view(4, 1, 1, 1), p1.view(1, 3, 1, 1)),
        "6.weight": torch.minimum(p3.view(5, 1), p2.view(4, 1).expand(4, 4).reshape(1, 16)),
        "0.bias": p1,
        "3.bias": p2,
        "6.bias": p3,
    }
    grads = {}
    for name, parameter in plain.named_parameters():
        assert parameter.grad is not None
        grads[name] = parameter.grad * (1 - held.get(name, torch.zeros(())))

    def slope(v: Tensor) -> Tensor:
        return torch.sigmoid(v) * (1 - torch.sigmoid(v))

    for i, e in enumerate(es):
        assert e.grad is not None
        d = e.detach().double()  # the compensation is the ratio of the two sigmoids' slopes
        grads[f"e{i}"] = (e.grad * 50 * slope(d) / (s * slope(s * d))).float()
    norm = torch.cat([g.flatten() for g in grads.values()]).norm()
    assert norm > 0.7
    for name, parameter in plain.named_parameters():
        new = parameter.detach() - 0.1 * grads[name] * 0.7 / norm
        assert torch.allclose(module.get_parameter(name), new, rtol=1e-4, atol=1e-7), name
    for i, (e, live) in enumerate(zip(es, trainee.scores.values(), strict=True)):
        new = (e.detach() - 0.1 * grads[f"e{i}"] * 0.7 / norm).clamp(-6, 6)
        assert torch.allclose(live, new, rtol=1e-3, atol=1e-6)


def test_gradients_are_zero_where_attention_is_one() -> None:
    module, (x, y) = net_of_four(), blobs(0, shape=IMAGE)
    # Free of charge, since the price of a unit would soon close all gates of so small a network.
    trainee = trainee_of(module, past_attention(), lamb=0.0)
    start = {n: p.detach().clone() for n, p in module.named_parameters()}
    for batch in range(20):
        trainee.begins_batch(batch, 20)
        trainee.loss(x, y).backward()
        trainee.step(0.05)
    moved = {n: module.get_parameter(n) != start[n] for n in COMMON}
    assert not moved["0.weight"][0].any()  # unit 0 of each layer is taken, unit 1 is free
    assert not moved["3.weight"][0, 0].any()
    assert not moved["6.weight"][0, :4].any()  # the first channel is flattened to four inputs
    assert not any(moved[f"{layer}.bias"][0] for layer in "036")
    assert all(bool(m.any()) for m in moved.values())


def test_all_units_taken_is_no_division_by_zero() -> None:
    past = {name: torch.ones_like(a) for name, a in past_attention().items()}
    trainee, (x, y) = trainee_of(net_of_four(), past), blobs(0, shape=IMAGE)
    trainee.begins_batch(0, 1)
    assert float(trainee.sparsity().detach()) == 0
    assert bool(torch.isfinite(trainee.loss(x, y)))


def test_earlier_tasks_hardly_move_and_later_ones_are_learnt() -> None:
    net = learnt(1)
    (x, _), before = blobs(0, shape=IMAGE), net.predict("t0", blobs(0, shape=IMAGE)[0])
    for i in (1, 2):
        net.learn(f"t{i}", blobs(i, shape=IMAGE))
    drift = (net.predict("t0", x).softmax(1) - before.softmax(1)).abs().max()
    assert float(drift) < 0.01
    assert all(net.accuracy(f"t{i}", blobs(i, shape=IMAGE)) > 0.8 for i in range(3))
    attention = torch.cat([m for t in net._memory.state.tasks.values() for m in t.masks.values()])
    assert bool(((attention < 0.1) | (attention > 0.9)).float().mean() > 0.9)


@pytest.mark.parametrize("gone", ["t0", "t1"])
def test_forgetting_frees_units_and_leaves_the_others(gone: str) -> None:
    net = learnt()
    x, _ = blobs(9, shape=IMAGE)
    before = {task: net.predict(task, x) for task in net.tasks if task != gone}
    net.forget(gone)
    for task, out in before.items():
        assert torch.equal(net.predict(task, x), out)
    assert all(f"task/{gone}" != name for name in net._records(net._memory.state)[0])


def test_saved_and_exported_networks_predict_the_same(tmp_path: Path) -> None:
    net = learnt(2)
    net.save(tmp_path / "net")
    again, (x, _) = methods.load(tmp_path / "net", small_conv(1)), blobs(9, shape=IMAGE)
    for task in net.tasks:
        assert torch.equal(again.predict(task, x), net.predict(task, x))
        assert torch.equal(net.export(task).eval()(x), net.predict(task, x))
    for one in (net, again):
        one.learn("more", blobs(4, shape=IMAGE))
    assert torch.equal(again.predict("more", x), net.predict("more", x))


class Bare(nn.Module):
    """Not a Sequential, and defined in another order than it runs in."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(8, 3)
        self.second = nn.Linear(36, 8)
        self.first = nn.Conv2d(1, 4, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        h = F.max_pool2d(F.relu(self.first(x)), 2)
        out: Tensor = self.head(F.relu(self.second(h.flatten(1))))
        return out


class Skip(Bare):
    def forward(self, x: Tensor) -> Tensor:
        h = F.max_pool2d(F.relu(self.first(x)), 2).flatten(1)
        out: Tensor = self.head(F.relu(self.second(h)) + h[:, :8])
        return out


class Mixing(Bare):
    def forward(self, x: Tensor) -> Tensor:
        h = F.max_pool2d(F.relu(self.first(x)), 2).flatten(1)
        out: Tensor = self.head(F.layer_norm(self.second(h), (8,)))
        return out


def test_a_chain_is_found_by_running() -> None:
    layers, (x, _) = ["head", "second", "first"], blobs(0, shape=IMAGE)
    assert find_chain(Bare(), layers, x[:2]) == ("first", "second", "head")
    wide = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    nets = (mlp((3, 32, 32), 5, (20, 20)), lenet(), vgg16_bn(width=0.1), alexnet(width=0.1))
    for net in nets:
        names = [n for n, m in net.named_modules() if isinstance(m, (nn.Linear, nn.Conv2d))]
        assert find_chain(net, names, wide) == tuple(names)
        assert net.training


@pytest.mark.parametrize(
    ("backbone", "told"),
    [
        (Skip, "goes round"),
        (Mixing, "mixed"),
        (lambda: nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(64, 3)), None),
        (
            lambda: nn.Sequential(
                *(nn.Conv2d(1, 4, 3), nn.Flatten(2), nn.Linear(16, 3)),
                *(nn.AdaptiveAvgPool2d((1, None)), nn.Flatten()),
            ),
            "mixed",
        ),
        (
            lambda: nn.Sequential(
                *(nn.Conv2d(1, 4, 3), nn.Conv2d(4, 4, 1, groups=2)),
                *(nn.Flatten(), nn.Linear(64, 3)),
            ),
            "grouped",
        ),
    ],
)
def test_what_is_no_chain_is_refused(backbone: Callable[[], nn.Module], told: str | None) -> None:
    net = methods.create(
        "hat", backbone(), head="auto" if backbone not in (Skip, Mixing) else "head"
    )
    data = blobs(0, shape=IMAGE)
    if told is None:
        order = find_chain(backbone(), ["0", "2"], data[0][:2])
        assert order == ("0", "2")
        return
    with pytest.raises(BackboneError, match=told):
        net.learn("a", data)
    assert net.tasks == ()


def test_tasks_need_a_head() -> None:
    net = methods.create("hat", small_mlp(), head=None, epochs=1)
    with pytest.raises(BackboneError, match="head"):
        net.learn("a", blobs(0))


def test_patience_cuts_the_rate_and_ends() -> None:
    patience = Patience(PatientSettings(lr=0.05, lr_patience=2, lr_factor=3, lr_min=0.01))
    paces = []
    for loss in (1.0, 0.5, 0.5, 0.6, 0.4, 0.4, 0.4, 0.3):
        patience.hear(loss)
        paces.append(round(patience.pace, 4))
    assert paces == [1, 1, 1, 0.3333, 0.3333, 0.3333, 0.1111, 0.1111]
    assert patience.finished  # .05 / 9 is below .01


class Cut(Hook):
    def __init__(self, at: int) -> None:
        self.at, self.state = at, {}

    def epoch_ends(self, task: str, epoch: Epoch, state: Callable[[], dict[str, Tensor]]) -> None:
        if epoch.index == self.at:
            self.state = state()


@pytest.mark.parametrize("at", [3, 9])
def test_a_cut_off_training_goes_on_to_the_same_bits(at: int) -> None:
    nets = [learnt(1, lr_patience=1, lr_min=0.004, epochs=40) for _ in range(2)]
    cut, data, val = Cut(at), blobs(1, shape=IMAGE), blobs(1, rows=30, shape=IMAGE)
    whole = nets[0].learn("b", data, val, hooks=[cut])
    assert at < len(whole.epochs) < 40
    rest = nets[1].learn("b", data, val, resume=cut.state)
    assert [(e.lr, e.loss) for e in rest.epochs] == [(e.lr, e.loss) for e in whole.epochs]
    x, _ = blobs(9, shape=IMAGE)
    assert torch.equal(nets[0].predict("b", x), nets[1].predict("b", x))
