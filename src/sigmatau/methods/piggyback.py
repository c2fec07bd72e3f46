"""Piggyback: each task is a binary mask on the weights that the first task left.

The first task trains the whole network, which is then frozen for good. A later task learns a real
score r for every weight and uses `theta = W * m` with `m = 1 if r > threshold else 0`; the step
function is passed straight through backwards, `dL/dr = dL/dtheta * W`. A mask costs one bit a
weight, whatever the task, and nothing that another task uses can change.

Mallya, Davis and Lazebnik, "Piggyback: Adapting a Single Network to Multiple Tasks by Learning to
Mask Weights", ECCV 2018. There the frozen network comes from ImageNet; as in the APD paper it is
the first task here. Biases and the scale and shift of normalisation are frozen as there; running
statistics, frozen there unless asked for, follow each task, since the first one may be nothing like
the others. Left out: ternary masks, a variant in their code.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from sigmatau.config import TrainingSettings
from sigmatau.data import Batches
from sigmatau.errors import FileError
from sigmatau.inspection import Facts
from sigmatau.methods.masks import (
    Masked,
    MaskedTask,
    MaskState,
    MaskTrainee,
    pack,
    straight_through,
    unpack,
)
from sigmatau.methods.registry import register
from sigmatau.methods.shared import Tensors
from sigmatau.training import Loss, Trainee


class PiggybackSettings(TrainingSettings):
    """Settings of Piggyback."""

    mask_lr: float = Field(1e-4, gt=0, description="Adam's learning rate of the mask scores")
    mask_start: float = Field(1e-2, description="where mask scores start")
    threshold: float = Field(5e-3, description="score above which a weight is used")

    @model_validator(mode="after")
    def _agree(self) -> PiggybackSettings:
        if self.mask_start <= self.threshold:
            raise ValueError(
                "mask_start must be above threshold, or all weights start switched off"
            )
        return self


class PiggybackTrainee(MaskTrainee):
    """A later task in training: mask scores and a head on frozen weights."""

    def __init__(
        self,
        module: nn.Module,
        loss: Loss,
        names: tuple[str, ...],
        head: tuple[str, ...],
        settings: PiggybackSettings,
    ) -> None:
        parameters = dict(module.named_parameters())
        for name, parameter in parameters.items():
            parameter.requires_grad_(name in head)
        self.frozen = {name: parameters[name] for name in names}
        self.threshold = settings.threshold
        scores = {
            name: nn.Parameter(torch.full_like(weight, settings.mask_start))
            for name, weight in self.frozen.items()
        }
        groups: list[dict[str, Any]] = [
            {
                "params": list(scores.values()),
                "factor": settings.mask_lr / settings.lr,
                "weight_decay": 0.0,
            },
            {"params": [parameters[n] for n in head], "weight_decay": settings.weight_decay},
        ]
        adam = torch.optim.Adam([g for g in groups if g["params"]], settings.lr, fused=True)
        super().__init__(module, loss, adam, scores)

    def mask(self, name: str) -> Tensor:
        return self.scores[name].detach() > self.threshold

    def thetas(self) -> dict[str, Tensor]:
        return {
            name: weight * straight_through(self.scores[name], self.mask(name))
            for name, weight in self.frozen.items()
        }


@register("piggyback")
class Piggyback(Masked):
    """The first task's network, with a binary mask on its weights for each later task."""

    name = "piggyback"
    Settings = PiggybackSettings
    settings: PiggybackSettings
    published: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "hetero3": {"epochs": 30, "batch_size": 32, "weight_decay": 0.0}
    }

    @property
    def common(self) -> tuple[str, ...]:
        return (*super().common, *self.layout.own, *self.layout.buffers)

    @property
    def private(self) -> tuple[str, ...]:
        return tuple(self.layout.buffers)

    def _begin(self, state: MaskState, task: str, facts: Facts, criterion: Loss) -> Trainee:
        module = self._module(state, task, facts)
        if not state.tasks:
            trained = [p for p in module.parameters() if p.requires_grad]
            decay = self.settings.weight_decay
            adam = torch.optim.Adam(trained, self.settings.lr, weight_decay=decay, fused=True)
            return Trainee(module, criterion, adam)
        names = tuple(weight.name for weight in self.layout.weights)
        heads = self.layout.head_parameters
        return PiggybackTrainee(module, criterion, names, heads, self.settings)

    def _keep(
        self, state: MaskState, task: str, trainee: Trainee, train: Batches
    ) -> tuple[MaskState, float]:
        shared, masks = state.shared, {}
        if isinstance(trainee, PiggybackTrainee):
            masks = {name: pack(trainee.mask(name)) for name in trainee.scores}
        else:
            live = {
                **dict(trainee.module.named_parameters()),
                **dict(trainee.module.named_buffers()),
            }
            shared = {name: live[name].detach().clone() for name in self.common}
        state = self._learnt(state, task, trainee.module, shared, masks)
        return state, self._growth(state)

    def _theta(self, task: MaskedTask, name: str, shared: Tensor) -> Tensor:
        if name not in task.masks:
            return shared
        return shared * unpack(task.masks[name], shared)

    def _decoded(self, masks: Tensors, before: Tensors) -> Tensors:
        live = dict(self._backbone.named_parameters())
        names = {weight.name for weight in self.layout.weights}
        if masks and masks.keys() != names:
            raise FileError("is missing, or is of another network: restore the file from a copy")
        for name, mask in masks.items():
            unpack(mask, live[name])
        return masks

    def _used(self, task: MaskedTask, name: str, shared: Tensor) -> Tensor:
        # The frozen network is what every further task starts from: all of it stays.
        return torch.ones_like(shared, dtype=torch.bool)
