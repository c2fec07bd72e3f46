"""A learning rate that is cut when validation stops getting better, and ends training when tiny.

After `lr_patience` epochs without a lower validation loss the rate is divided by `lr_factor`; once
it is below `lr_min`, training is over. Without validation data the training loss takes its place.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from pydantic import Field
from torch import Tensor

from sigmatau.config import TrainingSettings
from sigmatau.data import Batches
from sigmatau.training import Trainee


class PatientSettings(TrainingSettings):
    """Settings of a training with patience."""

    lr_decay: float = Field(1.0, gt=0, le=1, description="factor on the rate after each epoch")
    weight_decay: float = Field(
        0.0, ge=0, description="pull towards 0 of what is a task's own, such as its head"
    )
    select_last: int = Field(
        10**6, ge=1, description="keep the epoch that validates best among this many last ones"
    )
    lr_patience: int = Field(5, ge=1, description="epochs to wait for a lower loss")
    lr_factor: float = Field(3.0, gt=1, description="what the rate is divided by after the wait")
    lr_min: float = Field(1e-4, ge=0, description="rate below which training ends")


class Patience:
    """How long a loss has not improved, as tensors, so that a training can be taken up again."""

    def __init__(self, settings: PatientSettings) -> None:
        self.settings = settings
        self.least = torch.tensor(torch.inf, dtype=torch.float64)
        self.waited = torch.tensor(0)
        self.cuts = torch.tensor(0)

    def hear(self, loss: float) -> None:
        self.waited += 1
        if loss < self.least:
            self.least.fill_(loss)
            self.waited.zero_()
        elif self.waited >= self.settings.lr_patience:
            self.cuts += 1
            self.waited.zero_()

    @property
    def pace(self) -> float:
        """Return the factor on the rate."""
        return float(self.settings.lr_factor ** -int(self.cuts))

    @property
    def finished(self) -> bool:
        return bool(self.cuts) and self.settings.lr * self.pace < self.settings.lr_min

    def parts(self) -> Iterator[tuple[str, Tensor]]:
        """Name the live tensors."""
        yield from (("least", self.least), ("waited", self.waited), ("cuts", self.cuts))


class Patient(Trainee):
    """A network in training whose rate follows its `patience`; mix it into a method's own."""

    patience: Patience

    def penalty(self) -> Tensor | float:
        """Return what the loss has besides the criterion."""
        return 0.0

    @torch.no_grad()
    def ends_epoch(self, loss: float, val: Batches | None) -> None:
        if val is not None:
            self.module.eval()
            total, seen = 0.0, 0
            for x, y in val.ordered():
                total += float(self.criterion(self.forward(x), y)) * len(x)
                seen += len(x)
            loss = total / seen + float(self.penalty())
        self.patience.hear(loss)

    @property
    def pace(self) -> float:
        return self.patience.pace

    @property
    def finished(self) -> bool:
        return self.patience.finished

    def extra(self) -> Iterator[tuple[str, Tensor]]:
        yield from self.patience.parts()
