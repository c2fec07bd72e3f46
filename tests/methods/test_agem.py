"""S-GEM and A-GEM: the step has no negative product with the reference, and changes no more."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from sigmatau import streams
from sigmatau.backbones import mlp
from sigmatau.errors import DataError
from sigmatau.methods import create, gem
from sigmatau.methods.agem import project

from .begun import trainee_of

TASKS = [streams.get("digits")[i] for i in range(4)]


def net_of(name, backbone=None, **settings):
    torch.manual_seed(0)
    backbone = backbone or mlp((1, 8, 8), 2, (16,))
    given = {"epochs": 1, "batch_size": 20, "optimizer": "sgd", "lr": 0.1, "memory": 30}
    return create(name, backbone, **(given | settings))


def taught(name, tasks=TASKS[:3], backbone=None, **settings):
    net = net_of(name, backbone, **settings)
    for task in tasks:
        net.learn(task.name, task.train, progress=False)
    return net


@given(st.integers(0, 10**6))
def test_projection_is_gems_with_one_constraint(seed):
    drawn = torch.Generator().manual_seed(seed)
    g, r = torch.randn(2, 9, generator=drawn)
    found = project(g, r)
    if torch.dot(g, r) >= 0:
        assert found is None
    else:
        assert torch.dot(found, r) >= -1e-5
        torch.testing.assert_close(found, gem.project(g, r[None], 0.0), rtol=1e-4, atol=1e-4)


def test_a_reference_of_zeros_changes_nothing():
    assert project(torch.ones(3), torch.zeros(3)) is None


@pytest.mark.parametrize("name", ["s-gem", "a-gem"])
def test_a_step_does_not_go_against_the_reference(name, monkeypatch):
    trainee = trainee_of(taught(name), TASKS[3])
    references = []
    module = "sigmatau.methods.agem.project"
    monkeypatch.setattr(module, lambda g, r: references.append((g, r)) or project(g, r))
    x, y = TASKS[3].train
    for rows in torch.arange(len(x)).split(20):
        before = torch.cat([p.detach().reshape(-1) for p in trainee.trained])
        trainee.loss(x[rows], y[rows]).backward()
        trainee.step(0.1)
        step = before - torch.cat([p.detach().reshape(-1) for p in trainee.trained])
        assert torch.dot(step, references[-1][1]) > -1e-5
    assert any(torch.dot(g, r) < 0 for g, r in references)  # or this would have tested nothing


def naive_loss(net, rows, trainee):
    """Return the mean loss over rows of A-GEM's memories, one row and one network at a time."""
    losses = []
    for row in rows:
        task = list(net._memory.state.heads)[int(trainee.task[row])]
        module = net.export(task).train()
        out = module(trainee.x[row : row + 1])
        losses.append(F.cross_entropy(out, trainee.y[row : row + 1]))
    return torch.stack(losses).mean()


def conv_head():
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    )


def token_head():
    return nn.Sequential(nn.Flatten(1, 2), nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 2), Mean())


class Mean(nn.Module):
    def forward(self, x):
        return x.mean(1)


@pytest.mark.parametrize("backbone", [None, conv_head, token_head])
def test_one_pass_with_all_heads_is_one_network_after_the_other(backbone):
    net = net_of("a-gem", backbone and backbone())
    x, y = TASKS[0].train
    for name, labels in {"two": y, "four": torch.arange(len(y)) % 4, "three": y + 1}.items():
        net.learn(name, (x, labels), progress=False)
    trainee = trainee_of(net, TASKS[3])
    rows = next(trainee.batches)[:40]
    out = trainee.heads.mixed(trainee.x[rows], trainee.task[rows])
    found = F.cross_entropy(out, trainee.y[rows])
    torch.testing.assert_close(found, naive_loss(net, rows, trainee))
    assert trainee.gradient_of(found).isfinite().all()


def test_draws_use_all_memories_up_before_any_comes_again():
    trainee = trainee_of(taught("a-gem", reference=25), TASKS[3])
    drawn = torch.cat([next(trainee.batches) for _ in range(4)])  # 3 memories of 30
    assert sorted(drawn[:90].tolist()) == list(range(90))


def test_each_past_task_is_minded_now_and_then():
    trainee = trainee_of(taught("s-gem"), TASKS[3])
    picked = set()
    trainee.task_loss = lambda k: picked.add(k) or type(trainee).task_loss(trainee, k)
    for _ in range(30):
        trainee.corrected(torch.zeros(sum(trainee.sizes)))
    assert picked == {0, 1, 2}


@pytest.mark.parametrize("name", ["gem", "s-gem", "a-gem"])
def test_remembering_helps(name):
    def first_task(name, **settings):
        net = taught(name, head=None, epochs=10, **settings)
        return net.accuracy(TASKS[0].name, TASKS[0].test)

    assert first_task(name) > _plain() + 0.1


def _plain():
    torch.manual_seed(0)
    net = create(
        "finetune",
        mlp((1, 8, 8), 2, (16,)),
        epochs=10,
        batch_size=20,
        optimizer="sgd",
        lr=0.1,
        head=None,
    )
    for task in TASKS[:3]:
        net.learn(task.name, task.train, progress=False)
    return net.accuracy(TASKS[0].name, TASKS[0].test)


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_heads_rest_while_nothing_goes_against_them(optimizer, monkeypatch):
    trainee = trainee_of(taught("a-gem", optimizer=optimizer, weight_decay=0.1), TASKS[3])
    monkeypatch.setattr(trainee, "corrected", lambda gradient: None)
    before = trainee.heads.apart()
    for _ in range(3):
        trainee.loss(*TASKS[3].train).backward()
        trainee.step(0.1)
    for one, other in zip(before, trainee.heads.apart(), strict=True):
        assert all(torch.equal(one[name], other[name]) for name in one)


def test_heads_of_past_tasks_move_with_their_weights():
    net = taught("a-gem", TASKS[:2], epochs=3)
    before = net._memory.state.heads[TASKS[0].name]
    net.learn(TASKS[2].name, TASKS[2].train, progress=False)
    after = net._memory.state.heads[TASKS[0].name]
    assert not torch.equal(before["head.weight"], after["head.weight"])


def test_inputs_of_two_shapes_are_refused_before_training():
    backbone = nn.Sequential(nn.Conv2d(1, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    backbone.append(nn.Linear(4, 2))
    net = net_of("a-gem", backbone)
    x, y = TASKS[0].train
    net.learn("small", (x, y), progress=False)
    net.learn("large", (x.repeat(1, 1, 2, 2), y), progress=False)
    with pytest.raises(DataError, match="s-gem"):
        net.learn("third", (x, y), progress=False)
