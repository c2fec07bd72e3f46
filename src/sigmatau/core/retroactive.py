"""The retroactive update in closed form: what past tasks ask of the shared weights.

While task t is learnt, a past task i wants `theta_i* = shared_old * M_i + delta_i` kept. For given
shared weights its best delta is a soft threshold, so past tasks need no gradients of their own.
With `D = shared - shared_old` and the residual `r_i = delta_i - M_i * D`:

    delta_i  <-  soft(r_i, l1 / (2 l2))                                        at the end of task t
    dF/dD     =  - sum_i M_i * clip(2 * l2 * r_i, -l1, +l1)                   while task t is learnt

`PastTasks` evaluates that sum over all tasks. `SharedPenalty` is what a training step uses: the
same derivative as `linear + clip(curvature * D, +-bound)` with three dense tensors, made once when
the task arrives. It is exact where past deltas are zero or out of reach of D, which is nearly
everywhere, and `refresh` makes it exact again where the shared weights moved past a delta. A step
thus costs the same however many tasks came before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from sigmatau.core.layout import Weight
from sigmatau.core.proximal import clipped_prox, dead_zone, soft_threshold
from sigmatau.core.sparse import Sparse, index_dtype, union


def far(moved: Tensor, reach: float) -> Tensor:
    """Return the flat indices where the shared weights moved further than a zero delta allows.

    A mask is at most 1, so a movement of `reach` or less leaves every zero delta zero.
    """
    indices = (moved.reshape(-1).abs() > reach).nonzero().squeeze(1)
    return indices.to(index_dtype(moved.numel()))


def rewrite(
    delta: Sparse, mask: Tensor | None, moved: Tensor, beyond: Tensor, out_dim: int, reach: float
) -> Sparse:
    """Return the best delta of a past task after the shared weights moved by `moved`.

    Only entries that were nonzero or lie `beyond` (see `far`) are looked at.
    """
    indices = union([delta.indices, beyond]) if beyond.numel() else delta.indices
    drift = moved.reshape(-1)[indices.long()]
    residual = Sparse(indices, torch.zeros_like(drift), delta.shape)
    if mask is not None:
        drift = drift * mask[residual.rows(out_dim).long()]
    residual.values[torch.searchsorted(indices, delta.indices)] = delta.values
    values = soft_threshold(residual.values - drift, reach)
    return Sparse(indices, values, delta.shape).nonzero()


@dataclass
class PastTasks:
    """One weight's past deltas and masks (None: all ones), and what they ask of the shared part."""

    weight: Weight
    deltas: Sequence[Sparse]
    masks: Sequence[Tensor | None]
    l1: float
    l2: float
    reach: float = field(init=False)
    table: Tensor = field(init=False)
    device: torch.device = field(init=False)

    def __post_init__(self) -> None:
        self.reach = dead_zone(self.l1, self.l2)
        self.device = self.deltas[0].values.device
        one = torch.ones(self.weight.channels, device=self.device)
        masks = torch.stack([one if m is None else m for m in self.masks], dim=1)
        # Per channel, large masks first: they leave the quadratic zone first as |D| grows.
        self.table = masks.sort(dim=1, descending=True).values

    def mask_at(self, task: int, channels: Tensor) -> Tensor | float:
        mask = self.masks[task]
        return 1.0 if mask is None else mask[channels.long()]

    def derivative(self, moved: Tensor, at: Tensor | None = None) -> Tensor:
        """Return dF/dD at the flat indices `at` (all of them if None), exactly, over all tasks."""
        size = self.weight.size
        if at is None:
            at = torch.arange(size, device=self.device)
        d = moved.reshape(-1)[at]
        channels = Sparse(at, d, self.weight.shape).rows(self.weight.out_dim)
        out = self._from_zeros(d, channels)
        wanted = torch.zeros(size, dtype=torch.bool, device=self.device)
        wanted[at] = True
        for i, delta in enumerate(self.deltas):
            hit = wanted[delta.indices.long()]
            if not bool(hit.any()):
                continue
            slot = torch.searchsorted(at, delta.indices[hit].to(at.dtype))
            m, tau, here = self.mask_at(i, channels[slot]), delta.values[hit], d[slot]
            out[slot] -= m * self._pull(tau - m * here) + m * self._pull(m * here)
        return out

    def _pull(self, r: Tensor) -> Tensor:
        return (2 * self.l2 * r).clamp(-self.l1, self.l1)

    def _from_zeros(self, d: Tensor, channels: Tensor) -> Tensor:
        """Return what the derivative would be if all deltas were 0: one curve per channel."""
        if self.reach == 0 or self.l1 == 0:
            return torch.zeros_like(d)
        masks = self.table
        size = d.abs()
        zero = torch.zeros(len(masks), 1, device=self.device, dtype=masks.dtype)
        saturated = torch.cat([zero, masks.cumsum(1)], dim=1)
        squares = torch.cat([zero, (masks * masks).cumsum(1)], dim=1)
        # How many tasks are past their dead zone, m * |d| > reach: a binary search per entry.
        low = torch.zeros_like(channels, dtype=torch.long)
        high = torch.full_like(low, masks.shape[1])
        channels = channels.long()
        for _ in range(masks.shape[1].bit_length()):
            middle = (low + high) // 2
            m = masks[channels, middle.clamp(max=masks.shape[1] - 1)]
            past = (m * size > self.reach) & (middle < high)
            low = torch.where(past, middle + 1, low)
            high = torch.where(past, high, middle)
        linear = self.l1 * saturated[channels, low]
        free = squares[channels, -1] - squares[channels, low]
        return d.sign() * (linear + 2 * self.l2 * size * free)


class SharedPenalty:
    """What holds the shared weights back while a task is learnt, entry by entry.

    Its derivative at a movement D is `linear + clip(curvature * D, -bound, +bound)`.
    """

    def __init__(
        self,
        linear: Tensor | None,
        curvature: Tensor | float,
        bound: Tensor | float,
        past: PastTasks | None = None,
        room: Tensor | None = None,
    ) -> None:
        self.linear, self.curvature, self.bound = linear, curvature, bound
        self._past, self._room = past, room
        self._touched: tuple[Tensor, Tensor] | None = None

    @classmethod
    def quadratic(cls, strength: float | Tensor) -> SharedPenalty:
        """Return the penalty `strength * D^2`: l2 transfer, or EWC if a Fisher is in strength."""
        return cls(None, 2 * strength, float("inf"))

    @classmethod
    def retroactive(cls, past: PastTasks) -> SharedPenalty:
        """Return the penalty of keeping all past tasks where they are."""
        weight, l1, l2 = past.weight, past.l1, past.l2
        spread = weight.broadcast()
        full = past.table.new_zeros(weight.shape)
        bound = full + (l1 * past.table.sum(1)).view(spread)
        curvature = full + (2 * l2 * (past.table**2).sum(1)).view(spread)
        linear, room = full, torch.full_like(full, float("inf"))
        # Beyond its widest dead zone a channel's curve is saturated; before its narrowest, it is
        # quadratic. Only in between does the sum of curves bend otherwise than ours.
        narrow, wide = past.reach / past.table[:, 0], past.reach / past.table[:, -1]
        for i, delta in enumerate(past.deltas):
            if not delta.nnz:
                continue
            m = past.mask_at(i, delta.rows(weight.out_dim))
            ones = torch.ones_like(delta.values) * m
            index = delta.indices
            bound.view(-1).index_add_(0, index, -l1 * ones)
            curvature.view(-1).index_add_(0, index, -2 * l2 * ones * ones)
            linear.view(-1).index_add_(0, index, -l1 * ones * delta.values.sign())
            free = (delta.values.abs() - past.reach) / ones
            room.view(-1).scatter_reduce_(0, index.long(), free, "amin")
        penalty = cls(linear, curvature.clamp_(min=0), bound.clamp_(min=0), past, room)
        penalty._band = (narrow.view(spread), wide.view(spread))
        penalty.refresh(torch.zeros_like(full))
        return penalty

    _band: tuple[Tensor, Tensor] | None = None

    def derivative(self, moved: Tensor) -> Tensor:
        """Return the derivative that a step uses, at the movement `moved`."""
        curve = moved * self.curvature
        bound = torch.as_tensor(self.bound, dtype=curve.dtype)
        curve = torch.minimum(torch.maximum(curve, -bound), bound)
        return curve if self.linear is None else curve + self.linear

    def prox(self, moved: Tensor, step: Tensor, limit: float) -> Tensor:
        """Return the movement after one proximal step of size `step` from `moved`."""
        if self.linear is not None:
            moved = moved - (step * self.linear).clamp_(-limit, limit)
        return clipped_prox(moved, step, self.curvature, self.bound, limit)

    def refresh(self, moved: Tensor) -> int:
        """Make the derivative exact again at `moved`; return how many entries needed it."""
        if self._past is None or self._room is None or self.linear is None:
            return 0
        linear = self.linear.view(-1)
        if self._touched is not None:
            linear[self._touched[0]] = self._touched[1]
        size = moved.abs()
        narrow, wide = self._band or (0.0, 0.0)
        stale = (size >= self._room) | ((size > narrow) & (size < wide))
        at = stale.view(-1).nonzero().squeeze(1)
        self._touched = (at, linear[at])
        if at.numel():
            exact = self._past.derivative(moved, at)
            curve = moved.view(-1)[at] * self.curvature.view(-1)[at]  # type: ignore[union-attr]
            bound = self.bound.view(-1)[at]  # type: ignore[union-attr]
            linear[at] = exact - torch.minimum(torch.maximum(curve, -bound), bound)
        return at.numel()


def past_objective(shared: Tensor, before: Tensor, past: PastTasks, deltas: list[Tensor]) -> Tensor:
    """Return `sum_i l1 |delta_i| + l2 ||theta_i* - (shared * M_i + delta_i)||^2`."""
    total = shared.new_zeros(())
    spread = past.weight.broadcast()
    for delta, old, mask in zip(deltas, past.deltas, past.masks, strict=True):
        drift = shared - before if mask is None else (shared - before) * mask.view(spread)
        residual = old.dense() - drift - delta
        total = total + past.l1 * delta.abs().sum() + past.l2 * residual.square().sum()
    return total
