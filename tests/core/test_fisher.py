"""The Fisher is the mean square of single gradients, however a network uses its weights."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from sigmatau.core import fisher
from sigmatau.core.fisher import CHUNK, diagonal_fisher

from ..conftest import blobs, small_conv


class Odd(nn.Module):
    """Linear layers used in every way but the plain one, and one that is used plainly."""

    def __init__(self) -> None:
        super().__init__()
        self.plain, self.twice, self.tokens = (nn.Linear(6, 6) for _ in range(3))
        self.beside, self.one, self.other = (nn.Linear(6, 6) for _ in range(3))
        self.other.weight = self.one.weight
        self.unused, self.held = nn.Linear(6, 6), nn.Linear(6, 6).requires_grad_(False)
        self.head, self.over = nn.Linear(6, 3), nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        h = self.over(self.plain(x))
        h = self.twice(torch.tanh(self.twice(h)))
        h = self.tokens(torch.stack([h, h + 1], 1)).mean(1)
        h = self.beside(h) + torch.tanh(h @ self.beside.weight)
        h = self.held(self.other(torch.tanh(self.one(h))))
        return self.head(h)


def by_hand(net: nn.Module, names: list[str], x: Tensor, cuts: list[slice]) -> dict[str, Tensor]:
    drawn = torch.Generator().manual_seed(3)
    total = {name: torch.zeros_like(net.get_parameter(name)) for name in names}
    count = sum(len(x[cut]) for cut in cuts)
    for cut in cuts:
        labels = torch.multinomial(net(x[cut]).softmax(1), 1, generator=drawn).squeeze(1)
        for row, label in zip(x[cut], labels, strict=True):
            net.zero_grad()
            torch.log_softmax(net(row[None]), 1)[0, label].backward()
            for name in names:
                grad = net.get_parameter(name).grad
                total[name] += 0 if grad is None else grad**2 / count
    return total


def test_it_is_the_mean_square_of_single_gradients() -> None:
    net, x = small_conv().eval(), blobs(1, shape=(1, 6, 6))[0]
    names = ["0.weight", "5.weight", "5.bias"]
    drawn = torch.Generator().manual_seed(3)
    found = diagonal_fisher(net, names, [x[:30], x[30:]], 50, drawn)
    expected = by_hand(net, names, x, [slice(0, 25), slice(25, 30), slice(30, 50)])
    for name in names:
        assert torch.allclose(found[name], expected[name], rtol=1e-4, atol=1e-9)
    assert not net.training


def test_it_is_so_however_layers_are_used() -> None:
    torch.manual_seed(0)
    net, x = Odd().eval(), blobs(1)[0][:50]
    names = [n for n, p in net.named_parameters() if p.requires_grad]
    found = diagonal_fisher(net, names, [x], 50, torch.Generator().manual_seed(3))
    expected = by_hand(net, names, x, [slice(0, CHUNK), slice(CHUNK, 50)])
    for name in names:
        torch.testing.assert_close(found[name], expected[name], rtol=1e-4, atol=1e-9, msg=name)
        assert (found[name].sum() > 0) == (not name.startswith("unused"))
    assert not any(m._forward_hooks for m in net.modules())
    held = diagonal_fisher(net, ["held.weight"], [x], 50, torch.Generator().manual_seed(3))
    assert held["held.weight"].sum() > 0  # a weight that does not train has one too


def test_only_weights_that_need_it_have_gradients_made_for_every_sample(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch.manual_seed(0)
    net, made = Odd(), []

    class Watched(fisher.Products):
        def of(self, loss: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
            pairs = super().of(loss)
            made.append(set(pairs))
            return pairs

    monkeypatch.setattr(fisher, "Products", Watched)
    names = [n for n, _ in net.named_parameters()]
    diagonal_fisher(net, names, [blobs(1)[0][:50]], 50, torch.Generator().manual_seed(3))
    assert made == [{"plain.weight", "head.weight"}] * 2
    assert net.training
