"""The one loop that trains every method: epochs, batches, validation, and the best of the last.

A method hands over a `Trainee`, which knows its loss and its step; the loop knows nothing of
methods. All that training changes can be read out after any epoch (`Fit.state`) and put back, so a
run that was cut off goes on to the same bits.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from sigmatau.data import Batches
from sigmatau.errors import TrainingError

Loss = Callable[[Tensor, Tensor], Tensor]
State = dict[str, Tensor]


@dataclass(frozen=True)
class Epoch:
    """What one epoch came to. `score` is the validation score, None without validation data."""

    index: int
    lr: float
    loss: float
    score: float | None
    seconds: float


class Hook:
    """Told of the course of a training; override what you need. Raising stops the training."""

    def starts(self, task: str, epochs: int) -> None: ...

    def batch_ends(self) -> None: ...

    def epoch_ends(self, task: str, epoch: Epoch, state: Callable[[], State]) -> None: ...

    def ends(self, task: str) -> None: ...


class Trainee:
    """A network in training: plain gradient descent, of which a method changes what is its own."""

    def __init__(
        self, module: nn.Module, loss: Loss, optimizer: torch.optim.Optimizer | None
    ) -> None:
        self.module, self.criterion, self.optimizer = module, loss, optimizer

    def begins_epoch(self, epoch: int, epochs: int) -> None:
        """Prepare for epoch number `epoch` of `epochs`, counted from 0."""

    def begins_batch(self, batch: int, batches: int) -> None:
        """Prepare for a batch, counted from 0, of so many in the epoch (0: not known)."""

    def fed(self, data: Batches, scoring: bool = False) -> Batches:
        """Return the data as the network reads it in the epoch that has begun."""
        return data

    def ends_epoch(self, loss: float, val: Batches | None) -> None:
        """Draw conclusions from an epoch, of which `loss` was the mean."""

    @property
    def device(self) -> torch.device:
        """Return where it is trained."""
        return next(self.module.parameters()).device

    @property
    def pace(self) -> float:
        """Return a factor on the learning rate of the coming epoch."""
        return 1.0

    @property
    def selectable(self) -> bool:
        """Return whether the epoch that just ended may be the one that is kept."""
        return True

    @property
    def finished(self) -> bool:
        """Return whether to stop although epochs are left."""
        return False

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.module(x)
        return out

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return self.criterion(self.forward(x), y)

    def step(self, lr: float) -> None:
        """Use the gradients that the loss left."""
        if self.optimizer is not None:
            for group in self.optimizer.param_groups:
                group["lr"] = lr * group.get("factor", 1.0)
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """Name the live tensors that make up the network: what model selection keeps."""
        yield from self.module.state_dict(keep_vars=True).items()

    def restored(self) -> None:
        """Follow up after `weights` were written over from outside."""

    def resumes(self, state: Mapping[str, Tensor]) -> None:
        """Take the structure of a training cut off, before `Fit.load` fills in its numbers."""

    def extra(self) -> Iterator[tuple[str, Tensor]]:
        """Name further live tensors that training changes, such as moments."""
        yield from ()


def gradients(trainee: Trainee, x: Tensor, y: Tensor) -> float:
    """Leave the gradients of a batch in the trainee, and return its loss."""
    loss = trainee.loss(x, y)
    loss.backward()  # type: ignore[no-untyped-call]
    return float(loss.detach())


def fit(
    trainee: Trainee,
    train: Batches,
    val: Batches | None,
    *,
    task: str,
    epochs: int,
    lr: float,
    lr_decay: float,
    select_last: int,
    score: Callable[[Trainee, Batches], float],
    generator: torch.Generator,
    hooks: Iterable[Hook] = (),
    resume: Mapping[str, Tensor] | None = None,
    gradients: Callable[[Trainee, Tensor, Tensor], float] = gradients,
) -> Fit:
    """Train, and leave in `trainee` the epoch that validated best among the last `select_last`.

    `gradients` is what a batch is done with before the step, here or along with other processes.
    """
    hooks = tuple(hooks)
    run = Fit(trainee, generator)
    if resume is not None:
        run.load(resume)
    for hook in hooks:
        hook.starts(task, epochs)
    for index in range(len(run.epochs), epochs):
        if trainee.finished:
            break
        began, rate = time.perf_counter(), lr * lr_decay**index * trainee.pace
        trainee.module.train()
        trainee.begins_epoch(index, epochs)
        total, seen = 0.0, 0
        for number, (x, y) in enumerate(trainee.fed(train).shuffled(generator)):
            trainee.begins_batch(number, train.count)
            value = gradients(trainee, x, y)
            if not value - value == 0:  # neither NaN nor infinite
                raise TrainingError(
                    f"the loss of task {task!r} became {value} in epoch {index + 1}: lower lr, or "
                    "look for targets and inputs of extreme size. The network is as it was before"
                )
            trainee.step(rate)
            total, seen = total + value * len(x), seen + len(x)
            for hook in hooks:
                hook.batch_ends()
        checks = trainee.fed(val, scoring=True) if val is not None else None
        achieved = score(trainee, checks) if checks is not None else None
        mean = total / max(seen, 1)
        trainee.ends_epoch(mean, checks)
        seconds = time.perf_counter() - began
        run.epochs.append(Epoch(index, rate, mean, achieved, seconds))
        if index >= epochs - select_last and trainee.selectable:
            run.consider(achieved)
        for hook in hooks:
            hook.epoch_ends(task, run.epochs[-1], run.state)
    run.restore()
    for hook in hooks:
        hook.ends(task)
    return run


@dataclass
class Fit:
    """The course of a training, and all that is needed to take it up again."""

    trainee: Trainee
    generator: torch.Generator
    epochs: list[Epoch] = field(default_factory=list)
    best: State | None = None
    best_epoch: int = -1

    def consider(self, achieved: float | None) -> None:
        """Keep the present weights if none validated better; without validation, the latest."""
        held = self.epochs[self.best_epoch].score if self.best is not None else None
        if achieved is not None and held is not None and achieved <= held:
            return
        self.best_epoch = len(self.epochs) - 1
        if achieved is not None:
            self.best = {n: t.detach().clone() for n, t in self.trainee.weights()}

    @torch.no_grad()
    def restore(self) -> None:
        """Put the kept weights back."""
        if self.best is not None and self.best_epoch != len(self.epochs) - 1:
            for name, tensor in self.trainee.weights():
                tensor.copy_(self.best[name])
            self.trainee.restored()
        self.best = None

    def state(self) -> State:
        """Return copies of everything that the next epoch depends on."""
        out = {f"weight/{n}": t for n, t in self.trainee.weights()}
        out |= {f"extra/{n}": t for n, t in self.trainee.extra()}
        if self.trainee.optimizer is not None:
            for i, entries in self.trainee.optimizer.state_dict()["state"].items():
                out |= {f"optimizer/{i}/{n}": torch.as_tensor(t) for n, t in entries.items()}
        if self.best is not None:
            out |= {f"best/{n}": t for n, t in self.best.items()}
        out["epochs"] = torch.tensor(
            [
                [e.lr, e.loss, float("nan") if e.score is None else e.score, e.seconds]
                for e in self.epochs
            ],
            dtype=torch.float64,
        )
        out["best_epoch"] = torch.tensor(self.best_epoch)
        out["generator"] = self.generator.get_state()
        out["global"] = torch.get_rng_state()
        if self.trainee.device.type == "cuda":
            out["cuda"] = torch.cuda.get_rng_state(self.trainee.device)
        return {n: t.detach().clone() for n, t in out.items()}

    @torch.no_grad()
    def load(self, state: Mapping[str, Tensor]) -> None:
        """Take up the training that `state` was read from."""
        for i, (lr, loss, score, seconds) in enumerate(state["epochs"].tolist()):
            known = None if score != score else score
            self.epochs.append(Epoch(i, lr, loss, known, seconds))
        self.trainee.resumes(state)
        self.best_epoch = int(state["best_epoch"])
        parts: dict[str, State] = {}
        for name, tensor in state.items():
            part, _, rest = name.partition("/")
            if rest:
                parts.setdefault(part, {})[rest] = tensor
        for name, live in self.trainee.weights():
            live.copy_(parts["weight"][name])
        for name, live in self.trainee.extra():
            live.copy_(parts["extra"][name])
        if self.trainee.optimizer is not None and "optimizer" in parts:
            held = self.trainee.optimizer.state_dict()
            for name, tensor in parts["optimizer"].items():
                slot, _, key = name.partition("/")
                held["state"].setdefault(int(slot), {})[key] = tensor.clone()
            self.trainee.optimizer.load_state_dict(held)
        if "best" in parts:
            self.best = {n: t.clone() for n, t in parts["best"].items()}
        self.trainee.restored()
        # Copies: a tensor mapped from a file may lie where the generators cannot read it.
        self.generator.set_state(state["generator"].clone())
        torch.set_rng_state(state["global"].clone())
        if self.trainee.device.type == "cuda" and "cuda" in state:
            torch.cuda.set_rng_state(state["cuda"].clone(), self.trainee.device)
