"""GEM: the projected gradient meets every constraint, and is quadprog's answer to the primal."""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np
import pytest
import quadprog
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from sigmatau import streams
from sigmatau.backbones import mlp
from sigmatau.errors import DataError, FileError, MissingExtra, TrainingError
from sigmatau.methods import create, load
from sigmatau.methods.gem import project

from .begun import trainee_of

TASKS = [streams.get("digits")[i] for i in range(3)]


def backbone(outputs=2):
    torch.manual_seed(0)
    return mlp((1, 8, 8), outputs, (16,))


def net_of(**settings):
    given = {"epochs": 1, "batch_size": 20, "optimizer": "sgd", "lr": 0.1, "memory": 30}
    return create("gem", backbone(), **(given | settings))


def learn(net, task):
    net.learn(task.name, task.train, progress=False)
    return net._memory.state


def vectors(seed, rows, size):
    drawn = torch.Generator().manual_seed(seed)
    return torch.randn(rows + 1, size, generator=drawn).split([1, rows])


@given(st.integers(0, 10**6), st.integers(1, 8))
def test_projection_is_that_of_the_primal_problem(seed, rows):
    (g,), past = vectors(seed, rows, 12)
    found = project(g, past, margin=0.0)
    # min 1/2 |x|^2 - g'x with past @ x >= 0, solved in the space of gradients.
    primal = quadprog.solve_qp(
        np.eye(12), g.double().numpy(), past.double().numpy().T, np.zeros(rows)
    )[0]
    np.testing.assert_allclose(found.numpy(), primal, atol=1e-3)


@given(st.integers(0, 10**6), st.integers(1, 8), st.floats(0, 2), st.sampled_from([1e-6, 1, 1e5]))
def test_every_constraint_is_met_whatever_the_scale(seed, rows, margin, scale):
    (g,), past = vectors(seed, rows, 12)
    found = project(g * scale, past * scale, margin)
    assert (past @ found).min() >= -1e-3 * scale


def degenerate():
    (g,), past = vectors(3, 4, 10)
    yield "twice the same", g, torch.stack([past[0], past[0], past[1]])
    yield "one is zero", g, torch.stack([past[0], torch.zeros(10)])
    yield "all are zero", g, torch.zeros(3, 10)
    yield "opposite", g, torch.stack([past[0], -past[0]])
    yield "more than dimensions", g, torch.randn(30, 10, generator=torch.Generator().manual_seed(1))
    yield "dependent", g, torch.stack([past[0], past[1], past[0] + past[1], past[0] - past[1]])
    yield "far apart in size", g, torch.stack([past[0] * 1e-12, past[1] * 1e6])
    yield "no room", -past.sum(0), torch.cat([past, -past])


@pytest.mark.parametrize(("g", "past"), [pytest.param(g, p, id=n) for n, g, p in degenerate()])
@pytest.mark.parametrize("margin", [0.0, 0.5])
def test_degenerate_constraints_are_met(g, past, margin):
    found = project(g, past, margin)
    assert found.isfinite().all()
    size = past.norm(dim=1).clamp_min(1e-30) * max(float(found.norm()), float(g.norm()))
    assert ((past @ found) / size).min() >= -1e-3


def test_gradients_that_are_no_numbers_are_named():
    with pytest.raises(TrainingError, match="lower lr"):
        project(torch.ones(3), torch.full((2, 3), torch.nan), 0.5)


def test_past_gradients_are_those_of_the_memories():
    net = net_of()
    for task in TASKS[:2]:
        state = learn(net, task)
    trainee = trainee_of(net, TASKS[2])
    for k, task in enumerate(TASKS[:2]):
        module, memory = net.export(task.name), state.beside[f"memory/{task.name}"]
        loss = F.cross_entropy(module(memory["x"]), memory["y"])
        trunk = [dict(module.named_parameters())[n] for n in ("fc1.weight", "fc1.bias")]
        expected = torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, trunk)])
        found = trainee.gradient_of(trainee.task_loss(k))
        torch.testing.assert_close(found[: len(expected)], expected)


def test_a_step_goes_against_no_memory():
    net = net_of()
    for task in TASKS[:2]:
        learn(net, task)
    trainee = trainee_of(net, TASKS[2])
    projected = 0
    x, y = TASKS[2].train
    for rows in torch.arange(len(x)).split(20):
        past = torch.stack([trainee.gradient_of(trainee.task_loss(k)) for k in range(2)])
        before = torch.cat([p.detach().reshape(-1) for p in trainee.trained])
        own = trainee.gradient_of(trainee.loss(x[rows], y[rows]))
        trainee.loss(x[rows], y[rows]).backward()
        trainee.step(0.1)
        step = before - torch.cat([p.detach().reshape(-1) for p in trainee.trained])
        projected += bool((past @ own < 0).any())
        assert (past @ step).min() > -1e-5
    assert projected  # or this would have tested nothing


def test_memory_is_of_the_task_and_counted_beside():
    net = net_of()
    kept = learn(net, TASKS[0]).beside[f"memory/{TASKS[0].name}"]
    assert kept["x"].shape == (30, 1, 8, 8)
    rows = {(tuple(x.flatten().tolist()), int(y)) for x, y in zip(*TASKS[0].train, strict=True)}
    drawn = {(tuple(x.flatten().tolist()), int(y)) for x, y in zip(*kept.values(), strict=True)}
    assert drawn <= rows
    assert len(drawn) == 30
    assert net.capacity().beside == pytest.approx(30 * 65 / net.layout.size)


def test_memory_larger_than_the_task_keeps_all_of_it():
    kept = learn(net_of(memory=10**6), TASKS[0]).beside[f"memory/{TASKS[0].name}"]
    assert len(kept["x"]) == len(TASKS[0].train[0])


def test_heads_of_different_widths_go_on_from_a_file(tmp_path):
    x, y = TASKS[0].train
    tasks = {"two": (x, y), "five": (x, torch.arange(len(x)) % 5), "three": (x, y + 1)}
    net = net_of()
    net.learn("two", tasks["two"], progress=False)
    net.learn("five", tasks["five"], progress=False)
    net.save(tmp_path / "a.net")
    again = load(tmp_path / "a.net", backbone())
    for n in (net, again):
        n.learn("three", tasks["three"], progress=False)
    for task, width in (("two", 2), ("five", 5), ("three", 3)):
        assert net.predict(task, x).shape == (len(x), width)
        assert torch.equal(net.predict(task, x), again.predict(task, x))


def test_a_file_without_its_memory_is_refused(tmp_path):
    net = net_of()
    state = learn(net, TASKS[0])
    net._memory = replace(net._memory, state=replace(state, beside={}))
    net.save(tmp_path / "a.net")
    with pytest.raises(FileError, match="memory"):
        load(tmp_path / "a.net", backbone()).predict(TASKS[0].name, TASKS[0].test[0])


def test_targets_without_classes_are_refused_before_training():
    x, y = TASKS[0].train
    with pytest.raises(DataError, match="class labels"):
        net_of().learn("a", (x, y.float()[:, None]), loss=F.mse_loss, progress=False)


def test_a_missing_solver_is_named_before_the_first_task(monkeypatch):
    net = net_of()
    monkeypatch.setitem(sys.modules, "quadprog", None)
    with pytest.raises(MissingExtra, match=r"sigmatau\[gem\]"):
        learn(net, TASKS[0])
    assert net.tasks == ()
