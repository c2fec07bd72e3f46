"""EWC: the Fisher is per sample, one quadratic stands for all, the online form fades."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from sigmatau import streams
from sigmatau.backbones import mlp
from sigmatau.errors import DataError, FileError
from sigmatau.methods import create, load

from .begun import trainee_of

TASKS = [streams.get("digits")[i] for i in range(4)]


def backbone():
    torch.manual_seed(0)
    return mlp((1, 8, 8), 2, (16,))


def net_of(name="ewc", **settings):
    given = {"epochs": 2, "batch_size": 20, "optimizer": "sgd", "lr": 0.1, "weight_decay": 0.0}
    return create(name, backbone(), **(given | {"fisher_samples": 60} | settings))


def learn(net, task):
    net.learn(task.name, task.train, progress=False)
    return net._memory.state


def naive_fisher(net, task):
    """Square the gradient of one sample after the other, at the network's own labels."""
    module = net.export(task.name)
    drawn = torch.Generator().manual_seed(net._seed("fisher", task.name))
    order = torch.randperm(len(task.train[0]), generator=drawn)
    total = {name: torch.zeros_like(p) for name, p in module.named_parameters()}
    count = net.settings.fisher_samples
    labels = []
    for rows in order[:count].split(20):  # as drawn: a label for each row of a chunk
        odds = module(task.train[0][rows]).detach().softmax(1)
        labels.append(torch.multinomial(odds, 1, generator=drawn)[:, 0])
    for row, label in zip(order[:count], torch.cat(labels), strict=True):
        out = module(task.train[0][row : row + 1])
        loss = F.cross_entropy(out, label[None])
        for name, grad in zip(total, torch.autograd.grad(loss, module.parameters()), strict=True):
            total[name] += grad**2 / count
    return {name: total[name] for name in net.trunk}


def test_fisher_is_that_of_single_samples():
    net = net_of()
    kept = learn(net, TASKS[0]).beside["fisher"]
    for name, fisher in naive_fisher(net, TASKS[0]).items():
        torch.testing.assert_close(kept[name], fisher, rtol=1e-4, atol=1e-9)
        assert fisher.sum() > 0


def test_one_quadratic_is_the_sum_over_tasks():
    net, tasks = net_of(strength=5.0), []
    for task in TASKS[:3]:
        state = learn(net, task)
        # What the task adds is what its own network's Fisher is, at the weights it left.
        tasks.append((naive_fisher(net, task), state.weights))
    drawn = torch.Generator().manual_seed(7)
    for name in net.trunk:
        theta = torch.randn(state.weights[name].shape, generator=drawn)
        slope = sum(fisher[name] * (theta - weights[name]) for fisher, weights in tasks)
        kept = state.beside["fisher"][name] * (theta - state.beside["anchor"][name])
        torch.testing.assert_close(kept, slope, rtol=1e-4, atol=1e-5)


def test_memory_does_not_grow_with_tasks():
    net = net_of(head=None)
    sizes = []
    for task in TASKS:
        learn(net, task)
        sizes.append(net.capacity().beside)
    assert sizes == [2.0] * 4  # one F and one anchor for each weight


def step_of(net, task):
    """Return the gradient that a step takes at weights away from the anchor, and where it began."""
    trainee = trainee_of(net, task)
    live = dict(trainee.module.named_parameters())
    with torch.no_grad():
        for name in net.trunk:
            live[name] += 0.1
    began = {name: live[name].detach().clone() for name in net.trunk}
    trainee.loss(*task.train).backward()
    plain = {name: live[name].grad.clone() for name in net.trunk}
    trainee.step(0.1)
    return plain, began, {name: live[name].detach() for name in net.trunk}


@pytest.mark.parametrize("name", ["ewc", "ewc-online"])
def test_the_step_balances_loss_and_hold(name):
    net = net_of(name, strength=5.0)
    for task in TASKS[:2]:
        state = learn(net, task)
    plain, began, ended = step_of(net, TASKS[2])
    if name == "ewc":
        fading, anchors = 1.0, state.beside["anchor"]
    else:
        fading, anchors = net.settings.gamma, state.weights
    for n in net.trunk:
        hold = 5.0 * fading * state.beside["fisher"][n] * (ended[n] - anchors[n])
        assert (plain[n] + hold + (ended[n] - began[n]) / 0.1).abs().max() < 1e-4


def test_online_form_fades_and_normalises():
    net = net_of("ewc-online", gamma=0.5)
    first = learn(net, TASKS[0]).beside
    assert set(first) == {"fisher"}
    second = learn(net, TASKS[1]).beside["fisher"]
    own = naive_fisher(net, TASKS[1])
    mean = torch.cat([f.reshape(-1) for f in own.values()]).mean()
    for name, fisher in own.items():
        expected = 0.5 * first["fisher"][name] + fisher / mean
        torch.testing.assert_close(second[name], expected, rtol=1e-4, atol=1e-6)


def test_holding_remembers():
    def first_task(strength):
        net = net_of(strength=strength, head=None, epochs=5)
        for task in TASKS[:3]:
            learn(net, task)
        return net.accuracy(TASKS[0].name, TASKS[0].test)

    assert first_task(1000.0) > first_task(0.0) + 0.1


def test_learning_goes_on_from_a_file(tmp_path):
    net = net_of()
    learn(net, TASKS[0])
    net.save(tmp_path / "a.net")
    again = load(tmp_path / "a.net", backbone())
    for n in (net, again):
        learn(n, TASKS[1])
    x = TASKS[0].test[0]
    assert torch.equal(net.predict(TASKS[0].name, x), again.predict(TASKS[0].name, x))


def test_a_fisher_of_another_network_is_refused(tmp_path):
    net = net_of()
    state = learn(net, TASKS[0])
    broken = {**state.beside, "fisher": {"fc1.weight": torch.zeros(2)}}
    net._memory = replace(net._memory, state=replace(state, beside=broken))
    net.save(tmp_path / "a.net")
    with pytest.raises(FileError, match="fisher"):
        load(tmp_path / "a.net", backbone()).predict(TASKS[0].name, TASKS[0].test[0])


def test_targets_without_classes_are_refused_before_training():
    x, y = TASKS[0].train
    with pytest.raises(DataError, match="class labels"):
        net_of().learn("a", (x, y.float()[:, None]), loss=F.mse_loss, progress=False)
