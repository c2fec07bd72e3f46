"""Networks of APD that have learnt something, in every variant."""

from __future__ import annotations

from torch import nn

import sigmatau

from ..conftest import blobs, small_mlp

QUICK = {"epochs": 10, "batch_size": 16, "lr": 2e-2}


IMAGE = (1, 6, 6)


VARIANTS: dict[str, dict[str, object]] = {
    "apd1": {"l1": 1e-3},
    "fixed": {"retroactive": "off"},
    "ewc": {"retroactive": "off", "penalty": "ewc", "fisher_samples": 30},
    "settled": {"l1": 1e-2, "l1_until": 0.5},
    "cut": {"l1": 1e-3, "l1_until": 0.5, "l1_cut": 1.0},
    "rising": {"l1": 1e-3, "l1_growth": 1.0},
    "apd2": {"consolidate_every": 2, "l1": 1e-3},
    "budget": {"budget": 0.6},
    "linked": {"budget": 0.6, "start": "last"},
    "linked-l1": {"l1": 2e-2, "l1_until": 0.5, "l1_cut": 2.0, "start": "last"},
    "no-mask": {"mask": False},
    "no-sparsity": {"sparse": False},
    "fixed-shared": {"shared": "fixed"},
    "gradient": {"retroactive": "gradient", "l1": 1e-3},
}


def learnt(*names: str, backbone: nn.Module | None = None, **settings: object) -> sigmatau.APDNet:
    """Return a network that has learnt tasks a, b, ... on blobs of its own for each name."""
    net = sigmatau.APDNet(backbone or small_mlp(), **{**QUICK, **settings})
    for name in names:
        net.learn(name, blobs(ord(name)), blobs(ord(name), rows=30))
    return net
