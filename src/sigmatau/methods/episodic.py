"""Examples kept of every task, and what the loss on them would have a step do.

The base of GEM, S-GEM and A-GEM: after a task a few of its training examples are remembered, and
while a later one is trained each step looks at the gradients of the loss on them. A gradient is one
vector over all that is trained: the shared weights, the new head and the heads of past tasks, which
move with the weights they sit on, as in the published code. What the methods promise is promised of
the gradient; with plain SGD that is the step, while Adam takes steps of its own making. Memories
pass through the network in training mode, as the task's own batches do.

The loss on a past task is the plain cross-entropy: a loss of a user's own could not be kept in a
file, so tasks must have class labels.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from sigmatau.core.container import Container
from sigmatau.data import Batches
from sigmatau.errors import DataError, FileError
from sigmatau.inspection import Facts
from sigmatau.methods.descent import DescentSettings, descent
from sigmatau.methods.shared import SharedState, SharedWeights, Tensors
from sigmatau.training import Loss, Trainee

MEMORY = "memory/"


class EpisodicSettings(DescentSettings):
    """Settings of methods that remember examples."""

    memory: int = Field(256, ge=1, description="training examples remembered of each task")


class Heads:
    """The heads of past tasks, side by side in one tensor a parameter: task, output, input.

    Heads of fewer outputs are filled up with zeros, which no loss looks at.
    """

    def __init__(self, module: nn.Module, path: str, heads: Sequence[Tensors]) -> None:
        self.module, self.layer = module, module.get_submodule(path)
        self.names, self.count = tuple(heads[0]), len(heads)
        device = next(module.parameters()).device
        self.widths = [len(next(iter(head.values()))) for head in heads]
        self.widest = max(self.widths)
        self.there = torch.arange(self.widest) < torch.tensor(self.widths)[:, None]
        self.there = self.there.to(device)
        self.stacked: dict[str, nn.Parameter] = {}
        for name in self.names:
            whole = heads[0][name].new_zeros(self.count, self.widest, *heads[0][name].shape[1:])
            for row, head in zip(whole, heads, strict=True):
                row[: len(head[name])] = head[name]
            self.stacked[name] = nn.Parameter(
                whole.to(device), requires_grad=module.get_parameter(name).requires_grad
            )

    def outputs(self, x: Tensor, task: int) -> Tensor:
        """Return what the network says to rows of one past task."""
        own = {name: stack[task, : self.widths[task]] for name, stack in self.stacked.items()}
        out: Tensor = torch.func.functional_call(self.module, own, (x,))
        return out

    def mixed(self, x: Tensor, tasks: Tensor) -> Tensor:
        """Return what the network says to rows of several tasks, in one pass.

        All heads are run as one wide head, of which every row takes the outputs of its task.
        """
        along = -1 if isinstance(self.layer, nn.Linear) else 1
        rows = torch.arange(len(x), device=x.device)

        def select(_: nn.Module, __: Any, wide: Tensor) -> Tensor:
            split = torch.unflatten(wide, along, (self.count, self.widest))
            return split.movedim(-2 if along == -1 else 1, 1)[rows, tasks]

        handle = self.layer.register_forward_hook(select)
        try:
            flat = {name: stack.flatten(0, 1) for name, stack in self.stacked.items()}
            out: Tensor = torch.func.functional_call(self.module, flat, (x,))
        finally:
            handle.remove()
        return out.masked_fill(~self.there[tasks], -torch.inf)

    def apart(self) -> list[dict[str, Tensor]]:
        """Return each task's head by itself."""
        return [
            {name: stack[i, :width].detach().clone() for name, stack in self.stacked.items()}
            for i, width in enumerate(self.widths)
        ]


class EpisodicTrainee(Trainee, ABC):
    """A later task in training; a method says in `corrected` what becomes of its gradient."""

    def __init__(
        self,
        module: nn.Module,
        criterion: Loss,
        settings: EpisodicSettings,
        memories: Sequence[Tensors],
        heads: Heads | None,
        seed: int,
    ) -> None:
        self.trained = [p for p in module.parameters() if p.requires_grad]
        optimizer = descent(self.trained, settings)
        past = [p for p in heads.stacked.values() if p.requires_grad] if heads is not None else []
        if past:
            # They see no loss while no constraint is broken: decay would wear them away.
            optimizer.add_param_group({"params": past, "weight_decay": 0.0})
            self.trained += past
        super().__init__(module, criterion, optimizer)
        self.settings, device = settings, self.trained[0].device
        self.memories = [(m["x"].to(device), m["y"].to(device)) for m in memories]
        self.heads, self.seed, self.drawn = heads, seed, torch.Generator()
        self.sizes = [p.numel() for p in self.trained]

    @abstractmethod
    def corrected(self, gradient: Tensor) -> Tensor | None:
        """Return the gradient to step along instead, or None if it is good as it is."""

    def begins_epoch(self, epoch: int, epochs: int) -> None:
        # From the epoch's number, so that a training taken up again draws what it would have drawn.
        self.drawn.manual_seed(self.seed + epoch)

    def task_loss(self, task: int) -> Tensor:
        """Return the loss on the memory of one past task."""
        x, y = self.memories[task]
        out = self.forward(x) if self.heads is None else self.heads.outputs(x, task)
        return F.cross_entropy(out, y)

    def gradient_of(self, loss: Tensor, out: Tensor | None = None) -> Tensor:
        """Return the loss's gradient as one vector, in `out` if given."""
        parts = torch.autograd.grad(loss, self.trained, materialize_grads=True)
        return torch.cat([part.reshape(-1) for part in parts], out=out)

    def step(self, lr: float) -> None:
        for parameter in self.trained:
            if parameter.grad is None:  # the heads of past tasks, in the present task's loss
                parameter.grad = torch.zeros_like(parameter)
        own = [p.grad for p in self.trained if p.grad is not None]
        better = self.corrected(torch.cat([g.reshape(-1) for g in own]))
        if better is not None:
            for part, gradient in zip(torch.split(better, self.sizes), own, strict=True):
                gradient.copy_(part.view_as(gradient))
        super().step(lr)

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        yield from super().weights()
        if self.heads is not None:
            for name, stack in self.heads.stacked.items():
                yield f"past:{name}", stack


class Episodic(SharedWeights):
    """One network for all tasks, and a memory of examples of each."""

    Settings: ClassVar[type[EpisodicSettings]] = EpisodicSettings
    settings: EpisodicSettings
    Trained: ClassVar[type[EpisodicTrainee]]

    def _begin(self, state: SharedState, task: str, facts: Facts, criterion: Loss) -> Trainee:
        if not facts.labels:
            raise DataError(
                f"{self.name} needs class labels: it goes on measuring past tasks, for which a "
                "loss of your own is not at hand. Use l2t, or a method such as apd1"
            )
        return super()._begin(state, task, facts, criterion)

    def _trainee(
        self, state: SharedState, task: str, module: nn.Module, criterion: Loss
    ) -> Trainee:
        if not state.heads:
            return super()._trainee(state, task, module, criterion)
        past = tuple(state.heads)
        heads = None
        if self.layout.head is not None:
            heads = Heads(module, self.layout.head, [state.heads[name] for name in past])
        memories = [state.beside[MEMORY + name] for name in past]
        draws = self._seed("draws", task)
        return self.Trained(module, criterion, self.settings, memories, heads, draws)

    def _after(
        self, state: SharedState, task: str, trainee: Trainee, train: Batches
    ) -> Mapping[str, Tensors]:
        """Remember examples of the task, drawn from all of its training data alike."""
        drawn = torch.Generator().manual_seed(self._seed("memory", task))
        wanted, kept = self.settings.memory, []
        for x, y in train.shuffled(drawn):
            kept.append((x[:wanted].clone(), y[:wanted].clone()))
            wanted -= len(kept[-1][0])
            if not wanted:
                break
        memory = {"x": torch.cat([x for x, _ in kept]), "y": torch.cat([y for _, y in kept])}
        return {**state.beside, MEMORY + task: memory}

    def _keep(
        self, state: SharedState, task: str, trainee: Trainee, train: Batches
    ) -> tuple[SharedState, float]:
        kept, growth = super()._keep(state, task, trainee, train)
        if isinstance(trainee, EpisodicTrainee) and trainee.heads is not None:
            moved = dict(zip(state.heads, trainee.heads.apart(), strict=True))
            kept = replace(kept, heads={**kept.heads, **moved})
        return kept, growth

    def _restore(
        self, source: Container, meta: Mapping[str, Any], tasks: Sequence[str]
    ) -> SharedState:
        state = super()._restore(source, meta, tasks)
        for task in tasks:
            memory = state.beside.get(MEMORY + task, {})
            if memory.keys() != {"x", "y"} or memory["y"].shape != memory["x"].shape[:1]:
                raise FileError(f"{source.path}: the memory of {task!r} is unusable; use a copy")
        return state
