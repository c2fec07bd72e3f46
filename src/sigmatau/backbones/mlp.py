"""A multi-layer perceptron on flattened inputs."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from math import prod

from torch import nn


def mlp(
    input_shape: tuple[int, ...] = (784,), outputs: int = 10, widths: Sequence[int] = (256, 256)
) -> nn.Sequential:
    """Build an MLP: 256-256 for permuted MNIST, 312-128 for MNIST-Variation."""
    layers: OrderedDict[str, nn.Module] = OrderedDict(flatten=nn.Flatten())
    size = prod(input_shape)
    for i, width in enumerate(widths, 1):
        layers[f"fc{i}"], layers[f"relu{i}"] = nn.Linear(size, width), nn.ReLU()
        size = width
    layers["head"] = nn.Linear(size, outputs)
    return nn.Sequential(layers)
