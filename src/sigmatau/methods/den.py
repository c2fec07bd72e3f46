"""Dynamically expandable networks: retrain what a task needs, add units it lacks, double the moved.

The first task trains all weights with an l1 price, so that units are sparsely connected. A later
one goes through the stages of the paper, in four phases:

1. selective retraining. `connect` trains the new head alone with l1; a breadth-first search from
   its outputs down through nonzero weights finds the units S that the task depends on; `retrain`
   trains the weights between units of S, with l2 and drift * ||W - W_before||^2, and nothing else.
2. dynamic expansion. If the loss is still above `loss_threshold`, `expand` adds units to every
   layer and trains only what is new: min L + l1 |W_new| + group * sum over new units of ||w_unit||.
   New units that end up without incoming or outgoing weights are removed.
3. split and duplication. Units whose incoming weights moved by more than `split_threshold` are
   doubled: the old unit gets its old weights back, the double is a new unit with the new ones.
   `split` trains on as `retrain` did, but not the old halves.

Units carry the time they came: a task's network has just the units that were there when it was
learnt, so what later tasks add never reaches it. Units below the split threshold do move, so
earlier tasks are not the same to the bit, and a task cannot be forgotten.

For convolutions units are channels. Normalisation is kept whole per task. Every phase runs for
`epochs` unless `stage_epochs` says otherwise for all but the last; if no units are needed, the
`expand` phase retrains on. As in the authors' code, and unlike their paper, what is old is held to
where it was from the retraining on: retrained freely, a network comes below any loss at which units
would be added, and then has to be drawn back. In the third stage the paper trains all weights, here
only S and what is new, so that units that the task has no use for keep their bits. The reference
settings are for an MLP of 312-128.

Reference: Yoon et al. 2018, Lifelong Learning with Dynamically Expandable Networks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn

from sigmatau.core.container import Container, RawRecord, Record
from sigmatau.data import Batches
from sigmatau.errors import BackboneError, ConfigError, FileError
from sigmatau.inspection import Facts
from sigmatau.methods.base import Method
from sigmatau.methods.chain import Chain, Part, part, read_chain
from sigmatau.methods.den_settings import DENSettings
from sigmatau.methods.den_training import DENTrainee
from sigmatau.methods.den_units import first
from sigmatau.methods.descent import PAPER
from sigmatau.methods.registry import register
from sigmatau.methods.shared import dense
from sigmatau.training import Loss, Trainee


@dataclass(frozen=True)
class TaskUnits:
    """What is a task's own: how many units there were, its normalisation by layer, its head."""

    widths: tuple[int, ...]
    norms: tuple[tuple[Mapping[str, Tensor], ...], ...]
    head: Part


@dataclass(frozen=True)
class DENState:
    """The layers below the head with all units in the order they came, and the tasks."""

    trunk: tuple[Part, ...] = ()
    tasks: Mapping[str, TaskUnits] = field(default_factory=dict)

    def parts(self, task: TaskUnits) -> list[Part]:
        """Return a task's network: the units that were there when it was learnt."""
        cut = first(self.trunk, task.widths)
        own = [replace(p, norms=norms) for p, norms in zip(cut, task.norms, strict=True)]
        return [*own, task.head]


@register("den")
class DEN(Method[DENState]):
    """One network that grows where a task needs it, with units that know when they came."""

    name = "den"
    Settings = DENSettings
    settings: DENSettings
    published: ClassVar = PAPER

    @cached_property
    def chain(self) -> Chain:
        return read_chain(self._backbone, self.layout.head, self.name)

    def _fresh(self) -> DENState:
        layers, expand = len(self.chain.widths), self.settings.by_layer(len(self.chain.widths))
        if self.layout.head is None:
            raise BackboneError("den gives every task its own head: do not pass head=None")
        if len(expand) != layers or min(expand) < 0:
            raise ConfigError(
                f"expand={self.settings.expand}: give one number for all layers, or one for each "
                f"of the {layers} before the head, none below 0"
            )
        return DENState()

    def timestamps(self, task: str) -> tuple[int, ...]:
        """Return how many units each layer had when `task` was learnt: those that it uses."""
        self._known(task)
        return self._memory.state.tasks[task].widths

    # Learning

    def _plan(self, state: DENState) -> tuple[int, int]:
        chosen = self.settings
        if not state.tasks:
            return chosen.epochs, chosen.select_last
        return sum(chosen.phases), min(chosen.select_last, chosen.phases[-1])

    def _begin(self, state: DENState, task: str, facts: Facts, criterion: Loss) -> Trainee:
        parts = self.chain.parts()
        if state.tasks:
            latest = list(state.tasks.values())[-1]
            parts = state.parts(latest)
        drawn = torch.Generator().manual_seed(self._seed("head", task))
        head = self.chain.stages[-1]
        fresh = head.drawn(cast(int, facts.outputs), parts[-2].units, drawn)
        parts[-1] = part(head, fresh, [])
        seed = self._seed("expand", task)
        return DENTrainee(self.chain, parts, state.trunk, criterion, self.settings, seed)

    def _keep(
        self, state: DENState, task: str, trainee: Trainee, train: Batches
    ) -> tuple[DENState, float]:
        assert isinstance(trainee, DENTrainee)
        parts = [_copied(p) for p in self.chain.read(trainee.module)]
        trunk = tuple(replace(p, norms=()) for p in parts[:-1])
        widths, norms = tuple(p.units for p in trunk), tuple(p.norms for p in parts[:-1])
        own = TaskUnits(widths, norms, parts[-1])
        added = _size(trunk) - _size(state.trunk)
        growth = added / self.layout.size if state.tasks else 0.0
        return DENState(trunk, {**state.tasks, task: own}), growth

    # Using

    def _compose(self, state: DENState, task: str, module: nn.Module) -> nn.Module:
        return self.chain.assemble(state.parts(state.tasks[task]))

    def _records(self, state: DENState) -> tuple[dict[str, Record | RawRecord], dict[str, Any]]:
        if not state.tasks:
            return {}, {"widths": {}}
        trunk = {f"{i}.{n}": t for i, p in enumerate(state.trunk) for n, t in p.tensors()}
        records: dict[str, Record | RawRecord] = {"trunk": dict(trunk)}
        for task, own in state.tasks.items():
            record: dict[str, Tensor] = dict(own.head.tensors())
            for i, norms in enumerate(own.norms):
                for j, norm in enumerate(norms):
                    record |= {f"{i}.{j}.{name}": tensor for name, tensor in norm.items()}
            records[f"task/{task}"] = dict(record)
        return records, {"widths": {task: list(own.widths) for task, own in state.tasks.items()}}

    def _restore(
        self, source: Container, meta: Mapping[str, Any], tasks: Sequence[str]
    ) -> DENState:
        if not tasks:
            return DENState()
        try:
            held = self._numbers(source, "trunk")
            trunk = tuple(
                Part(held[f"{i}.weight"], held.get(f"{i}.bias"))
                for i in range(len(self.chain.widths))
            )
            state = DENState(trunk, {t: self._own(source, t, meta["widths"][t]) for t in tasks})
            for own in state.tasks.values():
                self._check(state.parts(own))
        except (KeyError, TypeError, ValueError, IndexError, RuntimeError) as error:
            raise FileError(
                f"{source.path}: its units do not fit the network ({error}): restore the file "
                "from a copy"
            ) from error
        return state

    def _own(self, source: Container, task: str, widths: Sequence[int]) -> TaskUnits:
        held = self._numbers(source, f"task/{task}")
        norms = [
            tuple(
                {name: held[f"{i}.{j}.{name}"] for name in norm} for j, norm in enumerate(p.norms)
            )
            for i, p in enumerate(self.chain.parts()[:-1])
        ]
        head = Part(held["weight"], held.get("bias"))
        return TaskUnits(tuple(map(int, widths)), tuple(norms), head)

    def _numbers(self, source: Container, name: str) -> dict[str, Tensor]:
        return {key: tensor.to(self.device) for key, tensor in dense(source, name).items()}

    def _check(self, parts: Sequence[Part]) -> None:
        """Refuse numbers that are not of the shapes that a network of these widths has."""
        for found, due in zip(parts, self.chain.blank([p.units for p in parts]), strict=True):
            shapes = {n: t.shape for n, t in found.tensors()}
            if shapes != {n: t.shape for n, t in due.tensors()}:
                raise ValueError(f"{shapes} is unexpected")


def _size(parts: Sequence[Part]) -> int:
    return sum(tensor.numel() for p in parts for _, tensor in p.tensors())


def _copied(p: Part) -> Part:
    return Part(
        p.weight.clone(),
        None if p.bias is None else p.bias.clone(),
        tuple({n: t.clone() for n, t in norm.items()} for norm in p.norms),
    )
