"""The paper's networks: shapes, sizes and names."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from sigmatau import backbones, methods
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
    pixels, centre, *rest = net.children()
    assert centre(torch.tensor([0.0, 0.5, 1.0])).tolist() == [-2.0, 0.0, 2.0]
    assert torch.equal(net(x), nn.Sequential(*rest)(pixels((x - 0.5) * 4)))


@pytest.mark.parametrize("name", ["lenet", "vgg16-bn", "alexnet"])
@pytest.mark.parametrize("channels", [1, 3])
def test_channels_lie_side_by_side_whatever_images_come_in(name, channels) -> None:
    net = backbones.create(name, (channels, 32, 32), 5).eval()
    seen = []
    for module in net.children():
        if isinstance(module, nn.MaxPool2d):
            module.register_forward_hook(lambda _, __, out: seen.append(out))
    net(torch.rand(2, channels, 32, 32))
    assert seen
    # A single pixel, as VGG ends with, has but one layout.
    assert all(out.is_contiguous(memory_format=torch.channels_last) for out in seen)


def test_images_that_lie_channels_last_are_not_copied_and_vmap_is_known() -> None:
    x = torch.rand(2, 3, 5, 4)
    lay = backbones.ChannelsLast()
    laid = lay(x)
    assert torch.equal(laid, x)
    assert lay(laid).data_ptr() == laid.data_ptr()
    assert torch.equal(torch.vmap(lay)(x[None]), x[None])


@pytest.mark.parametrize("channels", [1, 3])
def test_lenet_computes_what_its_layers_do_in_the_usual_order(channels) -> None:
    net = backbones.lenet((channels, 32, 32), 5, (4, 6, 20, 10))
    x = torch.rand(3, channels, 32, 32, generator=torch.Generator().manual_seed(0))
    layers = dict(net.named_children())
    usual = nn.Sequential(
        *(layers["conv1"], nn.ReLU(), nn.MaxPool2d(2)),
        *(layers["conv2"], nn.ReLU(), nn.MaxPool2d(2)),
        *(layers[n] for n in ("flatten", "fc1", "relu3", "fc2", "relu4", "head")),
    )
    results = []
    for module in (net, usual):
        out = module(x)
        results.append([out, *torch.autograd.grad(out.square().sum(), list(net.parameters()))])
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_unknown_names_are_told_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean 'lenet'"):
        backbones.create("lennet", (3, 32, 32), 10)
    assert backbones.names() == ["alexnet", "lenet", "mlp", "vgg16-bn"]


def test_dropout_changes_nothing_but_training() -> None:
    made = {}
    for dropout in (0.0, 0.5):
        torch.manual_seed(0)
        made[dropout] = backbones.lenet((3, 32, 32), 5, (4, 6, 20, 10), dropout=dropout)
    plain, dropped = made.values()
    for (name, tensor), (other, same) in zip(
        plain.state_dict().items(), dropped.state_dict().items(), strict=True
    ):
        assert name == other
        assert torch.equal(tensor, same)
    x = torch.rand(64, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    assert torch.equal(plain.eval()(x), dropped.eval()(x))
    hidden = dict(dropped.train().named_children())
    assert [m.p for m in dropped if isinstance(m, nn.Dropout)] == [0.5, 0.5]
    # Each sits behind a hidden layer's activation, and leaves out about half of what it reads.
    order = list(hidden)
    for i in (1, 2):
        assert order.index(f"drop{i}") == order.index(f"fc{i}") + 2
    left = (hidden["drop1"](torch.ones(1000, 20)) > 0).float().mean()
    assert 0.45 < float(left) < 0.55
    assert not torch.equal(dropped(x), plain.train()(x))
    assert not [m for m in plain if isinstance(m, nn.Dropout)]


def test_growing_methods_take_a_network_with_dropout() -> None:
    backbone = backbones.lenet((1, 8, 8), 2, (2, 3, 6, 5), dropout=0.5)
    x, y = torch.rand(40, 1, 8, 8), torch.arange(40) % 2
    for name in ("pgn", "apd1"):
        net = methods.create(name, backbone, epochs=1)
        for task in "ab":
            net.learn(task, (x, y), progress=False)
        assert torch.equal(net.predict("b", x), net.predict("b", x))
