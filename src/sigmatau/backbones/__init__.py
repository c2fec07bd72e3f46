"""The networks of the paper, each a plain `nn.Sequential` with named layers and the head last."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from sigmatau.backbones.alexnet import alexnet
from sigmatau.backbones.channels import ChannelsLast
from sigmatau.backbones.lenet import lenet
from sigmatau.backbones.mlp import mlp
from sigmatau.backbones.vgg import vgg16_bn
from sigmatau.errors import ConfigError, nearest

__all__ = ["ChannelsLast", "alexnet", "create", "lenet", "mlp", "names", "vgg16_bn"]

_BACKBONES: dict[str, Callable[..., nn.Sequential]] = {
    "alexnet": alexnet,
    "lenet": lenet,
    "mlp": mlp,
    "vgg16-bn": vgg16_bn,
}


def names() -> list[str]:
    """Return the names of all backbones."""
    return sorted(_BACKBONES)


def create(name: str, input_shape: tuple[int, ...], outputs: int, **options: Any) -> nn.Sequential:
    """Build a backbone by name for inputs of a shape, such as (3, 32, 32)."""
    if name not in _BACKBONES:
        raise ConfigError(f"no backbone {name!r}; {nearest(name, _BACKBONES)}")
    return _BACKBONES[name](input_shape, outputs, **options)
