"""A growth budget: choose the entries of the deltas that are worth their place, within a count.

A delta starts without any sparsity and is cut back to its strongest entries in several rounds, fast
at first and slowly at last, while it trains; then those that are left are trained on alone. An l1
penalty shrinks what it keeps; docs/budget.md compares the two at equal size.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

ROUNDS = 10


def allowance(done: int, size: int, count: int) -> int:
    """Return how many of `size` entries may be left after `done` of the rounds: `count` at last.

    The share falls with the cube of the rounds to go (Zhu and Gupta 2017).
    """
    to_go = 1 - min(done, ROUNDS) / ROUNDS
    return count + int((size - count) * to_go**3)


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
