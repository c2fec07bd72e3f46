"""Elastic weight consolidation: hold each weight as firmly as past tasks depend on it.

    min over theta of  L_t(theta) + strength / 2 * sum_i F_i (theta - theta_i)^2

F_i is the diagonal of the Fisher information of task i at its optimum theta_i: the mean over
samples of the squared gradient of log p(y|x), each sample by itself, with y drawn from what the
network itself predicts. A sum of quadratics is one quadratic: kept are F = sum_i F_i and the
anchor sum_i F_i theta_i / F, which give the same gradient at any theta, so neither memory nor time
grows with the number of tasks. Reference: Kirkpatrick et al. 2017 (Overcoming catastrophic
forgetting in neural networks).

The online form (Schwarz et al. 2018, Progress & Compress) has one anchor, the latest weights, and
fades what is past: the penalty is strength / 2 * gamma * F* (theta - theta_(t-1))^2, and then
F* <- gamma * F* + F_t, each F_t normalised so that no task outweighs the others. The paper does not
say by which norm; here the mean of F_t is made 1.

The Fisher information is that of class probabilities, so tasks must have class labels. Heads are
their tasks' own and free; with head=None the last layer is shared and held too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from sigmatau.core.container import Container
from sigmatau.core.fisher import diagonal_fisher
from sigmatau.data import Batches
from sigmatau.errors import DataError, FileError
from sigmatau.inspection import Facts
from sigmatau.methods.anchored import Anchored
from sigmatau.methods.descent import ONE_EPOCH, PAPER, DescentSettings
from sigmatau.methods.registry import register
from sigmatau.methods.shared import SharedState, SharedWeights, Tensors
from sigmatau.training import Loss, Trainee


class EWCSettings(DescentSettings):
    """Settings of elastic weight consolidation."""

    strength: float = Field(1000.0, ge=0, description="price of moving what past tasks depend on")
    fisher_samples: int = Field(
        1000, ge=1, description="samples of a task its Fisher information is taken from"
    )


@register("ewc")
class EWC(SharedWeights):
    """One network, each weight held by what the tasks so far need of it."""

    name = "ewc"
    Settings: ClassVar[type[EWCSettings]] = EWCSettings
    settings: EWCSettings
    published: ClassVar = {
        **PAPER,
        "permuted-mnist": {**ONE_EPOCH, "lr": 0.03, "head": None, "strength": 14.0},
    }

    def _begin(self, state: SharedState, task: str, facts: Facts, criterion: Loss) -> Trainee:
        if not facts.labels:
            raise DataError(
                f"{self.name} needs class labels: how much a weight matters is read from the "
                "class probabilities. For a loss of your own use l2t, or a method such as apd1"
            )
        return super()._begin(state, task, facts, criterion)

    def _trainee(
        self, state: SharedState, task: str, module: nn.Module, criterion: Loss
    ) -> Trainee:
        optimizer = self._descent(module)
        if not state.beside:
            return Trainee(module, criterion, optimizer)
        firmness = self.settings.strength * self._fading
        pull = {name: firmness * fisher for name, fisher in state.beside["fisher"].items()}
        return Anchored(module, criterion, optimizer, self._anchors(state), pull)

    def _after(
        self, state: SharedState, task: str, trainee: Trainee, train: Batches
    ) -> Mapping[str, Tensors]:
        fisher = self._fisher(task, trainee.module, train)
        live = dict(trainee.module.named_parameters())
        latest = {name: live[name].detach().clone() for name in self.trunk}
        if not state.beside:
            return self._beside(fisher, latest)
        total, anchors = {}, {}
        for name, past in state.beside["fisher"].items():
            total[name] = fisher[name] + self._fading * past.to(fisher[name].device)
            # Where F is 0 so far, any anchor will do.
            share = fisher[name] / total[name].clamp_min(torch.finfo(past.dtype).tiny)
            anchor = self._anchors(state)[name].to(share.device)
            anchors[name] = anchor + share * (latest[name] - anchor)
        return self._beside(total, anchors)

    def _fisher(self, task: str, module: nn.Module, train: Batches) -> dict[str, Tensor]:
        drawn = torch.Generator().manual_seed(self._seed("fisher", task))
        inputs = (x for x, _ in train.shuffled(drawn))
        with torch.enable_grad():
            return diagonal_fisher(module, self.trunk, inputs, self.settings.fisher_samples, drawn)

    def _restore(
        self, source: Container, meta: Mapping[str, Any], tasks: Sequence[str]
    ) -> SharedState:
        state = super()._restore(source, meta, tasks)
        shapes = {name: state.weights[name].shape for name in self.trunk}
        for kept in self._beside({}, {}) if tasks else ():
            if {n: t.shape for n, t in state.beside.get(kept, {}).items()} != shapes:
                raise FileError(f"{source.path}: its {kept} does not fit the network; use a copy")
        return state

    # What the online form does otherwise

    @property
    def _fading(self) -> float:
        return 1.0

    def _anchors(self, state: SharedState) -> Tensors:
        return state.beside["anchor"]

    def _beside(self, fisher: Tensors, anchors: Tensors) -> Mapping[str, Tensors]:
        return {"fisher": fisher, "anchor": anchors}


class OnlineEWCSettings(EWCSettings):
    """Settings of online elastic weight consolidation."""

    strength: float = Field(0.5, ge=0, description="price of moving what past tasks depend on")
    gamma: float = Field(0.95, ge=0, le=1, description="what remains of past tasks' hold")


@register("ewc-online")
class OnlineEWC(EWC):
    """EWC with one anchor, the latest weights, and a hold that fades."""

    name = "ewc-online"
    Settings: ClassVar[type[OnlineEWCSettings]] = OnlineEWCSettings
    settings: OnlineEWCSettings
    # A mean Fisher of 1 is some 3,000 times that of a permuted-MNIST task, 1,600 of a CIFAR one.
    published: ClassVar = {
        **PAPER,
        "permuted-mnist": {**ONE_EPOCH, "lr": 0.03, "head": None, "strength": 0.01},
    }

    def _fisher(self, task: str, module: nn.Module, train: Batches) -> dict[str, Tensor]:
        fisher = super()._fisher(task, module, train)
        total = sum(float(f.double().sum()) for f in fisher.values())
        mean = total / sum(f.numel() for f in fisher.values())
        return {name: f / mean for name, f in fisher.items()} if mean else fisher

    @property
    def _fading(self) -> float:
        return self.settings.gamma

    def _anchors(self, state: SharedState) -> Tensors:
        return {name: state.weights[name] for name in self.trunk}

    def _beside(self, fisher: Tensors, anchors: Tensors) -> Mapping[str, Tensors]:
        return {"fisher": fisher}
