"""Units that come, go and double: what DEN does to a network's structure, as pure functions.

A network is a list of parts (`chain.Part`), the last being the head; the units of a layer are in
the order they came, so those of an earlier time are the first ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from sigmatau.methods.chain import Chain, Part, norms_of


def connected(parts: Sequence[Part]) -> list[Tensor]:
    """Return for each layer below the head which units reach an output, searched from the top."""
    found: list[Tensor] = []
    reached = torch.ones(parts[-1].units, dtype=torch.bool)
    for part in reversed(parts[1:]):
        reached = _links(part)[reached].any(0)
        found.append(reached)
    return found[::-1]


def drift(parts: Sequence[Part], old: Sequence[Part]) -> list[Tensor]:
    """Return how far the incoming weights of each old unit have moved, as a norm."""
    return [
        (new.weight[: was.units, : was.weight.shape[1]] - was.weight).flatten(1).norm(dim=1)
        for new, was in zip(parts, old, strict=False)
    ]


def first(parts: Sequence[Part], widths: Sequence[int]) -> list[Part]:
    """Return the parts below the head cut to the first units of every layer."""
    return [
        _rows(replace(part, weight=part.weight[:, : widths[i - 1]] if i else part.weight), range(n))
        for i, (part, n) in enumerate(zip(parts, widths, strict=False))
    ]


def expanded(
    chain: Chain, parts: Sequence[Part], more: Sequence[int], generator: torch.Generator
) -> list[Part]:
    """Return the network with `more` units in each layer.

    New units read everything below; what is old reads them with weights of zero at first, so the
    network computes what it did before.
    """
    out = []
    for i, (stage, part) in enumerate(zip(chain.stages, parts, strict=True)):
        rows, wider = (*more, 0)[i], more[i - 1] if i else 0
        units, below, places = part.weight.shape
        weight = part.weight.new_zeros(units + rows, below + wider, places)
        weight[:units, :below] = part.weight
        drawn = torch.empty(rows, below + wider, places, dtype=weight.dtype)
        bound = ((below + wider) * places) ** -0.5
        weight[units:] = drawn.uniform_(-bound, bound, generator=generator).to(weight.device)
        fresh = norms_of(stage.follow(rows)) if rows else part.norms
        bias = None if part.bias is None else torch.cat([part.bias, part.bias.new_zeros(rows)])
        norms = [
            {n: torch.cat([t, more[n]]) if t.ndim and rows else t for n, t in held.items()}
            for held, more in zip(part.norms, fresh, strict=True)
        ]
        out.append(Part(weight, bias, tuple(norms)))
    return out


def thinned(parts: Sequence[Part], old: Sequence[int]) -> list[Part]:
    """Return the network without those new units that read nothing or that nothing reads."""
    keep: list[Tensor] = [torch.ones(parts[-1].units, dtype=torch.bool)]
    for part, above, n in reversed(list(zip(parts, parts[1:], old, strict=False))):
        useful = _links(part).any(1) & _links(above)[keep[0]].any(0)
        useful[:n] = True
        keep.insert(0, useful)
    out = []
    for i, part in enumerate(parts):
        below = replace(part, weight=part.weight[:, keep[i - 1]]) if i else part
        out.append(_rows(below, keep[i].nonzero().squeeze(1).tolist()))
    return out


def split(parts: Sequence[Part], old: Sequence[Part], moved: Sequence[Tensor]) -> list[Part]:
    """Return the network with each moved unit doubled: itself as it was, and as it is now.

    The double, a new unit, takes over the unit's connections to all that is new: to other doubles,
    to units added in this task, and to the head. What stays old goes on reading the old unit.
    """
    out = []
    lower = torch.zeros(0, dtype=torch.long)
    for i, part in enumerate(parts):
        head = i == len(parts) - 1
        doubled = lower[:0] if head else moved[i].nonzero().squeeze(1)
        kept = 0 if head else old[i].units  # rows that were there before this task
        units, below, _ = part.weight.shape
        rows = torch.cat([torch.arange(units), doubled])
        weight = torch.cat([part.weight, part.weight[:, lower]], 1)[rows]
        weight[:kept, below:] = 0
        weight[kept:, lower] = 0
        bias = None if part.bias is None else part.bias[rows]
        if not head:
            was = old[i]
            weight[doubled] = 0
            weight[doubled, : was.weight.shape[1]] = was.weight[doubled]
            if bias is not None and was.bias is not None:
                bias[doubled] = was.bias[doubled]
        norms = [{n: t[rows] if t.ndim else t for n, t in held.items()} for held in part.norms]
        out.append(Part(weight, bias, tuple(norms)))
        lower = doubled
    return out


def _links(part: Part) -> Tensor:
    """Return which unit reads which unit below."""
    return (part.weight != 0).any(2).cpu()


def _rows(part: Part, rows: Sequence[int]) -> Part:
    index = torch.tensor(rows, dtype=torch.long, device=part.weight.device)
    return Part(
        part.weight[index],
        None if part.bias is None else part.bias[index],
        tuple({n: t[index] if t.ndim else t for n, t in held.items()} for held in part.norms),
    )
