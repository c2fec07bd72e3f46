"""Which layer of a network feeds which: found by running it, and proven before it is relied on.

Attention to units protects a task only if a unit's way to the output leads through its gate, and
if nothing mixes units before the gate. Both are tried out on the network itself, so any module
that runs as a chain will do, `nn.Sequential` or not, and one that does not is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from sigmatau.core.layout import HEADS
from sigmatau.errors import BackboneError

NEEDS = "HAT needs a chain of linear and convolutional layers, each with the one before as input"


def find_chain(module: nn.Module, layers: Sequence[str], sample: Tensor) -> tuple[str, ...]:
    """Return `layers` (the head among them) in the order they feed each other."""
    for name in layers:
        layer = module.get_submodule(name)
        if not isinstance(layer, HEADS) or getattr(layer, "groups", 1) != 1:
            kind = type(layer).__name__
            raise BackboneError(f"{name} ({kind}, perhaps grouped) cannot have attention: {NEEDS}")
    was_training = module.training
    module.eval()
    try:
        with torch.no_grad():
            return _proven(module, layers, sample)
    finally:
        module.train(was_training)


def spread(attention: Tensor, weight: Tensor) -> Tensor:
    """Return the attention to a layer's units in the shape of the next layer's weight.

    A unit of a convolution that was flattened feeds several inputs of a linear layer.
    """
    times = weight.shape[1] // len(attention)
    return attention.repeat_interleave(times).view(1, -1, *[1] * (weight.ndim - 2))


def _proven(module: nn.Module, layers: Sequence[str], sample: Tensor) -> tuple[str, ...]:
    drawn = torch.Generator().manual_seed(0)
    x = sample.repeat(2, *[1] * (sample.ndim - 1))[:2]
    if x.is_floating_point():
        x = x + torch.randn(x.shape, generator=drawn).to(x)
    seen: dict[str, Tensor] = {}

    def note(name: str) -> Any:
        def hook(_: nn.Module, args: tuple[Tensor, ...]) -> None:
            if name in seen:
                raise BackboneError(f"{name} runs more than once: {NEEDS}")
            seen[name] = args[0].clone()

        return hook

    def run() -> Tensor:
        seen.clear()
        out: Tensor = module(x)
        return out

    handles = [module.get_submodule(n).register_forward_pre_hook(note(n)) for n in layers]
    try:
        run()
        order = tuple(seen)
        for name in layers:
            if name not in order:
                raise BackboneError(f"{name} does not run: freeze it with requires_grad_(False)")
        for source, target in pairwise(order):
            producer, consumer = module.get_submodule(source), module.get_submodule(target)
            _tries_units(run, seen, target, producer, consumer, drawn)
            handle = consumer.register_forward_pre_hook(lambda _, args: (args[0] * 0,))
            try:
                out = run()
            finally:
                handle.remove()
            if not torch.allclose(out[0], out[1], rtol=1e-3, atol=1e-5):
                raise BackboneError(
                    f"something goes round {target}, a skip connection say: {NEEDS}"
                )
    finally:
        for handle in handles:
            handle.remove()
    return order


def _tries_units(
    run: Any,
    seen: dict[str, Tensor],
    target: str,
    producer: nn.Module,
    consumer: nn.Module,
    drawn: torch.Generator,
) -> None:
    """Shake half of a layer's units: the other half must arrive at the next layer as before."""
    units, inputs = len(_weight(producer)), _weight(consumer).shape[1]
    dim = -1 if isinstance(consumer, nn.Linear) else 1
    half = torch.rand(units, generator=drawn) < 0.5
    run()
    before = seen[target]
    sound = inputs % units == 0 and before.shape[dim] == inputs
    for shaken in (half, ~half) if sound else ():

        def shake(_: nn.Module, __: Any, out: Tensor, shaken: Tensor = shaken) -> Tensor:
            along = -1 if isinstance(producer, nn.Linear) else 1
            shape = [units if d == along % out.ndim else 1 for d in range(out.ndim)]
            return out + 10 * shaken.to(out).view(shape)

        handle = producer.register_forward_hook(shake)
        try:
            run()
        finally:
            handle.remove()
        still = (~shaken).repeat_interleave(inputs // units).to(before.device)
        places = still.nonzero().squeeze(1)
        kept = [t.index_select(dim, places) for t in (before, seen[target])]
        sound = sound and torch.allclose(kept[0], kept[1], rtol=1e-3, atol=1e-5)
    if not sound:
        raise BackboneError(f"units are mixed, or added to, on their way to {target}: {NEEDS}")


def _weight(layer: nn.Module) -> Tensor:
    weight = layer.weight
    assert isinstance(weight, Tensor)
    return weight
