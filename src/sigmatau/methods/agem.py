"""S-GEM and A-GEM: of all the past gradients that GEM asks for at a step, one will do.

    x = g - <g, r> / <r, r> * r  if <g, r> < 0, else g

is the vector nearest to the gradient g that does not go against the reference r. In stochastic GEM
r is the gradient of the loss on the memory of one past task, picked at random for each step; in
averaged GEM on a batch drawn from the memories of all. A step costs two gradients, however many
tasks there were. Reference: Chaudhry et al. 2019 (Efficient Lifelong Learning with A-GEM).

A-GEM's batches are drawn without replacement until the memories are used up, then anew: any one is
a uniform draw, and drawing costs the same with a thousand tasks. Memories are drawn from all of a
task's data alike; the published code keeps the last ones seen of each class.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from sigmatau.errors import DataError
from sigmatau.methods.descent import ONE_EPOCH
from sigmatau.methods.episodic import Episodic, EpisodicSettings, EpisodicTrainee
from sigmatau.methods.registry import register


def project(gradient: Tensor, reference: Tensor) -> Tensor | None:
    """Return the vector nearest to `gradient` not against `reference`, None if it is not so."""
    product = torch.dot(gradient, reference)
    if product >= 0:
        return None
    return gradient - product / torch.dot(reference, reference) * reference


class SGEMTrainee(EpisodicTrainee):
    """A later task in training, under the constraint of one past task at a time."""

    def corrected(self, gradient: Tensor) -> Tensor | None:
        task = int(torch.randint(len(self.memories), (), generator=self.drawn))
        return project(gradient, self.gradient_of(self.task_loss(task)))


@register("s-gem")
class SGEM(Episodic):
    """One network, with a memory of each task; a step minds one of them."""

    name = "s-gem"
    Trained = SGEMTrainee
    published: ClassVar = {"permuted-mnist": {**ONE_EPOCH, "lr": 0.1, "head": None}}


class AGEMSettings(EpisodicSettings):
    """Settings of averaged gradient episodic memory."""

    reference: int = Field(256, ge=1, description="remembered examples a step looks at")


class AGEMTrainee(EpisodicTrainee):
    """A later task in training, under the constraint of all past tasks on average."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        shapes = {tuple(x.shape[1:]) for x, _ in self.memories}
        if len(shapes) > 1:
            raise DataError(
                f"a-gem mixes tasks in one batch, and theirs have inputs of shapes "
                f"{sorted(shapes)}: bring them to one, or use s-gem"
            )
        self.x = torch.cat([x for x, _ in self.memories])
        self.y = torch.cat([y for _, y in self.memories])
        sizes = torch.tensor([len(y) for _, y in self.memories])
        self.task = torch.arange(len(sizes)).repeat_interleave(sizes).to(self.x.device)
        self.memories = []

    def begins_epoch(self, epoch: int, epochs: int) -> None:
        super().begins_epoch(epoch, epochs)
        self.batches = self._endless()

    def _endless(self) -> Iterator[Tensor]:
        assert isinstance(self.settings, AGEMSettings)
        while True:
            order = torch.randperm(len(self.x), generator=self.drawn).to(self.x.device)
            yield from torch.split(order, self.settings.reference)

    def corrected(self, gradient: Tensor) -> Tensor | None:
        rows = next(self.batches)
        x, y = self.x[rows], self.y[rows]
        out = self.forward(x) if self.heads is None else self.heads.mixed(x, self.task[rows])
        return project(gradient, self.gradient_of(F.cross_entropy(out, y)))


@register("a-gem")
class AGEM(Episodic):
    """One network, with a memory of each task; a step minds their average."""

    name = "a-gem"
    Settings = AGEMSettings
    settings: AGEMSettings
    Trained = AGEMTrainee
    published: ClassVar = {"permuted-mnist": {**ONE_EPOCH, "lr": 0.1, "head": None}}
