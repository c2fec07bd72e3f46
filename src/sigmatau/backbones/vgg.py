"""VGG16 with batch normalisation for 32x32 images, as small as one likes."""

from __future__ import annotations

from collections import OrderedDict
from math import prod

from torch import nn

from sigmatau.backbones.channels import ChannelsLast

# Channels of the convolutions of configuration D (Simonyan and Zisserman 2015); 0 is a pooling.
_PLAN = (64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512, 0)


def vgg16_bn(
    input_shape: tuple[int, ...] = (3, 32, 32), outputs: int = 10, width: float = 1.0
) -> nn.Sequential:
    """Build VGG16-BN, all its channels times `width`."""
    channels, height, side = input_shape
    layers: OrderedDict[str, nn.Module] = OrderedDict(pixels=ChannelsLast())
    conv = pool = 0
    for planned in _PLAN:
        if planned == 0:
            pool += 1
            layers[f"pool{pool}"] = nn.MaxPool2d(2)
            height, side = height // 2, side // 2
            continue
        conv += 1
        size = max(1, round(planned * width))
        # The normalisation that follows makes a bias superfluous.
        layers[f"conv{conv}"] = nn.Conv2d(channels, size, 3, padding=1, bias=False)
        layers[f"norm{conv}"] = nn.BatchNorm2d(size)
        layers[f"relu{conv}"] = nn.ReLU()
        channels = size
    layers["flatten"] = nn.Flatten()
    layers["head"] = nn.Linear(prod((channels, height, side)), outputs)
    return nn.Sequential(layers)
