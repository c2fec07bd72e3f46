"""Single-task learning: a task comes out the same to the bit wherever it stands."""

from __future__ import annotations

import pytest
import torch

from sigmatau import streams
from sigmatau.backbones import mlp
from sigmatau.errors import TaskError
from sigmatau.methods import create, load

TASKS = [streams.get("digits")[i] for i in range(3)]


def backbone():
    torch.manual_seed(0)
    return mlp((1, 8, 8), 2, (16,))


def learnt(order):
    net = create("stl", backbone(), epochs=2, batch_size=20)
    for i in order:
        net.learn(TASKS[i].name, TASKS[i].train, TASKS[i].val, progress=False)
    return net


def outputs(net):
    return {task: net.predict(task, TASKS[0].test[0]) for task in sorted(net.tasks)}


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[n], other[n]) for n in one)


def test_order_changes_nothing():
    assert same(outputs(learnt([0, 1, 2])), outputs(learnt([2, 0, 1])))


def test_networks_are_apart_and_begin_alike():
    alone, third = learnt([2]), learnt([0, 1, 2])
    name = TASKS[2].name
    assert torch.equal(outputs(alone)[name], outputs(third)[name])
    first, last = third.export(TASKS[0].name), third.export(name)
    assert not torch.equal(first.fc1.weight, last.fc1.weight)


def test_capacity_is_one_network_a_task():
    net = learnt([0, 1, 2])
    assert net.capacity().strict == pytest.approx(3)
    assert [info.growth for info in net.infos.values()] == [1, 1, 1]


def test_capacity_in_networks_of_another_width():
    from safetensors.torch import save

    net, narrow = learnt([0, 1, 2]), mlp((1, 8, 8), 2, (4,))
    assert net.capacity(backbone()) == net.capacity()
    own, other = net.capacity(), net.capacity(narrow)
    trunk, head = 64 * 4 + 4, 4 * 2 + 2
    assert other.strict == pytest.approx(3 * net.layout.size / (trunk + head))
    wide = net.layout.trunk_size + 3 * (16 * 2 + 2)
    assert other.paper / own.paper == pytest.approx(wide / (trunk + 3 * head))
    files = [len(save(m.state_dict())) for m in (backbone(), narrow)]
    assert other.bytes / own.bytes == pytest.approx(files[0] / files[1], rel=0.01)


def test_forgetting_leaves_the_others_and_nothing_behind():
    net = learnt([0, 1, 2])
    before = outputs(net)
    net.forget(TASKS[1].name)
    after = outputs(net)
    assert len(after) == 2
    assert same(after, {n: before[n] for n in after})
    assert net.capacity().strict == pytest.approx(2)
    with pytest.raises(TaskError):
        net.predict(TASKS[1].name, TASKS[0].test[0])
    assert outputs(learnt([0, 2])).keys() == after.keys()


def test_tasks_are_read_when_first_used(tmp_path):
    net = learnt([0, 1])
    net.save(tmp_path / "a.net")
    again = load(tmp_path / "a.net", backbone())
    held = again._memory.state
    assert not any(part.loaded for part in held.values())
    again.predict(TASKS[1].name, TASKS[0].test[0])
    assert [part.loaded for part in held.values()] == [False, True]
    again.save(tmp_path / "b.net")  # with one task still unread
    assert (tmp_path / "a.net").read_bytes() == (tmp_path / "b.net").read_bytes()
    assert same(outputs(again), outputs(net))


def test_frozen_parameters_are_not_stored():
    frozen = backbone()
    frozen.fc1.weight.requires_grad_(False)
    frozen.fc1.bias.requires_grad_(False)
    frozen = torch.nn.Sequential(frozen.flatten, frozen.fc1, torch.nn.Linear(16, 8), frozen.head)
    frozen[3] = torch.nn.Linear(8, 2)
    net = create("stl", frozen, epochs=1)
    net.learn("a", TASKS[0].train, progress=False)
    assert net.capacity().strict < 0.2
    assert torch.equal(net.export("a")[1].weight, frozen[1].weight)
