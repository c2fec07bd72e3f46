"""The diagonal of the Fisher information: how much each weight matters to what a network says.

Per sample, with labels drawn from the network's own predictions: the square of the mean gradient
of a batch is something else, and far smaller.

A linear layer's gradient of one sample is the product of an output's gradient g and an input h, so
the sum of squares over samples is (g^2)^T h^2, and no sample's gradient is ever made. That holds
where a weight is used once a sample, which is seen from the batch: its gradient must be g^T h.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

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

    def loss(weights: dict[str, Tensor], x: Tensor, label: Tensor) -> Tensor:
        out = torch.func.functional_call(module, {**state, **weights}, (x[None],))
        return F.cross_entropy(out, label[None])

    per_sample = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0), randomness="error")
    total = {name: torch.zeros_like(state[name]) for name in names}
    linear = {f"{n}.weight": m for n, m in module.named_modules() if type(m) is nn.Linear}
    products = Products({name: linear[name] for name in names if name in linear})
    seen = 0
    for batch in inputs:
        for x in batch[: samples - seen].split(CHUNK):  # type: ignore[no-untyped-call]
            with torch.enable_grad(), products:
                out = module(x)
            odds = out.detach().softmax(1)
            label = torch.multinomial(odds.cpu(), 1, generator=generator).squeeze(1).to(x.device)
            for name, (h, g) in products.of(F.cross_entropy(out, label, reduction="sum")).items():
                total[name].addmm_(g.square().T, h.square())
            rest = {name: state[name] for name in names if name not in products.layers}
            if rest:
                for name, grad in per_sample(rest, x, label).items():
                    total[name] += grad.square().sum(0)
            seen += len(x)
        if seen >= samples:
            break
    module.train(was_training)
    return {name: tensor / max(seen, 1) for name, tensor in total.items()}


class Products:
    """Inputs and output gradients of linear layers, by the name of the weight.

    `layers` are those whose gradient is the product of the two, which the first loss tells.
    """

    def __init__(self, layers: Mapping[str, nn.Linear]) -> None:
        self.layers, self.checked = dict(layers), False
        self.calls: dict[str, list[tuple[Tensor, Tensor]]] = {}
        self.hooks: list[RemovableHandle] = []

    def __enter__(self) -> None:
        self.calls = {name: [] for name in self.layers}
        self.hooks = [
            layer.register_forward_hook(partial(self._note, name))
            for name, layer in self.layers.items()
        ]

    def __exit__(self, *_: object) -> None:
        for hook in self.hooks:
            hook.remove()

    def _note(self, name: str, _: nn.Module, given: tuple[Tensor, ...], out: Tensor) -> Tensor:
        self.calls[name].append((given[0].detach(), out))
        return out.clone()  # what follows may write over its input

    def of(self, loss: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
        """Return the inputs of each layer and the gradients of `loss` in its outputs."""
        if not self.checked:
            self.layers = {
                name: layer
                for name, layer in self.layers.items()
                if layer.weight.requires_grad
                and [given.ndim for given, _ in self.calls[name]] == [2]
            }
        if not self.layers:
            return {}
        calls = [self.calls[name][0] for name in self.layers]
        outputs = [out for _, out in calls]
        weights = [] if self.checked else [layer.weight for layer in self.layers.values()]
        found = torch.autograd.grad(loss, [*outputs, *weights], materialize_grads=True)
        pairs = {n: (h, g) for n, (h, _), g in zip(self.layers, calls, found, strict=False)}
        for name, whole in zip(list(pairs), found[len(calls) :], strict=False):
            h, g = pairs[name]
            if (g.T @ h - whole).norm() > 1e-3 * whole.norm():
                del pairs[name], self.layers[name]
        self.checked = True
        return pairs
