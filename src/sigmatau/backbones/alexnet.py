"""The small AlexNet that HAT (Serra et al. 2018) uses for 32x32 images."""

from __future__ import annotations

from collections import OrderedDict

from torch import Tensor, nn

from sigmatau.backbones.channels import ChannelsLast


class Centre(nn.Module):
    """Bring pixels in [0, 1] to about mean 0 and deviation 1, without anything to learn."""

    def forward(self, x: Tensor) -> Tensor:
        return (x - 0.5) * 4


def alexnet(
    input_shape: tuple[int, ...] = (3, 32, 32), outputs: int = 10, width: float = 1.0
) -> nn.Sequential:
    """Build it with channels 64-128-256 and hidden layers 2048-2048, all times `width`.

    Images come in [0, 1] and are centred first: HAT's are normalised, and on images that are not,
    its training does not get off the ground.
    """
    channels, size, _ = input_shape
    a, b, c, d = (max(1, round(n * width)) for n in (64, 128, 256, 2048))
    layers: OrderedDict[str, nn.Module] = OrderedDict(pixels=ChannelsLast(), centre=Centre())
    kernels, drops = (size // 8, size // 10, 2), (0.2, 0.2, 0.5)
    for i, (units, kernel, drop) in enumerate(zip((a, b, c), kernels, drops, strict=True), 1):
        layers[f"conv{i}"] = nn.Conv2d(channels, units, kernel)
        layers[f"relu{i}"] = nn.ReLU()
        layers[f"drop{i}"] = nn.Dropout(drop)
        layers[f"pool{i}"] = nn.MaxPool2d(2)
        channels, size = units, (size - kernel + 1) // 2
    layers["flatten"] = nn.Flatten()
    features = channels * size * size
    for i in (1, 2):
        layers[f"fc{i}"] = nn.Linear(features, d)
        layers[f"relu{i + 3}"] = nn.ReLU()
        layers[f"drop{i + 3}"] = nn.Dropout(0.5)
        features = d
    layers["head"] = nn.Linear(features, outputs)
    return nn.Sequential(layers)
