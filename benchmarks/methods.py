"""Every method of the registry after 1, 10 and 50 tasks: a step over the plain step, and memory.

The tasks before are tiny (64 rows, one epoch) and all alike in size; then steps of one more task on
an MLP 784-256-256-10 with batches of ten take turns with plain steps. "Training" is the most that
tensors take from beginning a task to the end of a step, "file" what the method would save; both are
counted, not sampled. What a method's definition needs is said beside the figures: where it says
"constant", a step after 50 tasks may take at most 1.25 times that after one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from benchmarks._document import Bar, Section, Table
from benchmarks._measure import Times, alternate, over
from benchmarks._past import begun, plain, step
from sigmatau import backbones, methods
from sigmatau.core import container
from sigmatau.data import TensorBatches
from sigmatau.methods.base import Method

CONSTANT = "constant"
# What a step needs by the method's definition, and what is kept for each task.
NEEDS: dict[str, tuple[str, str]] = {
    "a-gem": ("the past heads, which are trained along", "remembered rows, head"),
    "apd-fixed": (CONSTANT, "sparse delta, mask, biases, head"),
    "apd1": (CONSTANT, "sparse delta, mask, biases, head"),
    "apd2": (CONSTANT, "sparse delta, mask, biases, head; groups"),
    "den": ("the units added so far", "units added and split, head"),
    "ewc": (CONSTANT, "head"),
    "ewc-online": (CONSTANT, "head"),
    "finetune": (CONSTANT, "head"),
    "gem": ("a gradient for each past task, and its head", "remembered rows, head"),
    "hat": (CONSTANT, "an embedding of the units, head"),
    "l2t": (CONSTANT, "head"),
    "pc": (CONSTANT, "head"),
    "pgn": ("its links to every past column", "a column, and links to all before it"),
    "piggyback": (CONSTANT, "a bit a weight, head"),
    "rcl": ("its links to all units added", "units added, which read all before them"),
    "s-gem": ("the past heads, which are trained along", "remembered rows, head"),
    "stl": (CONSTANT, "a network"),
    "wsn": (CONSTANT, "about a bit a weight, head"),
}
FLAT = 1.25
QUICK: dict[str, Any] = {"epochs": 4, "batch_size": 16}
# What keeps a method quick where its own defaults are made for real problems.
SMALL: dict[str, dict[str, Any]] = {
    "rcl": {"trials": 1, "child_epochs": 1},
    "a-gem": {"reference": 64},  # as many as one task remembers
}


def rows(task: int, shape: tuple[int, ...], count: int) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(task)
    x = torch.rand(count, *shape, generator=g)
    return x, torch.arange(count) % 10


def stepping(net: Method[Any], x: Tensor, y: Tensor) -> Callable[[], None]:
    """Return a step of a new task, fed as in training."""
    trainee = begun(net, x)
    fed = trainee.fed(TensorBatches(x, y, len(x)))
    x, y = next(fed.ordered())
    return partial(step, trainee, x, y)


def peak(net: Method[Any], x: Tensor, y: Tensor) -> int:
    """Return the most bytes of tensors at a time, from beginning a task to the end of a step."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as told:
        stepping(net, x, y)()
    now = most = 0
    for event in told.profiler.kineto_results.events():
        if event.name() == "[memory]":
            now += event.nbytes()
            most = max(most, now)
    return most


def measure(
    name: str, tasks: Sequence[int], rounds: int, widths: Sequence[int] = (256, 256)
) -> tuple[Times, dict[int, tuple[int, int]]]:
    """Time steps after so many tasks beside plain ones; count bytes in training and in the file."""
    build = partial(backbones.mlp, (784,), 10, widths)
    net = methods.create(name, build(), **{**QUICK, **SMALL.get(name, {})})
    x, y = rows(-1, (784,), 10)
    sides: dict[str, Callable[[], None]] = {"plain": partial(step, plain(build()), x, y)}
    memory = {}
    for count in tasks:
        for task in range(len(net.tasks), count):
            net.learn(str(task), rows(task, (784,), 64), outputs=10, progress=False)
        with torch.random.fork_rng():
            memory[count] = (peak(net, x, y), container.size(*net._file()))
            sides[str(count)] = stepping(net, x, y)
    with torch.random.fork_rng():
        return alternate(sides, rounds, warm=3), memory


def main(
    names: Sequence[str] = (), tasks: Sequence[int] = (1, 10, 50), rounds: int = 40
) -> Section:
    found, bars = [], []
    numbers: dict[str, float] = {}
    first, last = str(tasks[0]), str(tasks[-1])
    for name in names or methods.names():
        times, memory = measure(name, tasks, rounds)
        ratios = [over(times, str(count), "plain") for count in tasks]
        grown = over(times, last, first)
        need, kept = NEEDS[name]
        if need == CONSTANT:
            bars.append(Bar(f"{name}: step after {last} tasks over after {first}", grown, FLAT))
        numbers |= {f"{name}, {count}": r for count, r in zip(tasks, ratios, strict=True)}
        training = [f"{memory[count][0] / 2**20:.1f}" for count in tasks]
        stored = [f"{memory[count][1] / 2**20:.1f}" for count in tasks]
        shown = [" / ".join(f"{r:.2f}" for r in ratios), f"{grown:.2f}"]
        found.append([name, *shown, need, " / ".join(training), " / ".join(stored), kept])
        print(f"{name}: {shown[0]}", flush=True)
    after = " / ".join(map(str, tasks))
    columns = ["method", f"step over plain after {after} tasks", f"{last} over {first}"]
    columns += ["a step needs", f"training, MiB after {after}", f"file, MiB after {after}"]
    return Section([Table("", [*columns, "kept for a task"], found)], bars, numbers)


if __name__ == "__main__":
    print(main())
