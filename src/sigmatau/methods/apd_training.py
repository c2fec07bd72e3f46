"""A later task of APD in training: the closed form, and the gradient form beside it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from sigmatau.core.budget import ROUNDS, allowance, strongest
from sigmatau.core.learner import Decomposed
from sigmatau.core.retroactive import PastTasks, past_objective
from sigmatau.core.sparse import Sparse
from sigmatau.methods.apd_settings import APDSettings
from sigmatau.training import Loss, Trainee


class APDTrainee(Trainee):
    """A later task in training: decomposed weights beside biases, normalisation and head."""

    def __init__(
        self,
        module: nn.Module,
        loss: Loss,
        weights: Sequence[Decomposed],
        settings: APDSettings,
        entries: int | None,
    ) -> None:
        inside = {id(w.theta) for w in weights}
        plain = [p for p in module.parameters() if p.requires_grad and id(p) not in inside]
        logits = [w.logit for w in weights if w.logit is not None]
        groups: list[dict[str, Any]] = [
            {"params": plain, "weight_decay": settings.weight_decay},
            {"params": logits, "weight_decay": 0.0},
        ]
        optimizer = torch.optim.Adam([g for g in groups if g["params"]], settings.lr, fused=True)
        super().__init__(module, loss, optimizer)
        self.decomposed, self.settings, self.entries = weights, settings, entries
        self.count = torch.zeros((), dtype=torch.int64)
        self.rounds = torch.zeros((), dtype=torch.int64)
        self.epoch, self.epochs = 0, 1

    def begins_epoch(self, epoch: int, epochs: int) -> None:
        for weight in self.decomposed:
            weight.refresh()
        self.epoch, self.epochs = epoch, epochs
        if epoch >= self.settings.l1_until * epochs:
            # l1 has chosen. What it kept it also shrank: the rest of the training makes that good.
            self._settle(epoch)

    def _settle(self, epoch: int) -> None:
        chosen = self.settings
        least = chosen.l1_cut * chosen.lr * chosen.lr_decay**epoch
        for weight in self.decomposed:
            weight.settle(chosen.price, least)

    def resumes(self, state: Mapping[str, Tensor]) -> None:
        if any(name.endswith(":support") for name in state):
            self._settle(0)

    def begins_batch(self, batch: int, batches: int) -> None:
        if self.entries is None or int(self.rounds) == ROUNDS:
            return
        # By the end of this batch, so that the training's very last batch sees the budget met.
        done = (self.epoch + (batch + 1) / max(batches, batch + 1)) / self.epochs
        if int(self.count) == 0 and done < 1:
            return  # there is nothing yet to choose from
        due = min(int(ROUNDS * done / self.settings.budget_settled), ROUNDS)
        if due > int(self.rounds):
            self.rounds.fill_(due)
            size = sum(weight.weight.size for weight in self.decomposed)
            self._cut_back(allowance(due, size, self.entries))

    @property
    def selectable(self) -> bool:
        if self.settings.l1_cut and self.epoch < self.epochs - 1:
            return self.epoch >= self.settings.l1_until * self.epochs
        return self.entries is None or int(self.rounds) == ROUNDS

    def _cut_back(self, entries: int) -> None:
        masks = strongest([w.strength() for w in self.decomposed], entries)
        for weight, support in zip(self.decomposed, masks, strict=True):
            assert weight.support is not None
            weight.support.copy_(support)
            weight.delta.mul_(support)
            weight.compose()

    def step(self, lr: float) -> None:
        for weight in self.decomposed:
            weight.mask_gradient()
        super().step(lr)
        self.count += 1
        for weight in self.decomposed:
            weight.step(int(self.count), lr, self.settings.price, self.settings.weight_decay)

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        inside = {w.weight.name for w in self.decomposed}
        for name, tensor in self.module.state_dict(keep_vars=True).items():
            if name not in inside:
                yield name, tensor
        for weight in self.decomposed:
            for part, tensor in weight.parts():
                yield f"{weight.weight.name}:{part}", tensor

    def extra(self) -> Iterator[tuple[str, Tensor]]:
        yield "count", self.count
        yield "rounds", self.rounds
        for weight in self.decomposed:
            for part, tensor in weight.moments():
                yield f"{weight.weight.name}:{part}", tensor

    def restored(self) -> None:
        for weight in self.decomposed:
            weight.compose()


class ReferenceTrainee(Trainee):
    """The plain gradient form: all past deltas are dense and trained along.

    Cost and memory grow with the number of tasks. It is what the closed form is tested against.
    """

    def __init__(
        self,
        module: nn.Module,
        loss: Loss,
        shared: Mapping[str, Tensor],
        past: Mapping[str, PastTasks],
        settings: APDSettings,
    ) -> None:
        self.past, self.settings, self.before = past, settings, shared
        self.shared = {n: nn.Parameter(t.clone(), settings.moves) for n, t in shared.items()}
        self.delta = {n: nn.Parameter(torch.zeros_like(t)) for n, t in shared.items()}
        self.logit = {
            n: nn.Parameter(shared[n].new_full((p.weight.channels,), settings.mask_start))
            for n, p in past.items()
            if settings.mask
        }
        self.old = {n: [nn.Parameter(d.dense()) for d in p.deltas] for n, p in past.items()}
        plain = [
            p for n, p in module.named_parameters() if p.requires_grad and n not in self.shared
        ]
        moved = [p for p in self.shared.values() if p.requires_grad]
        free = [*moved, *self.logit.values(), *(d for ds in self.old.values() for d in ds)]
        groups: list[dict[str, Any]] = [
            {"params": plain, "weight_decay": settings.weight_decay},
            {"params": [*free, *self.delta.values()]},
        ]
        super().__init__(module, loss, torch.optim.Adam(groups, settings.lr))

    def theta(self, name: str, cut: bool) -> Tensor:
        delta = self._cut(self.delta[name]) if cut else self.delta[name]
        if name not in self.logit:
            return self.shared[name] + delta
        mask = torch.sigmoid(self.logit[name]).view(self.past[name].weight.broadcast())
        return self.shared[name] * mask + delta

    def _cut(self, delta: Tensor) -> Tensor:
        return delta * (delta.abs() > self.settings.price)

    def forward(self, x: Tensor) -> Tensor:
        cut = not self.module.training
        thetas = {name: self.theta(name, cut) for name in self.shared}
        out: Tensor = torch.func.functional_call(self.module, thetas, (x,))
        return out

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        total = super().loss(x, y)
        for name, past in self.past.items():
            decay = self.settings.weight_decay / 2 * self.theta(name, False).square().sum()
            total = total + decay + self.settings.price * self.delta[name].abs().sum()
            total = total + past_objective(
                self.shared[name], self.before[name], past, list(self.old[name])
            )
        return total

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        for name, tensor in self.module.state_dict(keep_vars=True).items():
            if name not in self.shared:
                yield name, tensor
        for kind, tensors in (("shared", self.shared), ("delta", self.delta), ("v", self.logit)):
            yield from ((f"{name}:{kind}", tensor) for name, tensor in tensors.items())
        for name, olds in self.old.items():
            yield from ((f"{name}:old{i}", tensor) for i, tensor in enumerate(olds))

    def outcome(
        self,
    ) -> tuple[dict[str, Tensor], dict[str, Sparse], dict[str, Tensor], list[dict[str, Sparse]]]:
        """Return shared weights, the new task's deltas and masks, and the past tasks' deltas."""
        count = len(next(iter(self.old.values())))
        return (
            {n: t.detach().clone() for n, t in self.shared.items()},
            {n: Sparse.from_dense(self._cut(t)) for n, t in self.delta.items()},
            {n: torch.sigmoid(t.detach()) for n, t in self.logit.items()},
            [
                {n: Sparse.from_dense(self._cut(olds[i])) for n, olds in self.old.items()}
                for i in range(count)
            ],
        )
