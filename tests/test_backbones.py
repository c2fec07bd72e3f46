"""The paper's networks: shapes, sizes and names."""

from __future__ import annotations

import pytest
import torch

from sigmatau import backbones
from sigmatau.core.layout import walk
from sigmatau.errors import ConfigError


@pytest.mark.parametrize(
    ("name", "shape", "options", "numbers"),
    [
        # 5*5*3*20 + 5*5*20*50 + 8*8*50*800 + 800*500 + 500*10, and biases
        ("lenet", (3, 32, 32), {}, 2_991_500 + 1_380),
        ("lenet", (1, 28, 28), {"widths": (10, 20, 500, 300)}, 648_250 + 840),
        ("mlp", (784,), {}, 784 * 256 + 256 * 256 + 2560 + 522),
        ("mlp", (784,), {"widths": (312, 128)}, 784 * 312 + 312 * 128 + 1280 + 450),
        ("vgg16-bn", (3, 32, 32), {}, 14_710_464 + 8_448 + 5_130),
        ("alexnet", (3, 32, 32), {}, None),
    ],
)
def test_networks_have_the_papers_size(name, shape, options, numbers) -> None:
    net = backbones.create(name, shape, 10, **options).eval()
    assert net(torch.zeros(2, *shape)).shape == (2, 10)
    found = sum(p.numel() for p in net.parameters())
    assert numbers is None or found == numbers
    assert walk(net).head == "head"


@pytest.mark.parametrize("name", ["vgg16-bn", "alexnet"])
def test_networks_can_be_made_smaller(name: str) -> None:
    sizes = [
        sum(p.numel() for p in backbones.create(name, (3, 32, 32), 7, width=w).parameters())
        for w in (0.125, 0.25, 1.0)
    ]
    assert sizes == sorted(sizes)
    assert sizes[0] < sizes[2] / 20


def test_alexnet_centres_its_pixels() -> None:
    net = backbones.create("alexnet", (3, 32, 32), 5, width=0.1).eval()
    x = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    first, *rest = net.children()
    assert first(torch.tensor([0.0, 0.5, 1.0])).tolist() == [-2.0, 0.0, 2.0]
    assert torch.equal(net(x), torch.nn.Sequential(*rest)((x - 0.5) * 4))


def test_unknown_names_are_told_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean 'lenet'"):
        backbones.create("lennet", (3, 32, 32), 10)
    assert backbones.names() == ["alexnet", "lenet", "mlp", "vgg16-bn"]
