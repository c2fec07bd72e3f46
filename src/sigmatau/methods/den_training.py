"""A later task of DEN in training: four phases, each freeing some of the weights.

A weight that a phase does not free has its gradient set to zero under a new Adam, so it keeps its
bits. The penalties with corners are proximal steps in Adam's own metric, which make exact zeros.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import cast

import torch
from torch import Tensor, nn

from sigmatau.core.proximal import l1_prox_
from sigmatau.methods.chain import Chain, Layer, Part, Stage
from sigmatau.methods.den_settings import DENSettings
from sigmatau.methods.den_units import connected, drift, expanded, split, thinned
from sigmatau.methods.phases import Phased
from sigmatau.training import Loss

CONNECT, RETRAIN, EXPAND, SPLIT = range(4)
_BETA2, _EPS = 0.999, 1e-8


class DENTrainee(Phased):
    """A task in training. `old` are the layers as the last task left them; none: the first task."""

    module: nn.Sequential
    optimizer: torch.optim.Optimizer

    def __init__(
        self,
        chain: Chain,
        parts: Sequence[Part],
        old: Sequence[Part],
        loss: Loss,
        settings: DENSettings,
        seed: int,
    ) -> None:
        self.chain, self.old, self.settings, self.seed = chain, list(old), settings, seed
        self.selected = [torch.ones(p.units, dtype=torch.bool) for p in old]
        self.doubled = [torch.zeros(p.units, dtype=torch.bool) for p in old]
        self.reached = torch.tensor(torch.inf, dtype=torch.float64)
        lengths = settings.phases if old else (settings.epochs,)
        super().__init__(chain.assemble(parts), loss, None, lengths, settings.lr_decay)
        self._ready(CONNECT)

    # Phases

    def enters(self, phase: int) -> None:
        if not self.old:
            return
        parts, chosen = self.chain.read(self.module), self.settings
        if phase == RETRAIN:
            self._mark(self.selected, connected(parts))
        elif phase == EXPAND and float(self.reached) > chosen.loss_threshold:
            drawn = torch.Generator().manual_seed(self.seed)
            parts = expanded(self.chain, parts, chosen.by_layer(len(self.old)), drawn)
        elif phase == SPLIT:
            parts = thinned(parts, [p.units for p in self.old])
            far = [d.cpu() > chosen.split_threshold for d in drift(parts, self.old)]
            self._mark(self.doubled, far)
            parts = split(parts, self.old, far)
        self.module = self.chain.assemble(parts)
        self._ready(phase)

    def rebuilds(self, phase: int, state: Mapping[str, Tensor]) -> None:
        for name, live in self.extra():
            live.copy_(state[f"extra/{name}"])
        if self.old:
            units = [len(state[f"weight/{stage.key}.weight"]) for stage in self.chain.stages]
            self.module = self.chain.assemble(self.chain.blank(units))
            self._ready(phase)

    def ends_epoch(self, loss: float, val: object) -> None:
        self.reached.fill_(loss)

    def extra(self) -> Iterator[tuple[str, Tensor]]:
        yield "reached", self.reached
        for i, (selected, doubled) in enumerate(zip(self.selected, self.doubled, strict=True)):
            yield from ((f"selected{i}", selected), (f"doubled{i}", doubled))

    def _mark(self, held: Sequence[Tensor], found: Sequence[Tensor]) -> None:
        for mark, new in zip(held, found, strict=True):
            mark.copy_(new[: len(mark)])

    # What is free in a phase

    def _ready(self, phase: int) -> None:
        """Make the optimiser and the masks of a phase for the network as it is."""
        self.phase = phase
        trained = list(self.module.parameters())
        lr = self.settings.lr
        self.optimizer = torch.optim.Adam(trained, lr, (0.9, _BETA2), _EPS, fused=True)
        self.layers: list[tuple[Stage, Layer]] = [
            (stage, cast(Layer, self.module.get_submodule(stage.key)))
            for stage in self.chain.stages
        ]
        widths = [layer.weight.shape[0] for _, layer in self.layers[:-1]]
        self.grown = bool(self.old) and widths != [p.units for p in self.old]
        self.masks: dict[Tensor, Tensor] = {}
        lower: Tensor | None = None
        for i in range(len(self.old)):
            rows, columns = self._free(i, widths[i]), lower
            (stage, layer), lower = self.layers[i], self._active(i, widths[i])
            weight, shape = layer.weight, stage.shaped(layer.weight).shape
            reads = torch.ones(shape[1], dtype=torch.bool) if columns is None else columns
            if phase == EXPAND and self.grown:
                # Besides the new units, the old ones' connections to new units below.
                below = torch.arange(shape[1]) >= self.old[i].weight.shape[1]
                free = rows[:, None] | below[None]
            else:
                free = rows[:, None] & reads[None]
            mask = free[:, :, None].expand(shape).reshape(weight.shape)
            self.masks[weight] = mask.to(weight.device, weight.dtype)
            if layer.bias is not None:
                self.masks[layer.bias] = rows.to(weight.device, weight.dtype)
        for held in self.masks:  # while only the head trains, no gradient goes further down
            held.requires_grad_(phase != CONNECT)

    def _free(self, i: int, width: int) -> Tensor:
        """Return the units of a layer whose incoming weights train."""
        new = torch.arange(width) >= self.old[i].units
        if self.phase == CONNECT:
            return torch.zeros_like(new)
        if self.phase == EXPAND and self.grown:
            return new
        free = self._active(i, width)
        free[: self.old[i].units] &= ~self.doubled[i]
        return free

    def _active(self, i: int, width: int) -> Tensor:
        """Return the units of a layer that belong to the task's sub-network."""
        active = torch.ones(width, dtype=torch.bool)
        active[: self.old[i].units] = self.selected[i]
        return active

    # A step

    @torch.no_grad()
    def step(self, lr: float) -> None:
        chosen = self.settings
        expanding = self.phase == EXPAND and self.grown
        if self.old and self.phase != CONNECT and not expanding:
            for parameter in self.module.parameters():
                if parameter.grad is not None:
                    parameter.grad.add_(parameter, alpha=chosen.weight_decay)
            self._hold()
        for held, mask in self.masks.items():
            if held.grad is not None:
                held.grad.mul_(mask)
        super().step(lr)
        if not self.old:
            for _, layer in self.layers:
                self._shrink(layer.weight, lr)
        elif self.phase == CONNECT:
            self._shrink(self.layers[-1][1].weight, lr)
        elif expanding:
            for (stage, layer), was in zip(self.layers, self.old, strict=False):
                square = self._shrink(layer.weight, lr, self.masks[layer.weight])
                new, squares = (stage.shaped(t)[was.units :] for t in (layer.weight, square))
                _shrink_groups(new, squares, lr, chosen.group)

    def _hold(self) -> None:
        """Draw what is old to where it was, biases too: past tasks read them all."""
        for (stage, layer), was in zip(self.layers, self.old, strict=False):
            n, m = was.weight.shape[:2]
            assert layer.weight.grad is not None
            gone = stage.shaped(layer.weight)[:n, :m] - was.weight
            stage.shaped(layer.weight.grad)[:n, :m].add_(gone, alpha=2 * self.settings.drift)
            if layer.bias is not None and was.bias is not None:
                assert layer.bias.grad is not None
                layer.bias.grad[:n].add_(layer.bias[:n] - was.bias, alpha=2 * self.settings.drift)

    def _shrink(self, weight: Tensor, lr: float, mask: Tensor | None = None) -> Tensor:
        """Draw weights to zero by l1, in Adam's metric, and return its mean squares."""
        held = self.optimizer.state[weight]
        square: Tensor = held["exp_avg_sq"] / (1 - _BETA2 ** float(held["step"]))
        size = lr / square.sqrt().add_(_EPS)
        l1_prox_(weight.data, size if mask is None else size * mask, self.settings.l1, lr)
        return square


def _shrink_groups(rows: Tensor, squares: Tensor, lr: float, price: float) -> None:
    """Draw each row to zero as a group, with one step size for all of the row."""
    if rows.numel():
        norm = rows.flatten(1).norm(dim=1)
        size = lr / squares.flatten(1).mean(1).sqrt_().add_(_EPS)
        # At most twice what the optimiser can move it: a unit whose gradients are still zero does
        # not vanish at once, and yet a price too high for a unit always wins.
        reach = (size * price).clamp_(max=2 * lr * rows[0].numel() ** 0.5)
        rows.mul_((1 - reach / norm.clamp_min(1e-30)).clamp_(min=0)[:, None, None])
