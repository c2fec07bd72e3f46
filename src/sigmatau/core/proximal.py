"""Thresholds and proximal steps: how exact zeros come about while a network trains.

Every penalty here has a derivative of one shape, `clip(curvature * z, -bound, +bound)`: an
absolute value is the limit of infinite curvature, a square that of infinite bound, and the Huber
function lies between. So one formula serves them all.
"""

from __future__ import annotations

import torch
from torch import Tensor


def soft_threshold(x: Tensor, threshold: float | Tensor) -> Tensor:
    """Return argmin over z of `(z - x)^2 / 2 + threshold * |z|`: x drawn to 0, and 0 near it."""
    threshold = torch.as_tensor(threshold, dtype=x.dtype, device=x.device)
    return x - torch.clamp(x, -threshold, threshold)


def huber(r: Tensor, l1: float, l2: float) -> Tensor:
    """Return min over tau of `l1 * |tau| + l2 * (r - tau)^2`, entry by entry.

    It is `l2 * r^2` where `|r| <= l1 / (2 l2)`, and `l1 * |r| - l1^2 / (4 l2)` beyond.
    """
    reach = dead_zone(l1, l2)
    return torch.where(r.abs() <= reach, l2 * r * r, l1 * r.abs() - l1 * reach / 2)


def dead_zone(l1: float, l2: float) -> float:
    """Return `l1 / (2 l2)`: how far a past weight may drift before it costs a nonzero."""
    return 0.0 if l1 == 0 else (l1 / (2 * l2) if l2 > 0 else float("inf"))


def clipped_prox(
    x: Tensor,
    step: Tensor,
    curvature: Tensor | float,
    bound: Tensor | float,
    limit: Tensor,
    linear: Tensor | float = 0.0,
) -> Tensor:
    """Return argmin over z of `(z - x)^2 / (2 step) + h(z)`.

    The derivative of h is `linear + clip(curvature * z, -bound, +bound)`.

    No entry moves by more than `limit`: an adaptive optimiser's step grows without bound where
    its second moment fades, and a penalty must not outrun the optimiser itself.
    """
    moved = x - step * linear
    # Where nothing is clipped the answer is a quotient: as a difference of large steps it would
    # drown in rounding.
    within = moved / (1 + step * curvature)
    pull = within * curvature
    if isinstance(bound, Tensor):
        clipped = torch.minimum(torch.maximum(pull, -bound), bound)
    else:
        clipped = pull.clamp(-bound, bound)
    z = torch.where(clipped == pull, within, moved - step * clipped)
    return x + z.sub_(x).clamp_(-limit, limit)


def l1_prox_(x: Tensor, step: Tensor, l1: float, limit: Tensor | float) -> Tensor:
    """Soft-threshold `x` in place by `step * l1`, but never by more than `limit`."""
    threshold = torch.clamp(step * l1, max=limit)
    return x.sub_(torch.minimum(torch.maximum(x, -threshold), threshold))
