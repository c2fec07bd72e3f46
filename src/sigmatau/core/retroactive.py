"""The retroactive update in closed form: what past tasks ask of the shared weights.

While task t is learnt, a past task i wants `theta_i* = shared_old * M_i + delta_i` kept. For given
shared weights its best delta is a soft threshold, so past tasks need no gradients of their own.
With `D = shared - shared_old` and the residual `r_i = delta_i - M_i * D`:

    delta_i  <-  soft(r_i, l1 / (2 l2))                                        at the end of task t
    dF/dD     =  - sum_i M_i * clip(2 * l2 * r_i, -l1, +l1)                   while task t is learnt

`PastTasks` evaluates that sum over all tasks. `SharedPenalty` is what a training step uses: the
same derivative as `linear + clip(curvature * D, +-bound)` with three dense tensors, made once when
the task arrives. It is exact where past deltas are zero or out of reach of D, which is nearly
everywhere. Where the shared weights moved past a delta, `refresh` puts the curve's bend at the
delta that is nearest now, so that a step can come to rest there, and makes it exact again. A step
thus costs the same however many tasks came before. (Where the dead zones of several deltas overlap,
as with a small l2, the shared weights come to rest to within such a zone.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from sigmatau.core.layout import Weight
from sigmatau.core.proximal import clipped_prox, dead_zone, soft_threshold
from sigmatau.core.sparse import Sparse, index_dtype, union

# What is left of a delta is dropped if it is at most this part of the dead zone: mostly rounding.
EATEN = 0.05


def far(moved: Tensor, reach: float) -> Tensor:
    """Return the flat indices where the shared weights moved further than a zero delta allows.

    A mask is at most 1, so a movement of `reach` or less leaves every zero delta zero.
    """
    indices = (moved.reshape(-1).abs() > reach).nonzero().squeeze(1)
    return indices.to(index_dtype(moved.numel()))


def rewrite(
    delta: Sparse,
    mask: Tensor | None,
    moved: Tensor,
    beyond: Tensor,
    out_dim: int,
    reach: float,
    still: bool = False,
) -> Sparse:
    """Return the delta of a past task after the shared weights moved by `moved`.

    Only entries that were nonzero or lie `beyond` (see `far`) are looked at. With `still`, for a
    `reach` that is next to nothing, no delta shrinks by it: one that is there takes up all that the
    shared weights moved, so that the past task stays where it was. That costs at most l1^2 / (4 l2)
    an entry more than the best delta would. One that the shared weights have eaten up is dropped;
    they come to rest there exactly (see `Curve.snap`), so that little more than rounding is left.
    """
    if beyond.numel():
        # Going through all entries in order is quicker than going after the few in two lists.
        spread = [n if d == out_dim else 1 for d, n in enumerate(delta.shape)]
        drift = moved if mask is None else moved * mask.view(spread)
        indices = union([delta.indices, beyond])
        residual = delta.dense().sub_(drift).view(-1).index_select(0, indices)
        drift = drift.reshape(-1).index_select(0, indices)
    else:
        indices = delta.indices
        drift = delta.gather(moved)
        if mask is not None:
            drift = drift * mask.index_select(0, delta.rows(out_dim))
        residual = delta.values - drift
    if still:
        values = residual.masked_fill((drift != 0) & (residual.abs() <= EATEN * reach), 0.0)
    else:
        values = soft_threshold(residual, reach)
    return Sparse(indices, values, delta.shape).nonzero()


@dataclass(frozen=True)
class Hits:
    """Deltas of past tasks at chosen entries: the place in the choice, the mask, the delta."""

    slot: Tensor
    mask: Tensor
    delta: Tensor

    def only(self, chosen: Tensor) -> Hits:
        """Return those of a part of the entries, chosen by a boolean each."""
        there, place = chosen[self.slot], chosen.cumsum(0) - 1
        return Hits(place[self.slot[there]], self.mask[there], self.delta[there])

    def nearest(self, d: Tensor, tie: float) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Return for entries moved by `d` the bend nearest to it, and the next below and above.

        A task's curve bends where D has eaten up its delta, at delta / mask. All tasks that had
        zero deltas before the shared weights last moved bend at one place; those within `tie` of
        the nearest count together, by the sums of their masks and of the masks' squares, which come
        after the bend. Zero deltas bend at D = 0, which is told by sums of 0.
        """
        slot, bend = self.slot, self.delta / self.mask
        distance = (bend - d[slot]).abs()
        least = d.abs().scatter_reduce(0, slot, distance, "amin")
        closest = (distance == least[slot]) & (distance < d[slot].abs())
        centre, masks, squares = (torch.zeros_like(d) for _ in range(3))
        centre[slot[closest]] = bend[closest]
        away = bend - centre[slot]
        tied = (away.abs() <= tie) & (centre[slot] != 0)
        masks.index_add_(0, slot[tied], self.mask[tied])
        squares.index_add_(0, slot[tied], self.mask[tied] ** 2)
        low = torch.zeros_like(d).masked_fill_(centre <= 0, -torch.inf)
        high = torch.zeros_like(d).masked_fill_(centre >= 0, torch.inf)
        below, above = away < -tie, away > tie
        low = low.scatter_reduce(0, slot[below], bend[below], "amax")
        high = high.scatter_reduce(0, slot[above], bend[above], "amin")
        return centre, masks, squares, low, high


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
        one = self.deltas[0].values.new_ones(self.weight.channels)
        masks = torch.stack([one if m is None else m for m in self.masks], dim=1)
        # Per channel, large masks first: they leave the quadratic zone first as |D| grows.
        self.table = masks.sort(dim=1, descending=True).values

    def mask_at(self, task: int, channels: Tensor) -> Tensor:
        mask = self.masks[task]
        return self.table.new_ones(channels.shape) if mask is None else mask[channels.long()]

    def derivative(self, moved: Tensor, at: Tensor | None = None) -> Tensor:
        """Return dF/dD at the flat indices `at` (all of them if None), exactly, over all tasks."""
        if at is None:
            at = torch.arange(self.weight.size, device=self.device)
        return self.derivative_of(moved.reshape(-1)[at], at, self.hits(at))

    def derivative_of(self, d: Tensor, at: Tensor, hits: Hits) -> Tensor:
        """Return dF/dD at the entries `at`, which moved by `d` and have these deltas."""
        channels = Sparse(at, d, self.weight.shape).rows(self.weight.out_dim)
        slot, m = hits.slot, hits.mask
        there = m * d[slot]
        pulls = m * (self._pull(hits.delta - there) + self._pull(there))
        return self._from_zeros(d, channels).index_add_(0, slot, pulls, alpha=-1)

    def hits(self, at: Tensor) -> Hits:
        """Return what past tasks have at the entries `at`."""
        channels = Sparse(at, at, self.weight.shape).rows(self.weight.out_dim)
        wanted = torch.zeros(self.weight.size, dtype=torch.bool, device=self.device)
        wanted[at] = True
        none = self.table.new_empty(0)
        found = [(at.new_empty(0, dtype=torch.int64), none, none)]
        for i, delta in enumerate(self.deltas):
            hit = wanted.index_select(0, delta.indices).nonzero().squeeze(1)
            if hit.numel():
                slot = torch.searchsorted(at, delta.indices[hit].to(at.dtype))
                found.append((slot, self.mask_at(i, channels[slot]), delta.values[hit]))
        slots, masks, deltas = zip(*found, strict=True)
        return Hits(torch.cat(slots), torch.cat(masks), torch.cat(deltas))

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


@dataclass(frozen=True)
class Curve:
    """A derivative of the shape `linear + clip(curvature * (D - centre), -bound, +bound)`.

    It holds between `low` and `high`; steps do not leave that range. A movement that ends within
    `snap` of the centre ends at the centre.
    """

    linear: Tensor | float
    curvature: Tensor | float
    bound: Tensor | float
    centre: Tensor | float = 0.0
    snap: Tensor | float = 0.0
    low: Tensor | None = None
    high: Tensor | None = None

    def bend(self, moved: Tensor) -> Tensor:
        pull = (moved - self.centre) * self.curvature
        bound = torch.as_tensor(self.bound, dtype=pull.dtype, device=pull.device)
        return torch.minimum(torch.maximum(pull, -bound), bound)

    def cost(self, moved: Tensor) -> Tensor:
        """Return the integral of the derivative from 0 to `moved`, for a centre of 0."""
        pull = self.bend(moved)
        curvature = torch.as_tensor(self.curvature, dtype=pull.dtype, device=pull.device)
        # Where the curvature is 0 so is the pull.
        bent = pull * pull / (2 * curvature).clamp(min=torch.finfo(pull.dtype).tiny)
        return pull * moved - bent + self.linear * moved

    def prox(self, moved: Tensor, step: Tensor, limit: Tensor) -> Tensor:
        """Return the movement after a proximal step of size `step`, of at most `limit`."""
        rules = (step, self.curvature, self.bound, limit, self.linear)
        away = clipped_prox(moved - self.centre, *rules)
        away = away.masked_fill_(away.abs() <= self.snap, 0.0)
        if isinstance(self.centre, Tensor):
            return torch.clamp(self.centre + away, self.low, self.high)
        return away

    def at(self, index: Tensor) -> Curve:
        """Return the curve of single entries."""

        def pick(part: Tensor | float) -> Tensor | float:
            return part.view(-1)[index] if isinstance(part, Tensor) else part

        return Curve(pick(self.linear), pick(self.curvature), pick(self.bound))


class SharedPenalty:
    """What holds the shared weights back while a task is learnt: a curve for every entry."""

    def __init__(self, curve: Curve) -> None:
        self.curve = curve
        self._past: PastTasks | None = None
        self.near: tuple[Tensor, Curve] | None = None

    @classmethod
    def quadratic(cls, strength: float | Tensor) -> SharedPenalty:
        """Return the penalty `strength * D^2`: l2 transfer, or EWC if a Fisher is in strength."""
        return cls(Curve(0.0, 2.0 * strength, float("inf")))

    @classmethod
    def retroactive(cls, past: PastTasks, still: bool = False) -> SharedPenalty:
        """Return the penalty of keeping all past tasks where they are.

        With `still` the shared weights do not move by so little that no past task would mind, and
        past one whose delta they have eaten up but for so little: see `rewrite`.
        """
        weight, l1, l2 = past.weight, past.l1, past.l2
        if l1 == 0:  # deltas that cost nothing make up for any movement
            return cls.quadratic(0.0)
        spread = weight.broadcast()
        linear = past.table.new_zeros(weight.shape)
        bound = linear + (l1 * past.table.sum(1)).view(spread)
        curvature = linear + (2 * l2 * (past.table**2).sum(1)).view(spread)
        close = [past.deltas[0].indices.new_empty(0)]
        for i, delta in enumerate(past.deltas):
            if not delta.nnz:
                continue
            index, m = delta.indices, past.mask_at(i, delta.rows(weight.out_dim))
            bound.view(-1).index_add_(0, index, -l1 * m)
            curvature.view(-1).index_add_(0, index, -2 * l2 * m * m)
            linear.view(-1).index_add_(0, index, -l1 * m * delta.values.sign())
            close.append(index[delta.values.abs() < 2 * past.reach])
        snap = past.reach if still else 0.0
        penalty = cls(Curve(linear, curvature.clamp_(min=0), bound.clamp_(min=0), snap=snap))
        penalty._past, penalty._close = past, torch.cat(close)
        # Beyond its widest dead zone a channel's curve is saturated; before its narrowest, it is
        # quadratic. Only in between does the sum of curves bend otherwise than ours.
        penalty._narrow = (past.reach / past.table[:, 0]).view(spread)
        penalty._wide = (past.reach / past.table[:, -1]).view(spread)
        penalty.refresh(torch.zeros_like(linear))
        return penalty

    _close: Tensor
    _narrow: Tensor
    _wide: Tensor

    def derivative(self, moved: Tensor) -> Tensor:
        """Return the derivative that a step uses, at the movement `moved`."""
        out = self.curve.bend(moved) + self.curve.linear
        if self.near is not None:
            at, curve = self.near
            out.view(-1)[at] = curve.bend(moved.view(-1)[at]) + curve.linear
        return out

    def prox(self, moved: Tensor, step: Tensor, limit: Tensor) -> Tensor:
        """Return the movement after one proximal step of size `step` from `moved`."""
        out = self.curve.prox(moved, step, limit)
        if self.near is not None:
            at, curve = self.near
            parts = (moved.view(-1)[at], step.view(-1)[at], limit.view(-1)[at])
            own = curve.prox(*parts)
            out.view(-1)[at] = own.masked_fill_(own.abs() <= self.curve.snap, 0.0)
        return out

    def refresh(self, moved: Tensor) -> int:
        """Make the derivative exact again at `moved`; return how many entries needed it."""
        past, self.near = self._past, None
        if past is None:
            return 0
        # A delta of twice the reach is out of the way of a movement within it.
        looked_at = moved.abs() > past.reach
        looked_at.view(-1).index_fill_(0, self._close.long(), True)
        at = looked_at.view(-1).nonzero().squeeze(1)
        if not at.numel():
            return 0
        hits, here = past.hits(at), moved.reshape(-1)[at]
        narrow, wide = (
            edge.expand(past.weight.shape).reshape(-1)[at] for edge in (self._narrow, self._wide)
        )
        between = (here.abs() > narrow) & (here.abs() < wide)
        met = here.abs()[hits.slot] >= (hits.delta.abs() - past.reach) / hits.mask
        needed = between.index_fill(0, hits.slot[met], True)
        at, here, between, narrow, wide = (t[needed] for t in (at, here, between, narrow, wide))
        if at.numel():
            edges = (between, narrow, wide)
            self.near = (at, self._curve_near(past, here, at, hits.only(needed), edges))
        return at.numel()

    def _curve_near(
        self,
        past: PastTasks,
        here: Tensor,
        at: Tensor,
        hits: Hits,
        edges: tuple[Tensor, Tensor, Tensor],
    ) -> Curve:
        """Return a curve for the entries `at` that is exact where they are now."""
        exact = past.derivative_of(here, at, hits)
        centre, masks, squares, low, high = hits.nearest(here, EATEN * past.reach)
        between, narrow, wide = edges
        dense = self.curve.at(at)
        curvature = torch.where(squares > 0, 2 * past.l2 * squares, dense.curvature)
        bound = torch.where(squares > 0, past.l1 * masks, dense.bound)
        # A dead zone is as much wider as a mask is small.
        snap = self.curve.snap * torch.where(squares > 0, masks / squares, 1.0)
        # Between quadratic and saturated, follow the chord from here to where all saturate.
        chord = between & (squares == 0)
        pull = torch.minimum((exact - dense.linear).abs(), bound)
        slope = (bound - pull) / (wide - here.abs()).clamp(min=1e-12)
        # A flatter chord would have its centre so far away that rounding tells in the difference.
        slope = torch.maximum(slope, pull / (100 * here.abs()).clamp(min=1e-12))
        curvature = torch.where(chord, slope.clamp(min=1e-12), curvature)
        centre = torch.where(chord, here - here.sign() * pull / curvature, centre)
        snap = torch.where(chord, -1.0, snap)  # a chord's centre is no place to rest at
        low = torch.where(chord & (here > 0), narrow, low)
        high = torch.where(chord & (here < 0), -narrow, high)
        curve = Curve(0.0, curvature, bound, centre, snap, low, high)
        return replace(curve, linear=exact - curve.bend(here))


def past_objective(shared: Tensor, before: Tensor, past: PastTasks, deltas: list[Tensor]) -> Tensor:
    """Return `sum_i l1 |delta_i| + l2 ||theta_i* - (shared * M_i + delta_i)||^2`."""
    total = shared.new_zeros(())
    spread = past.weight.broadcast()
    for delta, old, mask in zip(deltas, past.deltas, past.masks, strict=True):
        drift = shared - before if mask is None else (shared - before) * mask.view(spread)
        residual = old.dense() - drift - delta
        total = total + past.l1 * delta.abs().sum() + past.l2 * residual.square().sum()
    return total
