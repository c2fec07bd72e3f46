"""One task being learnt: the network's weights as shared part, mask and delta, and their step.

The network itself is ordinary: its weight holds `theta = shared * mask + delta`, autograd gives
the gradient of theta, and that one gradient serves all three parts. Shared part and delta have
gradients that differ by the mask alone, a factor that Adam's normalisation takes out again, so one
pair of moments serves both. This file says in tensor code what a step is; `fused.c` does the same
in one pass.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import sqrt

import torch
from torch import Tensor, nn

from sigmatau.core import fused
from sigmatau.core.layout import Weight
from sigmatau.core.proximal import l1_prox_
from sigmatau.core.retroactive import SharedPenalty

BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8
# A prox may undo Adam's step, or move a number by a learning rate, whichever is more. A hair more
# than that, so that rounding cannot keep a number from coming to rest at zero.
LIMIT = 1.001


@dataclass
class Decomposed:
    """A weight under training: `theta` in the network, and the parts it is made of."""

    weight: Weight
    theta: nn.Parameter
    shared: Tensor
    before: Tensor
    delta: Tensor
    logit: nn.Parameter | None
    penalty: SharedPenalty | None
    support: Tensor | None = None

    def __post_init__(self) -> None:
        self.mean = torch.zeros_like(self.delta)
        self.square = torch.zeros_like(self.delta)
        self.kernel = fused.kernel_for(self)
        self.compose()

    @property
    def mask(self) -> Tensor | None:
        """Return one number per output channel, None if it is 1 everywhere."""
        return None if self.logit is None else torch.sigmoid(self.logit.detach())

    def spread(self, per_channel: Tensor) -> Tensor:
        return per_channel.view(self.weight.broadcast())

    @torch.no_grad()
    def compose(self) -> None:
        """Write theta: the product first and the sum after it, as everywhere, to the same bits."""
        mask = self.mask
        if mask is None:
            torch.add(self.shared, self.delta, out=self.theta.data)
        else:
            torch.mul(self.shared, self.spread(mask), out=self.theta.data).add_(self.delta)

    @torch.no_grad()
    def mask_gradient(self) -> None:
        """Give the mask's logits their gradient, from theta's."""
        if self.logit is None or self.theta.grad is None:
            return
        mask = torch.sigmoid(self.logit)
        if self.kernel is not None:
            self.logit.grad = self.kernel.logits(self.theta.grad, mask)
            return
        dims = [d for d in range(len(self.weight.shape)) if d != self.weight.out_dim]
        along = (self.theta.grad * self.shared).sum(dims)
        self.logit.grad = along * mask * (1 - mask)

    @torch.no_grad()
    def step(self, count: int, lr: float, l1: float, decay: float) -> None:
        """Take step number `count` (from 1) of Adam on shared part and delta, then the proxes.

        The gradient is used up, and theta written.
        """
        if self.theta.grad is None:
            return
        grad, self.theta.grad = self.theta.grad, None
        rate, debias = lr / (1 - BETA1**count), 1 / sqrt(1 - BETA2**count)
        if self.kernel is not None:
            self.kernel.step(grad, lr=lr, rate=rate, l1=l1, decay=decay, debias=debias)
            return
        if decay:
            grad.add_(self.theta, alpha=decay)
        self.mean.lerp_(grad, 1 - BETA1)
        self.square.mul_(BETA2).addcmul_(grad, grad, value=1 - BETA2)
        root = self.square.sqrt().mul_(debias).add_(EPSILON)
        towards = (self.mean / root).mul_(rate)
        limit = towards.abs().clamp_(min=lr).mul_(LIMIT)
        if self.penalty is not None:
            scale = root if self.mask is None else root * self.spread(self.mask)
            moved = (self.shared - self.before).sub_(towards)
            moved = self.penalty.prox(moved, lr / scale, limit)
            torch.add(self.before, moved, out=self.shared)
        self.delta.sub_(towards)
        if self.support is not None:
            self.delta.mul_(self.support)
        elif l1:
            l1_prox_(self.delta, lr / root, l1, limit)
        self.compose()

    def settle(self, l1: float = 0.0, least: float = 0.0) -> None:
        """Let the delta have no other nonzeros from now on, and no price on them.

        With `least`, entries of at most that size are dropped: one that is smaller than a few steps
        is nonzero because of the last batches, not of the task. The shared weights are at rest from
        then on.
        """
        if self.support is not None:
            return
        if least:
            self._split(l1, least)
            self.delta.masked_fill_(self.delta.abs() <= least, 0.0)
            self.compose()
        self.support = (self.delta != 0).to(self.delta.dtype)

    @torch.no_grad()
    def _split(self, l1: float, least: float) -> None:
        """Let the delta take over what the shared weights moved, where that is cheaper.

        Both follow the same gradient, so both have moved where one would do. A movement stays in
        the shared weights if past tasks ask no more for it than l1 would in the delta, and if it is
        larger than what is dropped. Theta stays the same.
        """
        if self.penalty is None:
            return
        moved, mask = self.shared - self.before, self.mask
        own = moved if mask is None else moved * self.spread(mask)
        goes = (self.penalty.curve.cost(moved) > l1 * own.abs()) | (moved.abs() <= least)
        self.delta.add_(own.masked_fill_(~goes, 0.0))
        self.shared.copy_(torch.where(goes, self.before, self.shared))
        self.penalty = None

    def refresh(self) -> None:
        """Look again at entries where the shared weights moved past a past task's delta."""
        if self.penalty is not None:
            self.penalty.refresh(self.shared - self.before)

    def strength(self) -> Tensor:
        """Return what each entry of the delta is worth: about the loss of setting it to zero.

        That is `delta^2 * curvature / 2`, with the root of Adam's second moment in the curvature's
        place, so that entries of all layers are measured by one measure.
        """
        return self.delta.square().mul_(self.square.sqrt())

    def parts(self) -> Iterator[tuple[str, Tensor]]:
        """Name the live tensors that theta is made of."""
        yield "shared", self.shared
        yield "delta", self.delta
        if self.logit is not None:
            yield "logit", self.logit

    def moments(self) -> Iterator[tuple[str, Tensor]]:
        """Name the live tensors that only training needs."""
        yield "mean", self.mean
        yield "square", self.square
        if self.support is not None:
            yield "support", self.support
