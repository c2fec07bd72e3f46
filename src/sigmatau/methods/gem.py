"""Gradient episodic memory: no step may raise the loss on the memory of any past task.

    the step is along the x nearest to the gradient g with  <x, g_k> >= 0  for every past task k

where g_k is the gradient of the loss on the memory of task k. The dual has one variable a task:
min over v of 1/2 v'GG'v + g'G'v with v >= margin, and x = g + G'v, where the rows of G are the g_k.
A margin over 0 makes steps favour past tasks, as the published code has it. Every step takes one
gradient a past task: that is the definition, and what S-GEM and A-GEM save. Reference: Lopez-Paz
and Ranzato 2017 (Gradient Episodic Memory for Continual Learning).

Memories are drawn from all of a task's data; the published code keeps those seen last.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, ClassVar, cast

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from sigmatau.errors import MissingExtra, TrainingError
from sigmatau.inspection import Facts
from sigmatau.methods.descent import ONE_EPOCH
from sigmatau.methods.episodic import Episodic, EpisodicSettings, EpisodicTrainee
from sigmatau.methods.registry import register
from sigmatau.methods.shared import SharedState
from sigmatau.training import Loss, Trainee

# Added to the diagonal of GG' for rows of unit length: gradients that depend on each other leave it
# singular. Where rounding in single precision makes it indefinite, more is added.
RIDGE = 1e-6


class GEMSettings(EpisodicSettings):
    """Settings of gradient episodic memory."""

    margin: float = Field(0.5, ge=0, description="least weight of each past task in a projection")


def _solver() -> ModuleType:
    try:
        import quadprog
    except ImportError:
        raise MissingExtra("quadprog", "gem") from None
    return cast(ModuleType, quadprog)


def project(gradient: Tensor, past: Tensor, margin: float) -> Tensor:
    """Return the vector nearest to `gradient` that has no negative product with a row of `past`."""
    unit = float(gradient.norm()) or 1.0
    lengths = past.norm(dim=1).double().cpu().numpy()
    if not np.isfinite(unit) or not np.isfinite(lengths).all():
        raise TrainingError("a gradient is no longer finite: lower lr")
    lengths[lengths == 0] = 1.0
    # In units of their own, so that gradients of any size count alike in the solver's rounding.
    gram = (past @ past.T).double().cpu().numpy() / np.outer(lengths, lengths)
    slope = (past @ gradient).double().cpu().numpy() / (lengths * unit)
    gram = (gram + gram.T) / 2
    ridge = RIDGE + max(0.0, -2 * float(np.linalg.eigvalsh(gram)[0]))
    one = np.eye(len(gram))
    dual = _solver().solve_qp(gram + ridge * one, -slope, one, margin * lengths / unit)[0]
    return gradient + torch.from_numpy(dual * unit / lengths).to(past) @ past


class GEMTrainee(EpisodicTrainee):
    """A later task in training, under one constraint for each past task."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.past = self.trained[0].new_empty(len(self.memories), sum(self.sizes))

    def corrected(self, gradient: Tensor) -> Tensor | None:
        for task, row in enumerate(self.past):
            self.gradient_of(self.task_loss(task), out=row)
        if bool((self.past @ gradient >= 0).all()):
            return None
        assert isinstance(self.settings, GEMSettings)
        return project(gradient, self.past, self.settings.margin)


@register("gem")
class GEM(Episodic):
    """One network, with a memory of each task that no step may go against."""

    name = "gem"
    Settings = GEMSettings
    settings: GEMSettings
    Trained = GEMTrainee
    # A step may be as long as 1 + margin x tasks gradients. At 0.1, which suits the other two
    # methods with a memory, the loss of the thirteenth task went up to that of guessing.
    published: ClassVar = {"permuted-mnist": {**ONE_EPOCH, "lr": 0.03, "head": None}}

    def _begin(self, state: SharedState, task: str, facts: Facts, criterion: Loss) -> Trainee:
        _solver()  # only later tasks need it: better to miss it before the first is trained
        return super()._begin(state, task, facts, criterion)
