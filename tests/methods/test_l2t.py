"""L2-transfer: the step is that of `L + strength * ||theta - before||^2`, and heads are free."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from sigmatau import streams
from sigmatau.backbones import mlp
from sigmatau.methods import create

from .begun import trainee_of

TASKS = [streams.get("digits")[i] for i in range(3)]


def net_of(**settings):
    torch.manual_seed(0)
    backbone = mlp((1, 8, 8), 2, (16,))
    return create("l2t", backbone, epochs=2, batch_size=20, optimizer="sgd", lr=0.1, **settings)


def taught(net, count=2):
    for task in TASKS[:count]:
        net.learn(task.name, task.train, progress=False)
    return net


def moved(net):
    """Return how far learning the second task moved the shared weights."""
    taught(net, 1)
    before = net._memory.state.weights
    net.learn(TASKS[1].name, TASKS[1].train, progress=False)
    after = net._memory.state.weights
    return sum(float((after[n] - before[n]).square().sum()) for n in before) ** 0.5


def test_one_step_minimises_the_model_of_the_objective():
    """The step ends where the linearised loss, the penalty and the step's own price balance."""
    net = taught(net_of(strength=3.0, weight_decay=0.0), 1)
    state, lr = net._memory.state, 0.1
    trainee = trainee_of(net, TASKS[1])
    live = dict(trainee.module.named_parameters())
    x, y = TASKS[1].train
    for _ in range(2):  # the second step begins away from the anchor
        began = {n: p.detach().clone().double() for n, p in live.items()}
        loss = trainee.loss(x, y)
        grads = dict(zip(live, torch.autograd.grad(loss, live.values()), strict=True))
        trainee.loss(x, y).backward()
        trainee.step(lr)
    for name, parameter in live.items():
        ended = parameter.detach().double().requires_grad_()
        objective = (grads[name] * ended).sum() + (ended - began[name]).square().sum() / (2 * lr)
        if name in state.weights:
            objective = objective + 3.0 * (ended - state.weights[name]).square().sum()
        (slope,) = torch.autograd.grad(objective, ended)
        assert slope.abs().max() < 1e-5


def test_the_stronger_the_nearer():
    far, near, nearer = (moved(net_of(strength=s)) for s in (0.0, 1.0, 100.0))
    assert far > 2 * near > 4 * nearer > 0


def test_no_strength_diverges():
    assert moved(net_of(strength=1e8)) < 1e-3


def test_strength_zero_is_finetuning():
    torch.manual_seed(0)
    plain = create(
        "finetune", mlp((1, 8, 8), 2, (16,)), epochs=2, batch_size=20, optimizer="sgd", lr=0.1
    )
    held, plain = taught(net_of(strength=0.0)), taught(plain)
    x = TASKS[0].test[0]
    for task in TASKS[:2]:
        assert torch.equal(held.predict(task.name, x), plain.predict(task.name, x))


def test_a_loss_of_ones_own_is_welcome():
    net = net_of(strength=0.1)
    x, y = TASKS[0].train
    for name in ("a", "b"):
        net.learn(name, (x, y.float()[:, None]), loss=F.mse_loss, progress=False)
    assert net.predict("a", x).shape == (len(x), 1)


def test_negative_strength_is_refused():
    with pytest.raises(ValueError, match="price of leaving"):
        net_of(strength=-1.0)
