"""PGN: columns compute what the formula says, and the past stays as it is, to the bit."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from sigmatau.errors import ConfigError, FileError, TaskError
from sigmatau.methods import create

from ..conftest import blobs, small_conv, small_mlp

BUILD = {"mlp": (small_mlp, (6,)), "conv": (small_conv, (1, 6, 6))}


def learnt(kind="mlp", tasks=3, **settings):
    build, shape = BUILD[kind]
    net = create("pgn", build(), **{"epochs": 2, "batch_size": 16, "width": 0.4, **settings})
    for task in range(tasks):
        net.learn(f"{task}", blobs(task, shape=shape), progress=False)
    return net


@pytest.mark.parametrize("kind", BUILD)
def test_earlier_tasks_stay_the_same_to_the_bit(kind):
    x = blobs(9, shape=BUILD[kind][1])[0]
    net = learnt(kind, tasks=0)
    outputs = {}
    for task in range(4):
        net.learn(f"{task}", blobs(task, shape=BUILD[kind][1]), progress=False)
        outputs[f"{task}"] = net.predict(f"{task}", x)
        for name, before in outputs.items():
            assert torch.equal(net.predict(name, x), before)


def test_a_column_is_its_own_layers_plus_lateral_ones():
    net = learnt("mlp", tasks=3)
    x = blobs(9)[0]
    columns = [net._memory.state.columns[name].tensors for name in net.tasks]
    below = [x] * 3
    for layer, act in ((0, torch.relu), (1, torch.tanh), (2, lambda h: h)):
        here = []
        for t, held in enumerate(columns):
            weight, bias = held[f"layers.{layer}.weight"], held[f"layers.{layer}.bias"]
            if layer == 0:
                here.append(act(x @ weight.T + bias))
                continue
            total, start = bias, 0
            for i in range(t + 1):  # the last block is W, the others are U
                end = start + below[i].shape[1]
                total = total + below[i] @ weight[:, start:end].T
                start = end
            assert start == weight.shape[1]
            here.append(act(total))
        below = here
    for task, by_hand in zip(net.tasks, below, strict=True):
        torch.testing.assert_close(net.predict(task, x), by_hand)


def test_lateral_convolutions_have_the_layers_kernel():
    torch.manual_seed(0)
    conv = torch.nn.Sequential(
        torch.nn.Conv2d(1, 5, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.Conv2d(5, 4, 3, padding=1, stride=2),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.Linear(36, 3),
    )
    net = create("pgn", conv, epochs=1, batch_size=20, units=(2, 3))
    for task in range(2):
        net.learn(f"{task}", blobs(task, shape=(1, 6, 6)), progress=False)
    x = blobs(9, shape=(1, 6, 6))[0]
    one, two = (net._memory.state.columns[name].tensors for name in net.tasks)
    a = F.conv2d(x, one["layers.0.weight"], one["layers.0.bias"], padding=1).relu()
    b = F.conv2d(x, two["layers.0.weight"], two["layers.0.bias"], padding=1).relu()
    lateral, own = two["layers.1.weight"].split([5, 2], 1)
    d = F.conv2d(b, own, two["layers.1.bias"], 2, 1) + F.conv2d(a, lateral, None, 2, 1)
    c = F.conv2d(a, one["layers.1.weight"], one["layers.1.bias"], 2, 1).relu()
    features = torch.cat([c.flatten(1), d.relu().flatten(1)], 1)
    by_hand = features @ two["layers.2.weight"].T + two["layers.2.bias"]
    torch.testing.assert_close(net.predict("1", x), by_hand)


def test_with_a_cap_a_task_needs_no_more_columns_than_that():
    net = learnt(tasks=5, max_links=2)
    links = {task: column.links for task, column in net._memory.state.columns.items()}
    assert links == {"0": (), "1": ("0",), **dict.fromkeys("234", ("0", "1"))}
    assert len(net._compose(net._memory.state, "4", small_mlp()).nets) == 3
    free = learnt(tasks=5)
    assert len(free._memory.state.columns["4"].links) == 4
    assert net.capacity().strict < free.capacity().strict
    x = blobs(9)[0]
    torch.testing.assert_close(net.export("4")(x), net.predict("4", x))


def test_the_first_column_starts_as_the_backbone_and_later_ones_have_the_width():
    net = learnt(tasks=2, width=0.25)
    widths = [column.widths for column in net._memory.state.columns.values()]
    assert widths == [(8, 7), (2, 2)]
    assert [
        c.widths for c in learnt(tasks=2, units=(3, 1), first=0.5)._memory.state.columns.values()
    ] == [
        (4, 4),
        (3, 1),
    ]
    still = create("pgn", small_mlp(), epochs=1, lr=1e-30, weight_decay=0.0)
    still.learn("0", blobs(0), progress=False)
    tensors = still._memory.state.columns["0"].tensors
    assert torch.equal(tensors["layers.0.weight"], small_mlp()[0].weight)


def test_units_must_fit_the_layers():
    with pytest.raises(ConfigError, match="2 layers"):
        create("pgn", small_mlp(), units=(3,))


def test_forgetting_is_refused_with_the_reason():
    net = learnt(tasks=2)
    with pytest.raises(TaskError, match="later tasks read its units"):
        net.forget("0")


def test_a_file_with_other_units_is_refused(tmp_path):
    net = learnt(tasks=2)
    records, own = net._records(net._memory.state)
    own["columns"]["1"][0] = [10**9, 3]
    net._records = lambda state: (records, own)
    net.save(tmp_path / "bad")
    with pytest.raises(FileError, match="does not fit"):
        _ = type(net).load(tmp_path / "bad", small_mlp()).tasks


def test_a_column_starts_as_if_it_were_alone():
    net = create("pgn", small_mlp(), epochs=1, lr=1e-30, weight_decay=0.0, units=(3, 2))
    for task in range(3):
        net.learn(f"{task}", blobs(task), progress=False)
    held = net._memory.state.columns["2"].tensors
    for layer, own in ((1, 3), (2, 2)):
        lateral, mine = held[f"layers.{layer}.weight"].split(
            [held[f"layers.{layer}.weight"].shape[1] - own, own], 1
        )
        assert lateral.shape[1] > 0
        assert bool((lateral.abs() < 1e-20).all())
        assert 0.3 * own**-0.5 < float(mine.abs().max()) <= own**-0.5 * (1 + 1e-6)
