"""One network held near where it was: the quadratic pull that L2T and EWC have in common.

A step of plain descent that takes the loss's gradient g where it begins, and the pull where it
ends, is

    theta <- theta - lr * (g + strength * (theta - anchor)) / (1 + lr * strength)

It comes to rest where the plain sum of both gradients does, and no strength makes it diverge; with
the sum, lr * strength over 2 does. It costs three passes over the weights however many tasks there
were. The loss that is reported is the task's own.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from sigmatau.training import Loss, Trainee


class Anchored(Trainee):
    """A task in training, with the weights named in `anchors` drawn to them by `strength`."""

    def __init__(
        self,
        module: nn.Module,
        loss: Loss,
        optimizer: torch.optim.Optimizer,
        anchors: Mapping[str, Tensor],
        strength: Mapping[str, Tensor] | float,
    ) -> None:
        super().__init__(module, loss, optimizer)
        live = dict(module.named_parameters())
        self.held: list[Tensor] = [live[name] for name in anchors]
        device = self.held[0].device  # what comes from a file may be elsewhere
        self.anchors = [anchor.to(device) for anchor in anchors.values()]
        self.strength = [
            torch.as_tensor(strength if isinstance(strength, float) else strength[name]).to(device)
            for name in anchors
        ]
        self.damping: tuple[float, list[Tensor]] = (0.0, [])

    @torch.no_grad()
    def step(self, lr: float) -> None:
        if self.damping[0] != lr:  # once an epoch
            self.damping = (lr, [1 + lr * s for s in self.strength])
        pull = torch._foreach_sub(self.held, self.anchors)
        torch._foreach_mul_(pull, self.strength)
        for weight, drawn, damping in zip(self.held, pull, self.damping[1], strict=True):
            if weight.grad is not None:  # else it took no part, and is where it was
                weight.grad.add_(drawn).div_(damping)
        super().step(lr)
