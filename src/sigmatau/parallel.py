"""One training in several processes, or in mixed precision, through Lightning Fabric.

All processes run the same code on the same data from the same seeds, and so hold the same network
at all times: any method works as it is. What they share is the work of a batch. Each takes some of
its rows, and before the step the gradients are averaged into those of the whole batch.

`Fabric.setup` is not used: it wraps a network and an optimiser, and reduces the gradients of the
wrapped network's own forward pass. Here a trainee's `loss` may run its network in ways of its own
and its `step` is more than an optimiser's, so gradients are reduced by hand between the two.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import reduce
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn

from sigmatau.errors import ConfigError
from sigmatau.training import Trainee

if TYPE_CHECKING:
    from lightning_fabric import Fabric


class Together:
    """Computes the gradients of a batch together with the other processes of a `Fabric`."""

    def __init__(self, fabric: Fabric, device: torch.device) -> None:
        try:
            precision, there = fabric.strategy.precision.precision, fabric.device
        except AttributeError:
            raise ConfigError(f"fabric must be a lightning_fabric.Fabric, not {fabric!r}") from None
        if precision not in ("32-true", "bf16-mixed"):
            raise ConfigError(
                f"precision {precision!r} is not supported: use 32-true, or bf16-mixed, which "
                "keeps weights and steps in single precision and needs no scaling of the loss"
            )
        if there != device:
            raise ConfigError(
                f"the network is on {device}, Fabric on {there}: make the network of "
                "fabric.to_device(backbone)"
            )
        self.fabric, self.device, self.checked = fabric, device, False

    def gradients(self, trainee: Trainee, x: Tensor, y: Tensor) -> float:
        """Leave the gradients of a batch in the trainee, and return its loss, alike everywhere."""
        if self.fabric.world_size == 1:
            return self._own(trainee, x, y)
        if not self.checked:
            self._check(trainee, x, y)
        mine = self._share(len(x))
        weight, value = (mine.stop - mine.start) / len(x), 0.0
        buffers = [b for b in trainee.module.buffers() if b.dtype != torch.bool]
        before = [buffer.clone() for buffer in buffers]
        with self._own_randomness():
            if weight:
                value = self._own(trainee, x[mine], y[mine])
        return self._agree(trainee, weight, value, buffers, before)

    def _own(self, trainee: Trainee, x: Tensor, y: Tensor) -> float:
        with self.fabric.autocast():
            loss = trainee.loss(x, y)
        loss.backward()  # type: ignore[no-untyped-call]
        return float(loss.detach())

    def _share(self, rows: int) -> slice:
        """Return the rows of this process; none, if there are too few of them for all."""
        # Two rows each at least: batch normalisation cannot train on one.
        takers, rank = max(1, min(self.fabric.world_size, rows // 2)), self.fabric.global_rank
        if rank >= takers:
            return slice(0, 0)
        return slice(rows * rank // takers, rows * (rank + 1) // takers)

    @contextlib.contextmanager
    def _own_randomness(self) -> Iterator[None]:
        """Let dropout differ from process to process, and leave the random state the same in all.

        It must not depend on how many rows a process had, or a training taken up again from the
        state that one process saved would go another way.
        """
        seed = int(torch.randint(1 << 62, ()))
        devices = [self.device] if self.device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices):
            torch.manual_seed(seed + self.fabric.global_rank)
            yield

    @torch.no_grad()
    def _agree(
        self,
        trainee: Trainee,
        weight: float,
        value: float,
        buffers: list[Tensor],
        before: list[Tensor],
    ) -> float:
        """Average gradients, buffers and loss by rows, in one message."""
        trained = _trained(trainee)
        dtype = reduce(torch.promote_types, (p.dtype for p in trained), torch.float32)
        there = [p.grad is not None for p in trained]
        grads = [torch.zeros_like(p) if p.grad is None else p.grad * weight for p in trained]
        # How buffers moved, such as running statistics: one that did not keeps its very bits.
        moves = [
            (new.to(dtype) - old.to(dtype)) * weight
            for new, old in zip(buffers, before, strict=True)
        ]
        facts = torch.tensor([*there, value * weight], dtype=dtype, device=self.device)
        parts = [*grads, *moves, facts]
        flat = torch.cat([part.reshape(-1).to(dtype) for part in parts])
        flat = cast(Tensor, self.fabric.all_reduce(flat, reduce_op="sum"))
        parts = list(torch.split(flat, [part.numel() for part in parts]))
        *found, mean = parts.pop().tolist()
        for parameter, known in zip(trained, found, strict=True):
            # A parameter that took no part anywhere has no gradient: optimisers pass over it.
            part = parts.pop(0).view_as(parameter).to(parameter.dtype)
            parameter.grad = part if known else None
        for buffer, old, move in zip(buffers, before, parts, strict=True):
            whole = move if buffer.is_floating_point() else move.round()
            buffer.copy_(old + whole.view_as(old).to(old.dtype))
        return float(mean)

    def _check(self, trainee: Trainee, x: Tensor, y: Tensor) -> None:
        """See once that all processes begin with the same network and the same batch."""
        tensors = [x, y, *(tensor for _, tensor in trainee.weights())]
        told = torch.zeros(self.fabric.world_size, len(tensors), dtype=torch.float64)
        told[self.fabric.global_rank] = torch.stack([t.detach().double().sum() for t in tensors])
        told = cast(Tensor, self.fabric.all_reduce(told.to(self.device), reduce_op="sum"))
        if not torch.allclose(told, told[:1], rtol=1e-6, atol=0, equal_nan=True):
            raise ConfigError(
                "the processes do not have the same network and data: seed all of them alike "
                "before the network is built (fabric.seed_everything(0)), and give each of them "
                "all of the data, as its batches are shared out here"
            )
        self.checked = True


def _trained(trainee: Trainee) -> list[nn.Parameter]:
    """Return all parameters that may have a gradient, in the same order in every process."""
    groups = [] if trainee.optimizer is None else trainee.optimizer.param_groups
    stepped = [p for group in groups for p in group["params"]]
    found = dict.fromkeys([*trainee.module.parameters(), *stepped])
    return [p for p in found if p.requires_grad]
