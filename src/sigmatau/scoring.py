"""How good outputs are: accuracy for labels, a user's metric, or the loss."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from sigmatau.data import Batches
from sigmatau.errors import DataError
from sigmatau.training import Loss, Trainee

Metric = Callable[[Tensor, Tensor], float]


def accuracy_of(outputs: Tensor, labels: Tensor) -> float:
    """Return the share of rows whose largest output is at the label."""
    if labels.is_floating_point() or labels.shape != outputs.shape[:1]:
        raise DataError(
            f"accuracy needs one label a row, got targets {labels.dtype} of shape "
            f"{tuple(labels.shape)} for outputs of shape {tuple(outputs.shape)}"
        )
    return (outputs.argmax(1) == labels).double().mean().item()


def scorer(
    labels: bool, criterion: Loss, metric: Metric | None
) -> Callable[[Trainee, Batches], float]:
    """Return the validation score: larger is better."""
    judge: Metric
    if metric is not None:
        judge = metric
    elif labels:
        judge = accuracy_of
    else:
        judge = lambda outputs, targets: -float(criterion(outputs, targets))  # noqa: E731

    @torch.no_grad()
    def score(trainee: Trainee, data: Batches) -> float:
        trainee.module.eval()
        outputs, targets = [], []
        for x, y in data.ordered():
            outputs.append(trainee.forward(x))
            targets.append(y)
        return float(judge(torch.cat(outputs), torch.cat(targets)))

    return score
