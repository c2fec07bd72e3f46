"""A network seen as a chain: layers of units, each with what lies between it and the next.

Methods that grow add units to layers, so they must know which numbers belong to a unit. A `Part` is
a layer with its weights as (units, units below, numbers between the two); parts can be cut, joined
and put together into a plain `nn.Sequential` again (`Chain.assemble`). A flattening between a
convolution and a linear layer gives each channel a run of inputs, which is why a layer has a `fan`.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sigmatau.errors import BackboneError

Layer = nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d
LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
# What treats every unit alike and by itself, so that units can come and go.
PER_UNIT = (
    *(nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.SiLU, nn.Mish),
    *(nn.Tanh, nn.Sigmoid, nn.Softplus, nn.Softsign, nn.Hardtanh, nn.Hardswish, nn.LogSigmoid),
    *(nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d, nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d),
    *(nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d),
    *(nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d, nn.AdaptiveMaxPool3d),
    *(nn.Identity, nn.Flatten, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d),
)
_WANTED = (
    "needs the backbone as a chain, an nn.Sequential (which may hold others) of linear layers, "
    "convolutions without groups, batch normalisation, activations, pooling, dropout and Flatten(1)"
)


@dataclass(frozen=True)
class Stage:
    """A layer with weights and what follows it. `fan` is its number of inputs per unit below."""

    name: str
    layer: Layer
    tail: tuple[tuple[str, nn.Module], ...]
    fan: int

    @property
    def key(self) -> str:
        """The layer's name in a network that `Chain.assemble` made."""
        return _plain(self.name)

    @property
    def units(self) -> int:
        return int(self.layer.weight.shape[0])

    def shaped(self, weight: Tensor) -> Tensor:
        """Return a weight as (units, units below, numbers between)."""
        return weight.reshape(weight.shape[0], weight.shape[1] // self.fan, -1)

    def drawn(self, units: int, below: int, generator: torch.Generator | None) -> Layer:
        """Return a layer of this kind for other widths, drawn as PyTorch draws; None: not drawn."""
        held = self.layer.weight
        weight = torch.empty((units, below * self.fan, *held.shape[2:]), dtype=held.dtype)
        bias = None if self.layer.bias is None else torch.empty(units, dtype=held.dtype)
        if generator is not None and weight.numel():
            bound = weight[0].numel() ** -0.5
            for tensor in (weight, bias):
                if tensor is not None:
                    tensor.uniform_(-bound, bound, generator=generator)
        return self.with_weights(weight.to(held.device), bias)

    def with_weights(self, weight: Tensor, bias: Tensor | None) -> Layer:
        """Return a layer of this kind that has these weights."""
        held = self.layer
        # Kept out of the copy, since it may be large and is replaced anyway.
        layer = copy.deepcopy(held, {id(held.weight): None, id(held.bias): None})
        layer.weight = nn.Parameter(weight)
        layer.bias = None if bias is None else nn.Parameter(bias.to(weight.device))
        units, inputs = weight.shape[:2]
        if isinstance(layer, nn.Linear):
            layer.out_features, layer.in_features = units, inputs
        else:
            layer.out_channels, layer.in_channels = units, inputs
        return layer

    def follow(self, units: int) -> nn.Sequential:
        """Return a copy of what follows the layer; normalisation starts anew for `units` units."""
        tail = OrderedDict((_plain(name), copy.deepcopy(module)) for name, module in self.tail)
        for module in tail.values():
            if isinstance(module, NORMS):
                _fill(module, {n: _start(n, t, units) for n, t in module.state_dict().items()})
        return nn.Sequential(tail)


@dataclass(frozen=True)
class Part:
    """A layer's numbers: weight (units, units below, numbers between), bias, normalisations."""

    weight: Tensor
    bias: Tensor | None
    norms: tuple[Mapping[str, Tensor], ...] = ()

    @property
    def units(self) -> int:
        return self.weight.shape[0]

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Name all of the numbers."""
        yield "weight", self.weight
        if self.bias is not None:
            yield "bias", self.bias
        for i, norm in enumerate(self.norms):
            yield from ((f"norm{i}.{name}", tensor) for name, tensor in norm.items())


@dataclass(frozen=True)
class Chain:
    """What comes before the first layer, and the layers, of which the last is the output."""

    before: tuple[tuple[str, nn.Module], ...]
    stages: tuple[Stage, ...]

    @property
    def widths(self) -> tuple[int, ...]:
        """The units of all layers but the last."""
        return tuple(stage.units for stage in self.stages[:-1])

    def start(self) -> nn.Sequential:
        """Return a copy of what comes before the first layer."""
        return nn.Sequential(OrderedDict((_plain(n), copy.deepcopy(m)) for n, m in self.before))

    def parts(self) -> list[Part]:
        """Return the network's own numbers."""
        modules = [(stage, stage.layer, [m for _, m in stage.tail]) for stage in self.stages]
        return [part(stage, layer, tail) for stage, layer, tail in modules]

    def read(self, module: nn.Sequential) -> list[Part]:
        """Return the numbers of a network that `assemble` made."""
        live = dict(module.named_children())
        return [
            part(s, live[s.key], [live[_plain(name)] for name, _ in s.tail]) for s in self.stages
        ]

    def blank(self, units: Sequence[int]) -> list[Part]:
        """Return numbers of the shapes that a network of these widths has."""
        out = []
        for i, (stage, n) in enumerate(zip(self.stages, units, strict=True)):
            held = stage.shaped(stage.layer.weight)
            weight = held.new_zeros(n, units[i - 1] if i else held.shape[1], held.shape[2])
            bias = None if stage.layer.bias is None else weight.new_zeros(n)
            out.append(Part(weight, bias, norms_of(stage.follow(n))))
        return out

    def assemble(self, parts: Sequence[Part]) -> nn.Sequential:
        """Return a plain network with copies of these numbers."""
        modules = OrderedDict(self.start().named_children())
        for stage, numbers in zip(self.stages, parts, strict=True):
            shape = (numbers.units, -1, *stage.layer.weight.shape[2:])
            bias = None if numbers.bias is None else numbers.bias.clone()
            weight = numbers.weight.clone().reshape(shape)
            modules[stage.key] = stage.with_weights(weight, bias)
            tail = stage.follow(numbers.units)
            held = iter(numbers.norms)
            for module in tail:
                if isinstance(module, NORMS):
                    _fill(module, {n: t.clone() for n, t in next(held).items()})
            modules |= OrderedDict(tail.named_children())
        return nn.Sequential(modules)


def norms_of(tail: Iterable[nn.Module]) -> tuple[Mapping[str, Tensor], ...]:
    """Return the numbers of the normalisations among what follows a layer."""
    return tuple(dict(module.state_dict()) for module in tail if isinstance(module, NORMS))


def part(stage: Stage, layer: nn.Module, tail: Sequence[nn.Module]) -> Part:
    """Return the numbers of a layer and of the normalisations behind it, not copied."""
    bias = layer.bias
    return Part(
        stage.shaped(layer.weight.detach()),  # type: ignore[operator]
        None if bias is None else bias.detach(),  # type: ignore[operator]
        norms_of(tail),
    )


def read_chain(backbone: nn.Module, head: str | None, method: str) -> Chain:
    """See a network as a chain, or say what hinders. `method` is who asks."""
    before: list[tuple[str, nn.Module]] = []
    stages: list[tuple[str, Layer, list[tuple[str, nn.Module]]]] = []
    seen: set[int] = set()
    for name, module in _leaves(backbone, "", method):
        if id(module) in seen:
            raise BackboneError(f"{method} {_WANTED}: {name!r} is used twice")
        seen.add(id(module))
        last = bool(stages) and stages[-1][0] == head
        if type(module) in LAYERS and getattr(module, "groups", 1) == 1:
            stages.append((name, module, []))  # type: ignore[arg-type]
        elif (
            isinstance(module, NORMS if stages and not last else ())
            or (isinstance(module, PER_UNIT) and _from_units(module))
            # Before the first units and after the last, what does not learn is free.
            or (not stages and not list(module.parameters()) and _from_units(module))
            or (last and not list(module.parameters()))
        ):
            (stages[-1][2] if stages else before).append((name, module))
        else:
            raise BackboneError(f"{method} {_WANTED}: {name!r} is {module}")
    if len(stages) < 2 or head not in (None, stages[-1][0]):
        raise BackboneError(f"{method} {_WANTED}, with a layer before the head and none after it")
    if any(not p.requires_grad for p in backbone.parameters()):
        raise BackboneError(f"{method} trains every layer: unfreeze the backbone's parameters")
    out = []
    for i, (name, layer, tail) in enumerate(stages):
        below, inputs = stages[i - 1][1].weight.shape[0], layer.weight.shape[1]
        if i and inputs % below:
            raise BackboneError(
                f"{method} {_WANTED}: {name!r} has {inputs} inputs for {below} units below it"
            )
        out.append(Stage(name, layer, tuple(tail), inputs // below if i else 1))
    return Chain(tuple(before), tuple(out))


def _leaves(module: nn.Module, prefix: str, method: str) -> Iterator[tuple[str, nn.Module]]:
    if type(module) is not nn.Sequential:
        if not prefix:
            raise BackboneError(f"{method} {_WANTED}: this one is a {type(module).__name__}")
        yield prefix, module
        return
    for name, child in module._modules.items():
        assert child is not None
        yield from _leaves(child, f"{prefix}.{name}" if prefix else name, method)


def _from_units(module: nn.Module) -> bool:
    return not isinstance(module, nn.Flatten) or (module.start_dim, module.end_dim) == (1, -1)


def _plain(name: str) -> str:
    return name.replace(".", "_")


def _start(name: str, held: Tensor, units: int) -> Tensor:
    """Return what a number of a normalisation starts from: scales and variances from 1."""
    shape = (units,) if held.ndim else ()
    return held.new_full(shape, 1 if name in ("weight", "running_var") else 0)


def _fill(norm: nn.Module, values: Mapping[str, Tensor]) -> None:
    for name, value in values.items():
        is_parameter = name in norm._parameters
        setattr(norm, name, nn.Parameter(value) if is_parameter else value)
        if value.ndim:
            norm.num_features = len(value)  # type: ignore[assignment]
