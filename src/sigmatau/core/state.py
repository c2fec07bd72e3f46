"""What an APD network consists of once it has learnt: shared weights, tasks, groups.

A task's delta is added to the shared weights, or, in a linked state, written over the weights of
the task before it.

A state is never changed, only replaced by the next one, so a network stays whole whatever
interrupts learning, and can be used while the next task is learnt. Tasks that come from a file
are read when first used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import dropwhile, takewhile
from typing import Generic, TypeVar

import torch
from torch import Tensor, nn

from sigmatau.core.layout import Layout, Weight
from sigmatau.core.sparse import Sparse

T = TypeVar("T")


@dataclass(frozen=True)
class TaskPart:
    """All that one task keeps for itself.

    `deltas` and `masks` are by weight (an absent mask is 1 everywhere), `own` holds biases and
    normalisation, `head` the head's parameters, `buffers` those buffers that training changed, and
    `groups` the number of the task's group by weight.
    """

    deltas: Mapping[str, Sparse]
    masks: Mapping[str, Tensor]
    own: Mapping[str, Tensor]
    head: Mapping[str, Tensor]
    buffers: Mapping[str, Tensor]
    groups: Mapping[str, int] = field(default_factory=dict)

    @property
    def nonzeros(self) -> int:
        return sum(d.nnz for d in self.deltas.values())


class Lazy(Generic[T]):
    """A value that is fetched when first asked for."""

    def __init__(self, value: T | None = None, fetch: Callable[[], T] | None = None) -> None:
        self._value, self._fetch = value, fetch

    @property
    def loaded(self) -> bool:
        return self._value is not None

    def __call__(self) -> T:
        # Read once: another thread may come here at the same time, and finish first.
        fetch = self._fetch
        if self._value is None and fetch is not None:
            self._value = fetch()
            self._fetch = None  # lets go of what it was fetched from, often whoever holds this
        assert self._value is not None
        return self._value


Group = Mapping[str, Sparse]


@dataclass(frozen=True)
class APDState:
    """A network between two tasks. `groups[g]` is what group g adds, by weight.

    If it is `linked`, a delta holds the entries in which a task differs from the one before it.
    """

    shared: Lazy[Mapping[str, Tensor]]
    tasks: Mapping[str, Lazy[TaskPart]] = field(default_factory=dict)
    groups: Mapping[int, Lazy[Group]] = field(default_factory=dict)
    group_count: int = 0
    importance: Lazy[Mapping[str, Tensor]] | None = None
    linked: bool = False

    def group_part(self, part: TaskPart, weight: str) -> Sparse | None:
        """Return what the task's group adds to its `weight`, if anything."""
        g = part.groups.get(weight)
        return None if g is None or g not in self.groups else self.groups[g]().get(weight)

    def whole_delta(self, part: TaskPart, weight: str) -> Sparse:
        """Return the task's delta together with its group's part (the paper's tau tilde)."""
        group = self.group_part(part, weight)
        return part.deltas[weight] if group is None else group + part.deltas[weight]

    def theta(self, task: str, weight: Weight, out: Tensor | None = None) -> Tensor:
        """Return the task's weight `shared * mask + group + delta`, in this order of rounding."""
        shared = self.shared()[weight.name]
        out = torch.empty_like(shared) if out is None else out
        if self.linked:
            return self._linked_theta(task, weight, out.copy_(shared))
        part = self.tasks[task]()
        mask = part.masks.get(weight.name)
        if mask is None:
            out.copy_(shared)
        else:
            torch.mul(shared, mask.view(weight.broadcast()), out=out)
        group = self.group_part(part, weight.name)
        if group is not None:
            group.add_to(out)
        return part.deltas[weight.name].add_to(out)

    def _linked_theta(self, task: str, weight: Weight, out: Tensor) -> Tensor:
        for name in takewhile(lambda n: n != task, self.tasks):
            self.tasks[name]().deltas[weight.name].put_into(out)
        return self.tasks[task]().deltas[weight.name].put_into(out)

    @torch.no_grad()
    def write(
        self, task: str, layout: Layout, module: nn.Module, base: Mapping[str, Tensor]
    ) -> None:
        """Put the weights of `task` into `module`; buffers it did not change come from `base`."""
        part = self.tasks[task]()
        for weight in layout.weights:
            self.theta(task, weight, out=module.get_parameter(weight.name).data)
        for name, value in part.own.items():
            module.get_parameter(name).data.copy_(value)
        if layout.buffers:
            buffers = dict(module.named_buffers())
            for name in layout.buffers:
                buffers[name].copy_(part.buffers.get(name, base[name]))
        if layout.head is not None:
            fit_head(module, layout.head, {n.rpartition(".")[2]: v for n, v in part.head.items()})

    def without(self, task: str) -> APDState:
        """Return the state with `task` gone, and with it the groups that have no member left.

        In a linked state the next task takes over those entries that it did not write itself.
        """
        tasks = {name: part for name, part in self.tasks.items() if name != task}
        after = list(dropwhile(lambda name: name != task, self.tasks))[1:]
        if self.linked and after:
            gone, heir = self.tasks[task]().deltas, self.tasks[after[0]]()
            deltas = {name: delta.over(gone[name]) for name, delta in heir.deltas.items()}
            tasks[after[0]] = Lazy(replace(heir, deltas=deltas))
        used = {g for part in tasks.values() for g in part().groups.values()} if self.groups else ()
        groups = {g: group for g, group in self.groups.items() if g in used}
        return replace(self, tasks=tasks, groups=groups)


def fit_head(module: nn.Module, head: str, values: Mapping[str, Tensor]) -> None:
    """Give the head the parameters of a task, which may have another number of outputs."""
    layer = module.get_submodule(head)
    for name, value in values.items():
        live = getattr(layer, name)
        if live.shape == value.shape:
            live.data.copy_(value)
        else:
            setattr(layer, name, nn.Parameter(value.clone(), requires_grad=live.requires_grad))
    outputs = values["weight"].shape[0]
    setattr(layer, "out_features" if isinstance(layer, nn.Linear) else "out_channels", outputs)


def fresh_head(module: nn.Module, head: str, outputs: int, generator: torch.Generator) -> None:
    """Give the head new weights with `outputs` outputs, drawn as PyTorch draws them."""
    layer = module.get_submodule(head)
    weight: Tensor = layer.weight  # type: ignore[assignment]
    shape = (outputs, *weight.shape[1:])
    bound = 1 / max(weight[0].numel(), 1) ** 0.5
    values = {
        name: torch.empty(shape if name == "weight" else (outputs,), dtype=weight.dtype)
        .uniform_(-bound, bound, generator=generator)
        .to(weight.device)
        for name, _ in layer.named_parameters()
    }
    fit_head(module, head, values)
