"""A training of several phases within the one loop, each with a learning rate that starts anew.

Methods that train a task in stages say how many epochs each takes and what changes when one begins.
A stage may replace the network; a training that was cut off then first takes on the structure of
the phase it was in (`rebuilds`), before its numbers are put back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from sigmatau.training import Loss, Trainee


class Phased(Trainee):
    """A network trained in phases of `lengths` epochs."""

    def __init__(
        self,
        module: nn.Module,
        loss: Loss,
        optimizer: torch.optim.Optimizer | None,
        lengths: Sequence[int],
        decay: float,
    ) -> None:
        super().__init__(module, loss, optimizer)
        self.lengths, self.decay, self.coming = tuple(lengths), decay, 0

    def enters(self, phase: int) -> None:
        """Prepare for a phase, counted from 0."""

    def rebuilds(self, phase: int, state: Mapping[str, Tensor]) -> None:
        """Take the structure that a training cut off in `phase` had."""

    def place(self, epoch: int) -> tuple[int, int]:
        """Return the phase of an epoch, and the epoch's number in it."""
        phase = 0
        while epoch >= self.lengths[phase] and phase < len(self.lengths) - 1:
            epoch, phase = epoch - self.lengths[phase], phase + 1
        return phase, epoch

    @property
    def pace(self) -> float:
        _, age = self.place(self.coming)
        return float(self.decay ** (age - self.coming))

    def begins_epoch(self, epoch: int, epochs: int) -> None:
        phase, age = self.place(epoch)
        self.coming = epoch + 1
        if age == 0:
            self.enters(phase)
            self.module.train()

    def resumes(self, state: Mapping[str, Tensor]) -> None:
        self.coming = len(state["epochs"])
        if self.coming:
            self.rebuilds(self.place(self.coming - 1)[0], state)
