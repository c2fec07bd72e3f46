"""Methods that train one set of weights for all tasks, with a head per task.

The base of fine-tuning and of all that holds it back: a method overrides `_trainee` to change the
loss or the step, and `_after` to remember something of a task.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from sigmatau.capacity import BESIDE
from sigmatau.config import TrainingSettings
from sigmatau.core.container import Container, RawRecord, Record
from sigmatau.core.sparse import Sparse
from sigmatau.core.state import fit_head, fresh_head
from sigmatau.data import Batches
from sigmatau.errors import FileError
from sigmatau.inspection import Facts
from sigmatau.methods.base import Method
from sigmatau.methods.descent import DescentSettings, descent
from sigmatau.training import Loss, Trainee

Tensors = Mapping[str, Tensor]


@dataclass(frozen=True)
class SharedState:
    """The weights as the latest task left them, the heads, and what a method keeps beside them."""

    weights: Tensors
    heads: Mapping[str, Tensors] = field(default_factory=dict)
    beside: Mapping[str, Tensors] = field(default_factory=dict)


class SharedWeights(Method[SharedState]):
    """One network for all tasks, with a head per task."""

    Settings: ClassVar[type[TrainingSettings]] = DescentSettings

    def _trainee(
        self, state: SharedState, task: str, module: nn.Module, criterion: Loss
    ) -> Trainee:
        """Return what the loop trains: plain descent, unless a method knows better."""
        return Trainee(module, criterion, self._descent(module))

    def _after(
        self, state: SharedState, task: str, trainee: Trainee, train: Batches
    ) -> Mapping[str, Tensors]:
        """Return what to keep beside the weights now that `task` is learnt."""
        return state.beside

    def _descent(self, module: nn.Module) -> torch.optim.Optimizer:
        assert isinstance(self.settings, DescentSettings)
        return descent(module.parameters(), self.settings)

    def _adam(self, module: nn.Module) -> torch.optim.Optimizer:
        trained = [p for p in module.parameters() if p.requires_grad]
        chosen = self.settings
        return torch.optim.Adam(trained, chosen.lr, weight_decay=chosen.weight_decay, fused=True)

    @property
    def trunk(self) -> tuple[str, ...]:
        """The trainable parameters that all tasks share."""
        return (*(w.name for w in self.layout.weights), *self.layout.own)

    def _read(self, module: nn.Module) -> dict[str, Tensor]:
        parameters, buffers = dict(module.named_parameters()), dict(module.named_buffers())
        live: list[tuple[str, Tensor]] = [(n, parameters[n]) for n in self.trunk]
        live += [(n, buffers[n]) for n in self.layout.buffers]
        return {name: tensor.detach().clone() for name, tensor in live}

    @torch.no_grad()
    def _write(self, module: nn.Module, weights: Tensors) -> None:
        live = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        for name, tensor in weights.items():
            live[name].copy_(tensor)

    def _fresh(self) -> SharedState:
        return SharedState(self._read(self._backbone))

    def _begin(self, state: SharedState, task: str, facts: Facts, criterion: Loss) -> Trainee:
        module = copy.deepcopy(self._backbone).train()
        self._write(module, state.weights)
        if self.layout.head is not None and facts.outputs is not None:
            drawn = torch.Generator().manual_seed(self._seed("head", task))
            fresh_head(module, self.layout.head, facts.outputs, drawn)
        return self._trainee(state, task, module, criterion)

    def _keep(
        self, state: SharedState, task: str, trainee: Trainee, train: Batches
    ) -> tuple[SharedState, float]:
        beside = self._after(state, task, trainee, train)
        live = dict(trainee.module.named_parameters())
        head = {name: live[name].detach().clone() for name in self.layout.head_parameters}
        heads = {**state.heads, task: head}
        return SharedState(self._read(trainee.module), heads, beside), 0.0

    def _compose(self, state: SharedState, task: str, module: nn.Module) -> nn.Module:
        self._write(module, state.weights)
        if self.layout.head is not None:
            head = {n.rpartition(".")[2]: t for n, t in state.heads[task].items()}
            fit_head(module, self.layout.head, head)
        return module

    def _records(self, state: SharedState) -> tuple[dict[str, Record | RawRecord], dict[str, Any]]:
        records: dict[str, Record | RawRecord] = {"shared": dict(state.weights)}
        records |= {f"head/{task}": dict(head) for task, head in state.heads.items()}
        records |= {BESIDE + name: dict(kept) for name, kept in state.beside.items()}
        return records, {"beside": list(state.beside)}

    def _restore(
        self, source: Container, meta: Mapping[str, Any], tasks: Sequence[str]
    ) -> SharedState:
        fresh = self._fresh()
        weights = dense(source, "shared")
        if {n: t.shape for n, t in weights.items()} != {
            n: t.shape for n, t in fresh.weights.items()
        }:
            raise FileError(f"{source.path}: the weights do not fit the network")
        heads = {task: dense(source, f"head/{task}") for task in tasks}
        beside = {str(name): dense(source, BESIDE + str(name)) for name in meta["beside"]}
        return replace(fresh, weights=weights, heads=heads, beside=beside)


def dense(source: Container, name: str) -> dict[str, Tensor]:
    """Read a record that holds dense tensors only."""
    out: dict[str, Tensor] = {}
    for key, item in source.read(name).items():
        if isinstance(item, Sparse):
            raise FileError(
                f"{source.path}: {name!r} holds sparse numbers where dense are expected"
            )
        out[key] = item
    return out
