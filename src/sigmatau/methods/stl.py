"""Single-task learning: a network for every task, each trained from the same initial weights.

    theta_t = argmin L_t(theta), begun at the backbone's weights

Nothing is shared, so nothing is forgotten, nothing is transferred, and a task comes out the same to
the bit wherever in the order it stands. T tasks cost T networks: the upper reference that methods
of bounded size are measured against. Parameters that the user froze stay the backbone's and are
not stored.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from sigmatau.core.archive import FromFile
from sigmatau.core.container import Container, RawRecord, Record
from sigmatau.core.state import Lazy, fit_head, fresh_head
from sigmatau.data import Batches
from sigmatau.errors import FileError
from sigmatau.inspection import Facts
from sigmatau.methods.base import Method
from sigmatau.methods.descent import ONE_EPOCH, PAPER, DescentSettings, descent
from sigmatau.methods.registry import register
from sigmatau.training import Loss, Trainee

Network = Mapping[str, Tensor]
State = Mapping[str, Lazy[Network]]


@register("stl")
class STL(Method[State]):
    """One network per task."""

    name = "stl"
    Settings = DescentSettings
    settings: DescentSettings
    can_forget = True
    published: ClassVar = {**PAPER, "permuted-mnist": {**ONE_EPOCH, "lr": 0.1}}

    @property
    def stored(self) -> tuple[str, ...]:
        """The parameters and buffers of a task's network."""
        return (
            *(n for n in self.layout.shapes if n not in self.layout.fixed),
            *self.layout.buffers,
        )

    def _fresh(self) -> State:
        return {}

    def _begin(self, state: State, task: str, facts: Facts, criterion: Loss) -> Trainee:
        module = copy.deepcopy(self._backbone).train()
        if self.layout.head is not None and facts.outputs is not None:
            drawn = torch.Generator().manual_seed(self._seed("head", task))
            fresh_head(module, self.layout.head, facts.outputs, drawn)
        return Trainee(module, criterion, descent(module.parameters(), self.settings))

    def _keep(
        self, state: State, task: str, trainee: Trainee, train: Batches
    ) -> tuple[State, float]:
        live = trainee.module.state_dict()
        network = {name: live[name].clone() for name in self.stored}
        growth = sum(t.numel() for t in network.values()) / self.layout.size
        return {**state, task: Lazy(network)}, growth

    @torch.no_grad()
    def _compose(self, state: State, task: str, module: nn.Module) -> nn.Module:
        network = state[task]()
        heads = self.layout.head_parameters
        live = module.state_dict()
        for name, tensor in network.items():
            if name not in heads:
                live[name].copy_(tensor)
        if self.layout.head is not None:
            own = {name.rpartition(".")[2]: network[name] for name in heads}
            fit_head(module, self.layout.head, own)
        return module

    def _drop(self, state: State, task: str) -> State:
        return {name: network for name, network in state.items() if name != task}

    def _records(self, state: State) -> tuple[dict[str, Record | RawRecord], dict[str, Any]]:
        records: dict[str, Record | RawRecord] = {}
        for task, held in state.items():
            unread = held if isinstance(held, FromFile) and not held.loaded else None
            records[f"task/{task}"] = unread.raw() if unread else dict(held())
        return records, {}

    def _restore(self, source: Container, meta: Mapping[str, Any], tasks: Sequence[str]) -> State:
        heads = self.layout.head_parameters
        base = self._backbone.state_dict()

        def parse(record: Record) -> Network:
            found = {n: t for n, t in record.items() if isinstance(t, Tensor)}
            fits = found.keys() == set(self.stored) and all(
                t.shape[1:] == base[n].shape[1:] and (n in heads or t.shape == base[n].shape)
                for n, t in found.items()
            )
            if not fits:
                raise FileError(f"{source.path}: a task's weights do not fit the network")
            return found

        return {task: FromFile(source, f"task/{task}", parse) for task in tasks}
