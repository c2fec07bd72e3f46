"""RCL: the controller is a distribution over units, is taught by REINFORCE, and the past stays."""

from __future__ import annotations

import math
from itertools import product

import pytest
import torch

from sigmatau.methods import create
from sigmatau.methods.rcl import Controller, RCLTrainee

from ..conftest import blobs, small_conv, small_mlp

BUILD = {"mlp": (small_mlp, (6,)), "conv": (small_conv, (1, 6, 6))}


def net_of(kind="mlp", **settings):
    given = {"epochs": 2, "batch_size": 20, "trials": 3, "child_epochs": 1, "max_units": 3}
    return create("rcl", BUILD[kind][0](), **{**given, **settings})


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def data(task, kind="mlp"):
    x, y = blobs(task, rows=80, shape=BUILD[kind][1])
    return (x[:60], y[:60]), (x[60:], y[60:])


@pytest.fixture
def watched(monkeypatch):
    """Tell of every child: its units, what it was paid, and its network."""
    seen = []

    class Watch(RCLTrainee):
        def teach(self, reward):
            seen.append((tuple(self.widths.tolist()), reward, self.module))
            super().teach(reward)

    monkeypatch.setattr("sigmatau.methods.rcl.RCLTrainee", Watch)
    return seen


@pytest.mark.parametrize("kind", BUILD)
def test_earlier_tasks_stay_the_same_to_the_bit(kind):
    net, x = net_of(kind), blobs(9, shape=BUILD[kind][1])[0]
    outputs = {}
    for task in range(3):
        net.learn(f"{task}", *data(task, kind), progress=False)
        outputs[f"{task}"] = net.predict(f"{task}", x)
        for name, before in outputs.items():
            assert torch.equal(net.predict(name, x), before)


def test_the_controller_is_a_distribution_over_all_choices():
    most, state = (2, 1, 3), torch.tensor([1.0, 1.5, 1.0])
    controller = Controller(most, 8, generator())
    with torch.no_grad():
        for parameter in controller.parameters():
            parameter.mul_(10)  # far from uniform
        odds = {
            choice: float(controller.log_odds(state, torch.tensor(choice)).exp())
            for choice in product(*(range(n + 1) for n in most))
        }
    assert sum(odds.values()) == pytest.approx(1, abs=1e-5)
    drawn = generator(1)
    rounds = 1500
    counts = dict.fromkeys(odds, 0)
    for _ in range(rounds):
        counts[tuple(controller.draw(state, drawn).tolist())] += 1
    for choice, chance in odds.items():
        spread = math.sqrt(chance * (1 - chance) / rounds)
        assert abs(counts[choice] / rounds - chance) < 4.5 * spread + 1e-9


def test_teaching_follows_the_policy_gradient_and_fits_the_value():
    trainee = begun(controller_lr=0.5)
    controller, state = trainee.controller, trainee.state
    trainee.widths.copy_(torch.tensor([2, 1]))
    reward, before = 0.7, {n: p.detach().clone() for n, p in controller.named_parameters()}
    value = controller.value(state)[0]
    chance = controller.log_odds(state, trainee.widths)
    policy = {n: p for n, p in controller.named_parameters() if not n.startswith("value.")}
    used = {n: p for n, p in policy.items() if n != "again.1.weight"}  # nothing follows the last
    wanted = torch.autograd.grad((reward - value.detach()) * chance, list(used.values()))
    fitted = [p for n, p in controller.named_parameters() if n.startswith("value.")]
    errors = torch.autograd.grad((value - reward) ** 2, fitted)
    trainee.teacher.step = lambda: None
    trainee.teach(reward)
    for (name, parameter), due in zip(used.items(), wanted, strict=True):
        torch.testing.assert_close(-parameter.grad, due, msg=name)
    for parameter, due in zip(fitted, errors, strict=True):
        torch.testing.assert_close(parameter.grad, due)
    assert all(torch.equal(p, before[n]) for n, p in controller.named_parameters())


def begun(**settings):
    """Return what trains a second task, before anything is done."""
    net = net_of(**settings)
    net.learn("0", *data(0), progress=False)
    found = []

    def stop(*given):
        found.append(type(net)._begin(net, *given))
        raise KeyboardInterrupt

    net._begin = stop
    with pytest.raises(KeyboardInterrupt):
        net.learn("1", *data(1), progress=False)
    return found[0]


def test_the_controller_learns_what_pays():
    trainee = begun(max_units=9, controller_lr=0.02)
    drawn = generator(3)

    def mean():
        with torch.no_grad():
            many = [trainee.controller.draw(trainee.state, drawn).sum() for _ in range(200)]
        return float(torch.stack(many).float().mean())

    before = mean()
    for _ in range(150):
        trainee.widths.copy_(trainee.controller.draw(trainee.state, drawn))
        trainee.teach(-0.1 * float(trainee.widths.sum()))  # units cost, and bring nothing
    assert mean() < 0.5 * before


def test_children_are_trained_and_the_best_paid_is_kept(watched):
    net = net_of(trials=5, alpha=0.01, lr=1e-2)
    net.learn("0", *data(0), progress=False)
    assert not watched  # the first task is not searched for
    (x, y), val = data(1)
    report = net.learn("1", (x, y), val, progress=False)
    assert len(watched) == 5
    assert len(report.epochs) == 5 * 1 + 2
    assert report.selected >= 5  # of the last phase
    for widths, reward, child in watched:
        with torch.no_grad():
            right = (child.eval()(val[0]).argmax(1) == val[1]).double().mean()
        assert reward == pytest.approx(float(right) - 0.01 * sum(widths))
        assert child.newest.widths == widths
    best = max(watched, key=lambda trial: trial[1])
    assert net._memory.state.columns["1"].widths == best[0]
    rates = [epoch.lr for epoch in report.epochs]
    assert rates[:6] == pytest.approx([1e-2] * 6)  # every child begins at the full rate
    children = [child.newest.state_dict()["layers.2.bias"] for _, _, child in watched]
    assert not any(torch.equal(children[0], other) for other in children[1:])


def test_units_can_cost_too_much(watched):
    net = net_of(trials=8, alpha=10.0)
    for task in range(2):
        net.learn(f"{task}", *data(task), progress=False)
    fewest = min(sum(widths) for widths, _, _ in watched)
    assert sum(net._memory.state.columns["1"].widths) == fewest


def test_a_task_may_add_nothing_but_its_head():
    net = net_of(max_units=0)
    for task in range(3):
        net.learn(f"{task}", *data(task), progress=False)
    assert net._memory.state.columns["2"].widths == (0, 0)
    assert net.infos["2"].growth == 0
    x = data(2)[0][0]
    torch.testing.assert_close(net.export("2")(x), net.predict("2", x))


def test_without_validation_data_the_training_loss_decides(watched):
    net = net_of()
    for task in range(2):
        report = net.learn(f"{task}", data(task)[0], progress=False)
    for (widths, reward, _), epoch in zip(watched, report.epochs, strict=False):
        assert reward == pytest.approx(-epoch.loss - net.settings.alpha * sum(widths))


def test_the_most_units_may_be_a_share_of_the_layer():
    assert net_of(max_share=0.5)._most == (4, 4)
    assert net_of(max_units=5)._most == (5, 5)
