"""LeNet as the paper has it: two 5x5 convolutions that keep the size, two hidden layers."""

from __future__ import annotations

from collections import OrderedDict

from torch import nn

from sigmatau.backbones.channels import ChannelsLast


def lenet(
    input_shape: tuple[int, ...] = (3, 32, 32),
    outputs: int = 10,
    widths: tuple[int, int, int, int] = (20, 50, 800, 500),
    dropout: float = 0.0,
) -> nn.Sequential:
    """Build LeNet; the paper's widths are 20-50-800-500 (CIFAR-100), 10-20-500-300 (Omniglot).

    Units are pooled before they are rectified: the same numbers as the other way round, sooner.
    `dropout` leaves out so many hidden units of the two linear layers in training, 0.5 say; the
    paper's LeNet has none.
    """
    channels, height, width = input_shape
    a, b, c, d = widths
    layers: OrderedDict[str, nn.Module] = OrderedDict(
        pixels=ChannelsLast(),
        conv1=nn.Conv2d(channels, a, 5, padding=2),
        pool1=nn.MaxPool2d(2),
        relu1=nn.ReLU(),
        conv2=nn.Conv2d(a, b, 5, padding=2),
        pool2=nn.MaxPool2d(2),
        relu2=nn.ReLU(),
        flatten=nn.Flatten(),
    )
    features = b * (height // 4) * (width // 4)
    for i, units in enumerate((c, d), 1):
        layers[f"fc{i}"] = nn.Linear(features, units)
        layers[f"relu{i + 2}"] = nn.ReLU()
        if dropout:
            layers[f"drop{i}"] = nn.Dropout(dropout)
        features = units
    layers["head"] = nn.Linear(features, outputs)
    return nn.Sequential(layers)
