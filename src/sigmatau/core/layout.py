"""Which parts of a network are shared by all tasks, and which a task keeps for itself.

The network is walked, never changed: weights of known layers are decomposed, the head and all
small parameters (biases, normalisation) are kept whole per task, and what the user froze stays
as it is. What fits none of these is named in an error with the ways out.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatch
from math import prod

import torch
from torch import nn
from torch.nn.parameter import UninitializedParameter

from sigmatau.errors import BackboneError, nearest

# For each layer type, the parameters to decompose and the dimension of their output neurons.
_LAYERS: dict[type[nn.Module], dict[str, int]] = {
    nn.Linear: {"weight": 0},
    nn.Bilinear: {"weight": 0},
    nn.Conv1d: {"weight": 0},
    nn.Conv2d: {"weight": 0},
    nn.Conv3d: {"weight": 0},
    nn.ConvTranspose1d: {"weight": 1},
    nn.ConvTranspose2d: {"weight": 1},
    nn.ConvTranspose3d: {"weight": 1},
    nn.Embedding: {"weight": 1},
    nn.RNNBase: {"weight_*": 0},
    nn.MultiheadAttention: {"*proj_weight": 0},
}
HEADS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
# A matrix that cannot be decomposed is still kept per task if it is below this share of the net.
SMALL = 0.01


def register_layer(kind: type[nn.Module], parameters: Mapping[str, int]) -> None:
    """Teach the walk a layer type of your own.

    `parameters` maps names of parameters (with * as a wildcard) to the dimension that counts
    their output neurons: `register_layer(MyLinear, {"weight": 0})`.
    """
    _LAYERS[kind] = dict(parameters)


@dataclass(frozen=True)
class Weight:
    """One decomposed parameter of the network."""

    name: str
    shape: tuple[int, ...]
    out_dim: int

    @property
    def size(self) -> int:
        return prod(self.shape)

    @property
    def channels(self) -> int:
        return self.shape[self.out_dim]

    def broadcast(self) -> tuple[int, ...]:
        """Return the shape in which one number per channel spreads over the weight."""
        return tuple(n if d == self.out_dim else 1 for d, n in enumerate(self.shape))


@dataclass(frozen=True)
class Layout:
    """What a walk through a network found."""

    weights: tuple[Weight, ...]
    own: tuple[str, ...]
    head: str | None
    head_parameters: tuple[str, ...]
    fixed: tuple[str, ...]
    buffers: Mapping[str, tuple[int, ...]] = field(repr=False)
    shapes: Mapping[str, tuple[int, ...]] = field(repr=False)
    dtypes: Mapping[str, torch.dtype] = field(repr=False)

    @property
    def trunk_size(self) -> int:
        """Return how many numbers the network has without its head."""
        heads = set(self.head_parameters)
        return sum(prod(s) for n, s in self.shapes.items() if n not in heads)

    @property
    def size(self) -> int:
        """Return how many numbers the network has, with its one head."""
        return sum(prod(shape) for shape in self.shapes.values())

    def head_size(self, outputs: int) -> int:
        """Return how many numbers a head of so many outputs has."""
        return sum(outputs * prod(self.shapes[name][1:]) for name in self.head_parameters)

    def fingerprint(self) -> str:
        """Return a digest of the structure, to recognise the network a file belongs to."""
        parts = {**self.shapes, **self.buffers}
        inner = sorted((n, s) for n, s in parts.items() if n not in self.head_parameters)
        types = sorted((n, str(d)) for n, d in self.dtypes.items())
        told = [self.head, inner, types, [(w.name, w.out_dim) for w in self.weights]]
        return hashlib.sha256(json.dumps(told).encode()).hexdigest()[:16]


def walk(backbone: nn.Module, head: str | None = "auto", keep: Iterable[str] = ()) -> Layout:
    """Find what to decompose in `backbone`.

    `head` names the last layer, of which every task gets its own; "auto" takes the last linear or
    convolutional layer, None means that there is none. `keep` are patterns of parameters to keep
    whole per task though they are large.
    """
    if isinstance(backbone, torch.jit.ScriptModule) or hasattr(backbone, "_orig_mod"):
        raise BackboneError(
            "the backbone is compiled: pass the network it was made from, and compile what "
            "export(task) returns"
        )
    parameters = dict(backbone.named_parameters())
    for name, parameter in parameters.items():
        if isinstance(parameter, UninitializedParameter):
            raise BackboneError(
                f"{name} has no shape yet (a lazy layer): run one batch through the network first"
            )
        if parameter.requires_grad and parameter.itemsize < 4:
            raise BackboneError(
                f"{name} is {parameter.dtype}, which rounds small steps away: call .float() on "
                "the network. To train with 16 bits, give learn a fabric of mixed precision"
            )
    found = _find_head(backbone, head)
    heads = _head_parameters(backbone, found, parameters)
    keep = tuple(keep)
    weights, own, fixed = [], [], []
    total = sum(p.numel() for p in parameters.values())
    dims = _decomposable(backbone)
    for path, parameter in parameters.items():
        if path in heads:
            continue
        if not parameter.requires_grad:
            fixed.append(path)
        elif path in dims and not any(fnmatch(path, pattern) for pattern in keep):
            weights.append(Weight(path, tuple(parameter.shape), dims[path]))
        elif (
            parameter.ndim <= 1
            or parameter.numel() <= SMALL * total
            or any(fnmatch(path, pattern) for pattern in keep)
        ):
            own.append(path)
        else:
            owner = type(backbone.get_submodule(path.rpartition(".")[0])).__name__
            raise BackboneError(
                f"{path} ({owner}, {parameter.numel():,} numbers) cannot be decomposed. Register "
                f"its type with sigmatau.register_layer, keep it whole per task with "
                f"keep=[{path!r}], or freeze it with requires_grad_(False)"
            )
    if not weights:
        raise BackboneError(
            "the backbone has nothing to decompose: it needs at least one trainable linear or "
            "convolutional layer besides the head (head=None decomposes the last one too)"
        )
    # Of the buffers, those count as state that the network would save itself.
    saved = backbone.state_dict().keys()
    buffers = {path: b for path, b in backbone.named_buffers() if path in saved}
    return Layout(
        weights=tuple(weights),
        own=tuple(own),
        head=found,
        head_parameters=heads,
        fixed=tuple(fixed),
        buffers={path: tuple(b.shape) for path, b in buffers.items()},
        shapes={path: tuple(p.shape) for path, p in parameters.items()},
        dtypes={path: t.dtype for path, t in [*parameters.items(), *buffers.items()]},
    )


def _decomposable(backbone: nn.Module) -> dict[str, int]:
    """Map each parameter of a known layer to the dimension of its output neurons."""
    dims: dict[str, int] = {}
    for prefix, module in backbone.named_modules():
        known = next((_LAYERS[k] for k in type(module).__mro__ if k in _LAYERS), {})
        for name, parameter in module.named_parameters(recurse=False):
            for pattern, dim in known.items():
                if fnmatch(name, pattern) and parameter.ndim > dim:
                    dims[f"{prefix}.{name}" if prefix else name] = dim
    return dims


def _find_head(backbone: nn.Module, head: str | None) -> str | None:
    candidates: list[str] = [n for n, m in backbone.named_modules() if isinstance(m, HEADS)]
    if head is None:
        return None
    if head == "auto":
        if not candidates:
            raise BackboneError(
                "no linear or convolutional layer found to be the head: name one with head=..., "
                "or pass head=None if the tasks share the last layer"
            )
        return candidates[-1]
    if head not in candidates:
        raise BackboneError(
            f"head={head!r} is no linear or convolutional layer of the backbone; "
            + nearest(head, candidates)
        )
    return head


def _head_parameters(
    backbone: nn.Module, head: str | None, parameters: Mapping[str, nn.Parameter]
) -> tuple[str, ...]:
    if head is None:
        return ()
    prefix = f"{head}." if head else ""
    names = tuple(prefix + n for n, _ in backbone.get_submodule(head).named_parameters())
    missing = [name for name in names if name not in parameters]
    users = [
        path
        for path, p in backbone.named_parameters(remove_duplicate=False)
        if path not in names and any(p is parameters.get(name) for name in names)
    ]
    if missing or users:
        raise BackboneError(
            f"the head {head!r} shares {', '.join(missing or users)} with another layer: a head "
            "must have weights of its own"
        )
    return names
