"""The walk through a network: what is found, and what is refused."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from sigmatau.core import layout
from sigmatau.core.layout import register_layer, walk
from sigmatau.errors import BackboneError

from ..conftest import small_conv, small_mlp


def test_weights_are_decomposed_and_the_rest_kept_per_task() -> None:
    found = walk(small_conv())
    assert [w.name for w in found.weights] == ["0.weight", "5.weight"]
    assert found.head == "7"
    assert found.head_parameters == ("7.weight", "7.bias")
    assert set(found.own) == {"0.bias", "1.weight", "1.bias", "5.bias"}
    assert set(found.buffers) == {"1.running_mean", "1.running_var", "1.num_batches_tracked"}
    assert found.size == sum(p.numel() for p in small_conv().parameters())
    assert found.trunk_size == found.size - 8 * 3 - 3
    weight = found.weights[0]
    assert (weight.channels, weight.broadcast(), weight.size) == (4, (4, 1, 1, 1), 36)


class Everything(nn.Module):
    """One of each kind of layer that is known from the start."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(20, 8)
        self.conv = nn.Conv1d(8, 8, 3, padding=1)
        self.up = nn.ConvTranspose1d(8, 6, 2)
        self.lstm = nn.LSTM(6, 5, batch_first=True)
        self.attention = nn.MultiheadAttention(5, 1, batch_first=True)
        self.volume = nn.Conv3d(1, 2, 1)
        self.norm = nn.LayerNorm(5)
        self.token = nn.Parameter(torch.zeros(5))
        self.fc = nn.Linear(5, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.up(self.conv(self.words(x).transpose(1, 2))).transpose(1, 2)
        h, _ = self.lstm(h)
        h, _ = self.attention(h, h, h)
        h = h + self.volume(h[:, None, None])[:, :1, 0].mean(1)
        return self.fc(self.norm(h.mean(1) + self.token))


def test_all_known_layers_are_found_with_their_output_dimension() -> None:
    dims = {w.name: w.out_dim for w in walk(Everything()).weights}
    assert dims == {
        "words.weight": 1,
        "conv.weight": 0,
        "up.weight": 1,
        "lstm.weight_ih_l0": 0,
        "lstm.weight_hh_l0": 0,
        "attention.in_proj_weight": 0,
        "attention.out_proj.weight": 0,
        "volume.weight": 0,
    }


class Odd(nn.Module):
    """A layer type that nobody knows."""

    def __init__(self) -> None:
        super().__init__()
        self.kernel = nn.Parameter(torch.randn(6, 6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.kernel


def test_what_cannot_be_decomposed_is_named_with_the_ways_out(monkeypatch) -> None:
    monkeypatch.setattr(layout, "_LAYERS", dict(layout._LAYERS))
    net = nn.Sequential(Odd(), nn.Linear(6, 4), nn.Linear(4, 2))
    with pytest.raises(BackboneError, match=r"0\.kernel \(Odd, 36 numbers\).*register_layer.*keep"):
        walk(net)
    assert "0.kernel" in walk(net, keep=["0.*"]).own
    net[0].kernel.requires_grad_(False)
    assert walk(net).fixed == ("0.kernel",)
    net[0].kernel.requires_grad_(True)
    register_layer(Odd, {"kernel": 1})
    assert walk(net).weights[0].out_dim == 1


def test_heads_found_named_or_none() -> None:
    net = small_mlp()
    assert walk(net).head == "4"
    assert walk(net, head="2").head == "2"
    whole = walk(net, head=None)
    assert whole.head is None
    assert [w.name for w in whole.weights] == ["0.weight", "2.weight", "4.weight"]
    with pytest.raises(BackboneError, match="'5'"):
        walk(net, head="5")


@pytest.mark.parametrize(
    ("net", "match"),
    [
        (nn.Sequential(nn.ReLU()), "no linear or convolutional layer"),
        (nn.Linear(3, 2), "nothing to decompose"),
        (nn.Sequential(nn.LazyLinear(3), nn.Linear(3, 2)), "lazy"),
    ],
)
def test_backbones_that_cannot_work(net: nn.Module, match: str) -> None:
    with pytest.raises(BackboneError, match=match):
        walk(net)


def test_a_head_must_not_share_its_weights() -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    net[2].weight = net[0].weight
    with pytest.raises(BackboneError, match="weights of its own"):
        walk(net)


def test_fingerprint_tells_networks_apart_but_not_their_heads() -> None:
    assert walk(small_mlp()).fingerprint() == walk(small_mlp(seed=9, outputs=7)).fingerprint()
    others = [small_conv(), small_mlp().double(), nn.Sequential(nn.Linear(6, 9), nn.Linear(9, 3))]
    assert walk(small_mlp()).fingerprint() not in {walk(net).fingerprint() for net in others}
