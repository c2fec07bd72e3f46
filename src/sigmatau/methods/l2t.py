"""L2-transfer: each task goes on from the weights of the one before, and is kept near them.

    min over theta of  L_t(theta) + strength * ||theta - theta_(t-1)||^2

over the weights that tasks share; a head is its task's own and free. All weights are held alike,
whether earlier tasks need them or not, which is what EWC improves on. Reference: the L2T baseline
of Yoon et al. 2020 (Scalable and Order-robust Continual Learning with Additive Parameter
Decomposition), the l2 pull of Kirkpatrick et al. 2017. The paper does not print its strength.
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field
from torch import nn

from sigmatau.methods.anchored import Anchored
from sigmatau.methods.descent import ONE_EPOCH, PAPER, DescentSettings
from sigmatau.methods.registry import register
from sigmatau.methods.shared import SharedState, SharedWeights
from sigmatau.training import Loss, Trainee


class L2TSettings(DescentSettings):
    """Settings of L2-transfer."""

    strength: float = Field(1e-3, ge=0, description="price of leaving the last task's weights")


@register("l2t")
class L2T(SharedWeights):
    """One network, held near where the last task left it."""

    name = "l2t"
    Settings = L2TSettings
    settings: L2TSettings
    published: ClassVar = {
        **PAPER,
        "permuted-mnist": {**ONE_EPOCH, "lr": 0.03, "head": None},
    }

    def _trainee(
        self, state: SharedState, task: str, module: nn.Module, criterion: Loss
    ) -> Trainee:
        optimizer = self._descent(module)
        if not state.heads:  # nothing is learnt yet that could be held
            return Trainee(module, criterion, optimizer)
        anchors = {name: state.weights[name] for name in self.trunk}
        return Anchored(module, criterion, optimizer, anchors, 2 * self.settings.strength)
