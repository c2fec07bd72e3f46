"""The diagonal of the Fisher information: how much each weight matters to what a network says.

Per sample, with labels drawn from the network's own predictions: the square of the mean gradient
of a batch is something else, and far smaller.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

CHUNK = 25  # samples differentiated at once: bounds memory at 25 gradients


def diagonal_fisher(
    module: nn.Module,
    names: Sequence[str],
    inputs: Iterable[Tensor],
    samples: int,
    generator: torch.Generator,
) -> dict[str, Tensor]:
    """Return the mean over samples of the squared gradient of the log-likelihood, by parameter."""
    was_training = module.training
    module.eval()
    state = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    state = {name: tensor.detach() for name, tensor in state.items()}
    chosen = {name: state[name] for name in names}
    rest = {name: tensor for name, tensor in state.items() if name not in chosen}

    def loss(weights: dict[str, Tensor], x: Tensor, label: Tensor) -> Tensor:
        out = torch.func.functional_call(module, {**weights, **rest}, (x[None],))
        return F.cross_entropy(out, label[None])

    per_sample = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0), randomness="error")
    total = {name: torch.zeros_like(tensor) for name, tensor in chosen.items()}
    seen = 0
    for batch in inputs:
        for x in batch[: samples - seen].split(CHUNK):  # type: ignore[no-untyped-call]
            with torch.no_grad():
                odds = module(x).softmax(1)
            label = torch.multinomial(odds.cpu(), 1, generator=generator).squeeze(1).to(x.device)
            for name, grad in per_sample(chosen, x, label).items():
                total[name] += grad.square_().sum(0)
            seen += len(x)
        if seen >= samples:
            break
    module.train(was_training)
    return {name: tensor / max(seen, 1) for name, tensor in total.items()}
