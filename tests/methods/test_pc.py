"""P&C: each phase trains its own half by the objective as written, and the base alone predicts."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.distributions import Categorical, kl_divergence

from sigmatau import streams
from sigmatau.backbones import mlp
from sigmatau.errors import DataError
from sigmatau.methods import create
from sigmatau.methods.pc import COMPRESS, PROGRESS

from ..conftest import blobs, small_conv
from .begun import trainee_of

TASKS = [streams.get("digits")[i] for i in range(3)]


def backbone():
    torch.manual_seed(0)
    return mlp((1, 8, 8), 2, (16, 12))


def learnt(tasks=2, **settings):
    net = create("pc", backbone(), **{"epochs": 3, "batch_size": 20, "lr": 5e-3, **settings})
    for task in TASKS[:tasks]:
        net.learn(task.name, task.train, task.val, progress=False)
    return net


def halves(trainee):
    named = dict(trainee.module.named_parameters())
    base = {n: p for n, p in named.items() if n.startswith("base.")}
    return base, {n: p for n, p in named.items() if n not in base}


def run(trainee, phase, steps=3):
    trainee.begins_epoch(phase * trainee.settings_epochs, 99)
    x, y = TASKS[1].train
    for _ in range(steps):
        trainee.loss(x[:30], y[:30]).backward()
        trainee.step(1e-2)


@pytest.fixture
def trainee():
    made = trainee_of(learnt(tasks=1), TASKS[1])
    made.settings_epochs = made.lengths[0]
    return made


def test_each_phase_trains_its_half_and_leaves_the_other_to_the_bit(trainee):
    for phase, trained in ((PROGRESS, 1), (COMPRESS, 0)):
        before = [{n: p.detach().clone() for n, p in half.items()} for half in halves(trainee)]
        run(trainee, phase)
        after = halves(trainee)
        moving, still = after[trained], after[1 - trained]
        assert all(torch.equal(p, before[1 - trained][n]) for n, p in still.items())
        assert all(not torch.equal(p, before[trained][n]) for n, p in moving.items())


def test_the_active_column_is_the_formula(trainee):
    pair = trainee.module.eval()
    x = TASKS[1].train[0][:7]
    base, live = pair.base, dict(pair.named_parameters())
    known = x.flatten(1)
    h = known
    for i, name in enumerate(("fc1", "fc2", "head")):
        z = h @ live[f"layers.{i}.weight"].T + live[f"layers.{i}.bias"]
        if i:
            v, u = live[f"adapters.{i - 1}.squeeze.weight"], live[f"adapters.{i - 1}.bring.weight"]
            c, a = live[f"adapters.{i - 1}.squeeze.bias"], live[f"adapters.{i - 1}.scale"]
            z = z + a * ((known @ v.T + c).relu() @ u.T)
            assert bool(((a >= 0) & (a <= 0.1)).all())
        h = z if name == "head" else z.relu()
        known = getattr(base, name)(known).relu()
    torch.testing.assert_close(pair.active(x), h)


def test_compress_follows_the_gradient_of_distillation_and_hold(trainee):
    run(trainee, PROGRESS)
    run(trainee, COMPRESS)  # away from the anchor
    x, y = TASKS[1].train[0][:30], TASKS[1].train[1][:30]
    pair, net = trainee.module, learnt(tasks=1)
    state, chosen = net._memory.state, net.settings
    taught = Categorical(logits=pair.active(x).detach())
    whole = kl_divergence(taught, Categorical(logits=pair.base(x))).mean()
    torch.testing.assert_close(trainee.loss(x, y), whole)
    live = dict(pair.base.named_parameters())
    for name, fisher in state.beside["fisher"].items():
        pull = (fisher * (live[name] - state.weights[name]) ** 2).sum()
        whole = whole + chosen.strength / 2 * chosen.gamma * pull
    due = torch.autograd.grad(whole, list(live.values()))
    seen = {}
    trainee.optimizer.step = lambda: seen.update({n: p.grad.clone() for n, p in live.items()})
    trainee.loss(x, y).backward()
    trainee.step(0.0)  # without a step there is no damping
    for (name, grad), wanted in zip(seen.items(), due, strict=True):
        torch.testing.assert_close(grad, wanted, rtol=1e-4, atol=1e-7, msg=name)


def test_what_is_distilled_stays_what_was_learnt(trainee):
    run(trainee, PROGRESS)
    x = TASKS[1].train[0][:30]
    learnt_by_now = trainee.module.active(x)
    run(trainee, COMPRESS)
    assert torch.equal(trainee.module.active(x), learnt_by_now)


def test_the_base_alone_predicts_and_is_all_that_is_kept():
    net = learnt(tasks=2)
    state, x = net._memory.state, TASKS[0].test[0]
    for task in TASKS[:2]:
        plain = backbone()
        plain.load_state_dict({**state.weights, **state.heads[task.name]})
        with torch.no_grad():
            assert torch.equal(net.predict(task.name, x), plain(x))
    records, _ = net._records(state)
    names = {key for record in records.values() for key in record}
    assert names == set(plain.state_dict())
    assert net.capacity().paper <= 1
    assert net.accuracy(TASKS[1].name, TASKS[1].test) > 0.7


def test_both_phases_have_their_epochs_and_begin_at_the_full_rate():
    net = create("pc", backbone(), epochs=3, lr_decay=0.5, batch_size=50)
    report = net.learn("0", TASKS[0].train, TASKS[0].val, progress=False)
    rates = [round(epoch.lr / net.settings.lr, 6) for epoch in report.epochs]
    assert rates == [1, 0.5, 0.25] * 2
    assert report.selected >= 3  # the base, distilled


def test_what_the_first_task_needs_moves_less_the_firmer_the_hold():
    sgd = {"optimizer": "sgd", "lr": 0.1, "weight_decay": 0.0}
    start = learnt(1, **sgd)._memory.state
    moved = []
    for strength in (0.0, 1.0, 100.0):
        weights = learnt(3, strength=strength, **sgd)._memory.state.weights
        fisher = start.beside["fisher"]
        apart = {n: (weights[n] - start.weights[n]) ** 2 for n in fisher}
        moved.append(sum(float((fisher[n] * apart[n]).sum()) for n in fisher))
    assert moved[1] < 0.2 * moved[0]
    assert moved[2] < 0.2 * moved[1]


def test_tasks_without_labels_are_refused():
    with pytest.raises(DataError, match="class"):
        create("pc", small_conv()).learn(
            "0", (blobs(0, shape=(1, 6, 6))[0], torch.rand(60, 2)), loss=F.mse_loss
        )
