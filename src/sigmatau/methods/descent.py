"""Plain gradient descent, of which the choice is the user's: Adam, or SGD as older protocols have.

For methods that take the step of a stock optimiser and change only the gradient.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from sigmatau.config import TrainingSettings

# The protocol of Chaudhry et al. (2019): every sample of a task is seen once, in batches of ten.
ONE_EPOCH: dict[str, Any] = {
    "epochs": 1,
    "batch_size": 10,
    "optimizer": "sgd",
    "weight_decay": 0.0,
}
# The epochs that the paper prints for all methods of its own tables (Yoon et al. 2020).
PAPER: dict[str, dict[str, Any]] = {
    "mnist-variation": {"epochs": 50},
    "split-cifar100": {"epochs": 20},
    "superclass-cifar100": {"epochs": 20},
    "omniglot-rotation": {"epochs": 100},
}


class DescentSettings(TrainingSettings):
    """How a task is trained by a stock optimiser."""

    optimizer: Literal["adam", "sgd"] = Field("adam", description="what takes the steps")
    lr: float = Field(1e-3, gt=0, description="the optimiser's learning rate in the first epoch")


def descent(parameters: Iterable[Tensor], settings: DescentSettings) -> torch.optim.Optimizer:
    """Return the optimiser of the settings over those parameters that are trained."""
    trained = [p for p in parameters if p.requires_grad]
    kind = torch.optim.SGD if settings.optimizer == "sgd" else torch.optim.Adam
    return kind(trained, settings.lr, weight_decay=settings.weight_decay, fused=True)
