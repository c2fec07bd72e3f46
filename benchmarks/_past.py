"""Networks as if they had learnt: past tasks with random sparse deltas, and one in training."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sigmatau import APDNet, backbones
from sigmatau.core.sparse import Sparse
from sigmatau.core.state import Lazy, TaskPart
from sigmatau.inspection import Facts
from sigmatau.methods.base import Method
from sigmatau.methods.learnt import TaskInfo
from sigmatau.training import Trainee

DENSITY = 0.03
Case = tuple[Callable[[], nn.Module], tuple[int, ...], int]

# The paper's networks, with the shape of a row and the size of a batch.
CASES: dict[str, Case] = {
    "LeNet 20-50-800-500, batch 100": (backbones.lenet, (3, 32, 32), 100),
    "LeNet 10-20-500-300, batch 100": (
        partial(backbones.lenet, (1, 28, 28), 12, (10, 20, 500, 300)),
        (1, 28, 28),
        100,
    ),
    "MLP 784-256-256-10, batch 10": (backbones.mlp, (784,), 10),
}
LENET, SMALL_LENET, MLP = CASES


def with_past(net: APDNet, tasks: int, distinct: int | None = None) -> APDNet:
    """Give the network past tasks with random sparse deltas, as if it had learnt them.

    Only `distinct` of them differ, which spares memory where their contents do not matter.
    """
    g = torch.Generator().manual_seed(tasks)
    parameters = dict(net._backbone.named_parameters())
    drawn: list[Lazy[TaskPart]] = []
    for _ in range(min(tasks, distinct or tasks)):
        deltas, masks = {}, {}
        for w in net.layout.weights:
            count = max(1, round(DENSITY * w.size))
            chosen = torch.rand(w.size, generator=g).topk(count).indices.sort().values
            values = 0.01 * torch.randn(count, generator=g)
            deltas[w.name] = Sparse(chosen.int(), values, w.shape)
            masks[w.name] = torch.rand(w.channels, generator=g) * 0.2 + 0.8
        own = {name: parameters[name].detach().clone() for name in net.layout.own}
        head = {name: parameters[name].detach().clone() for name in net.layout.head_parameters}
        drawn.append(Lazy(TaskPart(deltas, masks, own, head, {})))
    parts = {str(i): drawn[i % len(drawn)] for i in range(tasks)}
    outputs = next((p.shape[0] for p in drawn[0]().head.values()), None) if drawn else None
    infos = {name: TaskInfo(outputs, True, DENSITY) for name in parts}
    memory = net._memory
    net._memory = replace(memory, state=replace(memory.state, tasks=parts), infos=infos)
    return net


def batch(shape: tuple[int, ...], rows: int, outputs: int = 10) -> tuple[Tensor, Tensor]:
    """Return random rows with random labels."""
    g = torch.Generator().manual_seed(0)
    return torch.rand(rows, *shape, generator=g), torch.randint(0, outputs, (rows,), generator=g)


def begun(net: Method[Any], x: Tensor, epoch: int = 0, epochs: int = 20) -> Trainee:
    """Return a new task of ten classes in training, at the beginning of an epoch."""
    facts = Facts(x[:2], 10, True)
    trainee = net._begin(net._memory.state, "new", facts, F.cross_entropy)
    trainee.begins_epoch(epoch, epochs)
    return trainee


def plain(backbone: nn.Module) -> Trainee:
    """Return the plain PyTorch loop: one network, one task, fused Adam."""
    module = copy.deepcopy(backbone).train()
    adam = torch.optim.Adam(module.parameters(), 1e-3, weight_decay=1e-4, fused=True)
    return Trainee(module, F.cross_entropy, adam)


def step(trainee: Trainee, x: Tensor, y: Tensor) -> None:
    """Do what the training loop does with a batch."""
    trainee.begins_batch(0, 0)
    loss = trainee.loss(x, y)
    float(loss.detach())
    loss.backward()  # type: ignore[no-untyped-call]
    trainee.step(1e-3)
