"""What all tests share: one thread, and small nets and data that learn in a blink."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, settings
from torch import Tensor, nn

# One thread: the same bits whatever the machine, and no fight over cores between test processes.
torch.set_num_threads(1)

settings.register_profile(
    "quick", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)
settings.load_profile("quick")

Pair = tuple[Tensor, Tensor]


def blobs(seed: int, classes: int = 3, rows: int = 60, shape: tuple[int, ...] = (6,)) -> Pair:
    """Return clouds of points around one centre per class: quick to learn, different by seed."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(classes, *shape, generator=generator)
    y = torch.arange(rows) % classes
    return centres[y] + 0.4 * torch.randn(rows, *shape, generator=generator), y


def small_mlp(seed: int = 0, outputs: int = 3) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 7), nn.Tanh(), nn.Linear(7, outputs)
        )


def small_conv(seed: int = 0, outputs: int = 3) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(36, 8),
            nn.ReLU(),
            nn.Linear(8, outputs),
        )


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture
def mlp() -> nn.Sequential:
    return small_mlp()


@pytest.fixture
def conv() -> nn.Sequential:
    return small_conv()
