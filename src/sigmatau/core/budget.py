"""A growth budget: choose the entries of the deltas that are worth their place, within a count.

A delta is first trained without any sparsity, then its strongest entries are kept and trained on
alone. That beats an l1 penalty at equal size, which shrinks what it keeps (docs/budget.md).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def strongest(scores: Sequence[Tensor], count: int) -> list[Tensor]:
    """Return masks (1 and 0, as floats) of at most `count` entries with the highest scores.

    Entries that score zero are never chosen. Ties at the border are broken by position, so that
    the count is met and never exceeded.
    """
    flat = torch.cat([score.reshape(-1) for score in scores])
    count = min(count, int(torch.count_nonzero(flat)))
    chosen = torch.zeros_like(flat)
    if count > 0:
        border = flat.kthvalue(flat.numel() - count + 1).values
        chosen[flat > border] = 1
        left = count - int(chosen.sum())
        chosen[(flat == border).nonzero().squeeze(1)[:left]] = 1
    sizes = [score.numel() for score in scores]
    parts: tuple[Tensor, ...] = chosen.split(sizes)  # type: ignore[no-untyped-call]
    return [part.view(score.shape) for part, score in zip(parts, scores, strict=True)]
