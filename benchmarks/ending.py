"""The end of a task, where 100 past tasks are rewritten, against one epoch of that task.

The epoch has 4,000 rows of 3x32x32 in batches of 100, as in CIFAR-100 Split. How much there is to
rewrite depends on how many of the shared weights moved: as many as that epoch moved, or a given
share of them, drawn at random and moved by far more than a past task forgives.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch

from benchmarks._document import Bar, Section, Table
from benchmarks._measure import Times, alternate, median, over
from benchmarks._past import CASES, LENET, batch, begun, step, with_past
from sigmatau import APDNet
from sigmatau.data import TensorBatches
from sigmatau.methods.apd_training import APDTrainee
from sigmatau.training import Trainee

MOVED = (0.0, 0.01, 0.1)


def epoch(trainee: Trainee, data: TensorBatches) -> None:
    trainee.begins_epoch(0, 20)
    for x, y in data.shuffled(torch.Generator().manual_seed(0)):
        step(trainee, x, y)


def move(trainee: APDTrainee, share: float) -> None:
    """Put the shared weights where they were, but for a share of their entries."""
    g = torch.Generator().manual_seed(0)
    for w in trainee.decomposed:
        chosen = torch.rand(w.before.shape, generator=g) < share
        w.shared.copy_(w.before + 0.01 * chosen)


def measure(tasks: int, rows: int, moved: Sequence[float], rounds: int) -> tuple[Times, float, int]:
    """Time an epoch and the ends of the task; tell what share it moved, and all past nonzeros."""
    build, shape, size = CASES[LENET]
    x, y = batch(shape, rows)
    net, data = with_past(APDNet(build(), l1=4e-4), tasks), TensorBatches(x, y, size)
    state = net._memory.state
    trainees = []
    for share in (None, *moved):
        trainee = begun(net, x)
        assert isinstance(trainee, APDTrainee)
        if share is None:
            epoch(trainee, data)
        else:
            move(trainee, share)
        trainees.append(trainee)
    weights = trainees[0].decomposed
    far = sum(int(((w.shared - w.before).abs() > 2e-6).sum()) for w in weights)
    sides: dict[str, Callable[[], object]] = {"epoch": partial(epoch, begun(net, x), data)}
    for name, trainee in zip(("trained", *map(str, moved)), trainees, strict=True):
        sides[name] = partial(net._keep, state, "new", trainee, data)
    nonzeros = sum(part().nonzeros for part in state.tasks.values())
    return alternate(sides, rounds, warm=0), far / sum(w.weight.size for w in weights), nonzeros


def main(tasks: int = 100, rows: int = 4000, rounds: int = 3) -> Section:
    times, trained, nonzeros = measure(tasks, rows, MOVED, rounds)
    told = {"trained": f"{trained:.1%}, by the epoch", **{str(m): f"{m:.0%}" for m in MOVED}}
    shown = [
        [what, f"{median(times, side):.2f}", f"{over(times, side, 'epoch'):.2f}"]
        for side, what in told.items()
    ]
    title = f"{tasks} past tasks; the epoch takes {median(times, 'epoch'):.2f} s"
    columns = ["shared weights that moved", "end of the task, s", "over the epoch"]
    ratios = {side: over(times, side, "epoch") for side in told}
    bar = Bar("end of a task over one of its epochs", ratios["trained"], 1.0)
    numbers = {f"moved {side}": ratio for side, ratio in ratios.items()}
    numbers["epoch, s"] = median(times, "epoch")
    numbers["rewrite, ns a nonzero"] = 1e9 * median(times, "0.0") / nonzeros
    return Section([Table(title, columns, shown)], [bar], numbers)


if __name__ == "__main__":
    print(main())
