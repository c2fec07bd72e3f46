"""What a training step of APD costs beside the plain step, with 1 to 100 past tasks.

The plain side is one network, one task and `torch.optim.Adam(fused=True)` on the same batches. Past
tasks have deltas of 3 % at random places. Rounds alternate between the sides; the figure is the
median of the ratios within a round. Run: python -m benchmarks.steps
"""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sigmatau import APDNet, backbones
from sigmatau.core.sparse import Sparse
from sigmatau.core.state import Lazy, TaskPart
from sigmatau.inspection import Facts
from sigmatau.training import Trainee

CASES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], int]] = {
    "LeNet 20-50-800-500, batch 100": (lambda: backbones.lenet(), (3, 32, 32), 100),
    "LeNet 10-20-500-300, batch 100": (
        lambda: backbones.lenet((1, 28, 28), 12, (10, 20, 500, 300)),
        (1, 28, 28),
        100,
    ),
    "MLP 784-256-256-10, batch 10": (lambda: backbones.mlp(), (784,), 10),
}
PAST, DENSITY = (1, 10, 50, 100), 0.03


def with_past(net: APDNet, tasks: int) -> None:
    """Give the network past tasks with random sparse deltas, as if it had learnt them."""
    g = torch.Generator().manual_seed(tasks)
    state = net._memory.state
    parameters = dict(net._backbone.named_parameters())
    parts = {}
    for i in range(tasks):
        deltas = {}
        for w in net.layout.weights:
            chosen = torch.rand(w.shape, generator=g) < DENSITY
            deltas[w.name] = Sparse.from_dense(torch.randn(w.shape, generator=g) * 0.01 * chosen)
        masks = {
            w.name: torch.rand(w.channels, generator=g) * 0.2 + 0.8 for w in net.layout.weights
        }
        own = {name: parameters[name].detach().clone() for name in net.layout.own}
        head = {name: parameters[name].detach().clone() for name in net.layout.head_parameters}
        parts[str(i)] = Lazy(TaskPart(deltas, masks, own, head, {}))
    net._memory = replace(net._memory, state=replace(state, tasks=parts))


def plain(backbone: nn.Module) -> Trainee:
    module = copy.deepcopy(backbone).train()
    adam = torch.optim.Adam(module.parameters(), 1e-3, weight_decay=1e-4, fused=True)
    return Trainee(module, F.cross_entropy, adam)


def step(trainee: Trainee, x: Tensor, y: Tensor) -> float:
    start = time.perf_counter()
    loss = trainee.loss(x, y)
    float(loss.detach())
    loss.backward()  # type: ignore[no-untyped-call]
    trainee.step(1e-3)
    return time.perf_counter() - start


def measure(case: str, past: int, rounds: int, settings: dict[str, Any]) -> tuple[float, float]:
    """Return the plain step in ms, and the ratio of APD's to it."""
    build, shape, batch = CASES[case]
    g = torch.Generator().manual_seed(0)
    x, y = torch.rand(batch, *shape, generator=g), torch.randint(0, 10, (batch,), generator=g)
    net = APDNet(build(), **settings)
    with_past(net, past)
    begun = net._begin(net._memory.state, "new", Facts(x[:2], 10, True), F.cross_entropy)
    begun.begins_epoch(0, 20)
    sides = (plain(build()), begun)
    for trainee in sides:
        step(trainee, x, y)
    times = [[step(trainee, x, y) for trainee in sides] for _ in range(rounds)]
    return (
        1e3 * statistics.median(t[0] for t in times),
        statistics.median(t[1] / t[0] for t in times),
    )


def main(rounds: int = 30) -> None:
    """Print the table of step times."""
    torch.set_num_threads(1)
    for label, settings in {"l1 = 4e-4": {"l1": 4e-4}, "budget = 3 %": {"budget": 0.03}}.items():
        print(f"APD(1), {label}: step over the plain step, by the number of past tasks")
        print("| network | plain, ms | " + " | ".join(str(p) for p in PAST) + " |")
        print("|---|---|" + "---|" * len(PAST))
        for case in CASES:
            found = [measure(case, past, rounds, settings) for past in PAST]
            ratios = " | ".join(f"{ratio:.2f}" for _, ratio in found)
            print(f"| {case} | {found[0][0]:.2f} | {ratios} |", flush=True)


if __name__ == "__main__":
    main()
