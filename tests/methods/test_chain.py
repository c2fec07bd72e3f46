"""The chain: networks are taken apart and put together again, and what cannot be is refused."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from sigmatau import backbones
from sigmatau.errors import BackboneError
from sigmatau.methods import create
from sigmatau.methods.chain import read_chain

from ..conftest import blobs, small_conv, small_mlp

PAPER = {
    "mlp": lambda: backbones.mlp((3, 32, 32), 3, (9, 8)),
    "lenet": lambda: backbones.lenet((3, 32, 32), 3, (3, 4, 9, 8)),
    "vgg16-bn": lambda: backbones.vgg16_bn((3, 32, 32), 3, 0.03),
    "alexnet": lambda: backbones.alexnet((3, 32, 32), 3, 0.03),
}
GROWING = ("pgn", "pc", "den", "rcl")


@pytest.mark.parametrize("kind", PAPER)
def test_taken_apart_and_put_together_a_network_computes_the_same(kind):
    net = PAPER[kind]().eval()
    chain = read_chain(net, "head", "it")
    x = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    again = chain.assemble(chain.parts()).eval()
    assert torch.equal(net(x), again(x))
    assert [p.weight.shape for p in chain.read(again)] == [
        p.weight.shape for p in chain.blank([*chain.widths, 3])
    ]
    # Copies: what is done to the one does not reach the other.
    for parameter in again.parameters():
        parameter.data.zero_()
    assert bool((net(x) != 0).any())


@pytest.mark.parametrize("kind", PAPER)
@pytest.mark.parametrize("name", GROWING)
def test_the_papers_networks_can_be_grown(name, kind, tmp_path):
    more = {"rcl": {"trials": 1, "child_epochs": 1, "max_units": 2}, "den": {"expand": 2}}
    net = create(name, PAPER[kind](), epochs=1, batch_size=12, **more.get(name, {}))
    for task in range(2):
        net.learn(f"{task}", blobs(task, rows=24, shape=(3, 32, 32)), progress=False)
    net.save(tmp_path / "net")
    again = type(net).load(tmp_path / "net", PAPER[kind]())
    x = blobs(5, rows=6, shape=(3, 32, 32))[0]
    for task in net.tasks:
        assert torch.equal(net.predict(task, x), again.predict(task, x))
        torch.testing.assert_close(net.export(task)(x), net.predict(task, x), rtol=1e-3, atol=1e-4)


class Skip(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(6, 6)
        self.head = nn.Linear(6, 3)

    def forward(self, x):
        return self.head(x + self.inner(x))


def frozen():
    net = small_mlp()
    net[0].requires_grad_(False)
    return net


twice = nn.Linear(6, 6)
REFUSED = {
    "not a chain": (Skip, "Skip"),
    "mixes units": (
        lambda: nn.Sequential(nn.Linear(6, 6), nn.LayerNorm(6), nn.Linear(6, 3)),
        "LayerNorm",
    ),
    "groups": (
        lambda: nn.Sequential(
            nn.Conv1d(2, 4, 1, groups=2), nn.Flatten(), nn.Linear(12, 8), nn.Linear(8, 3)
        ),
        "groups=2",
    ),
    "shared": (lambda: nn.Sequential(twice, nn.ReLU(), twice, nn.Linear(6, 3)), "twice"),
    "frozen": (frozen, "unfreeze"),
    "flattened otherwise": (
        lambda: nn.Sequential(nn.Flatten(0), nn.Linear(6, 6), nn.Linear(6, 3)),
        "Flatten",
    ),
}


@pytest.mark.parametrize("name", GROWING)
@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_grown_is_refused_with_the_reason(case, name):
    build, reason = REFUSED[case]
    with pytest.raises(BackboneError, match=reason):
        create(name, build())


@pytest.mark.parametrize("name", ["pgn", "den", "rcl"])
def test_a_head_per_task_is_needed(name):
    with pytest.raises(BackboneError, match="head"):
        create(name, small_conv(), head=None)
