"""Fine-tuning: each task goes on training the weights that the one before it left.

Nothing holds the weights back, so earlier tasks are forgotten. It is what plain PyTorch does, and
what every method must beat.
"""

from __future__ import annotations

from typing import ClassVar

from sigmatau.methods.descent import ONE_EPOCH, PAPER
from sigmatau.methods.registry import register
from sigmatau.methods.shared import SharedWeights


@register("finetune")
class Finetune(SharedWeights):
    """One network, trained on one task after the other."""

    name = "finetune"
    published: ClassVar = {
        **PAPER,
        "permuted-mnist": {**ONE_EPOCH, "lr": 0.03, "head": None},
    }
