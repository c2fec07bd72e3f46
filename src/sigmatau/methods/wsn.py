"""Winning SubNetworks: each task picks a share of one network's weights; what it used is frozen.

Weights and scores are trained together: `theta = W * m`, where m is 1 at the `share` of each
layer's weights with the largest |score|, straight-through backwards, and `dL/dW` is zero where an
earlier task's mask is 1. A task may use all earlier weights and change none of them, so nothing
is forgotten. The masks are entropy-coded in the file: as a Huffman code of bytes or a Rice code of
indices, of the mask itself or of its difference from the task before, whichever is least.

Kang, Mina, Madjid, Yoon, Hasegawa-Johnson, Hwang and Yoo, "Forget-free Continual Learning with
Winning Subnetworks", ICML 2022. Scores are carried on from task to task, as in the reference code;
they are kept beside the network, for learning only. Its networks have no biases: here biases and
normalisation are each task's own. It codes the masks of all tasks together, as one N-bit number a
weight; here a task is a record, and the difference from the one before catches what they share.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from sigmatau.core.codec import decode_indices, encode_indices
from sigmatau.data import Batches
from sigmatau.errors import FileError
from sigmatau.inspection import Facts
from sigmatau.methods.masks import (
    Masked,
    MaskedTask,
    MaskState,
    MaskTrainee,
    pack,
    straight_through,
    unpack,
)
from sigmatau.methods.patience import Patience, Patient, PatientSettings
from sigmatau.methods.registry import register
from sigmatau.methods.shared import Tensors
from sigmatau.training import Loss, Trainee

COUNT = 5  # bytes of a number of indices, of which a file holds at most 2**40


class WSNSettings(PatientSettings):
    """Settings of Winning SubNetworks."""

    share: float = Field(0.5, gt=0, le=1, description="share of a layer's weights a task uses (c)")
    carry: bool = Field(True, description="go on from the scores of the task before; they are kept")
    lr_patience: int = Field(6, ge=1, description="epochs to wait for a lower loss")
    lr_factor: float = Field(2.0, gt=1, description="what the rate is divided by after the wait")
    lr_min: float = Field(1e-6, ge=0, description="rate below which training ends")


class WSNTrainee(Patient, MaskTrainee):
    """A task in training: weights and scores together, with used weights held."""

    def __init__(
        self,
        module: nn.Module,
        loss: Loss,
        scores: Mapping[str, nn.Parameter],
        used: Mapping[str, Tensor],
        settings: WSNSettings,
    ) -> None:
        parameters = dict(module.named_parameters())
        self.shared = {name: parameters[name] for name in scores}
        self.free = {name: ~mask for name, mask in used.items()}
        self.edges = {name: Edge(settings.share) for name in scores}
        self.patience = Patience(settings)
        plain = [p for n, p in parameters.items() if p.requires_grad and n not in scores]
        # Decay would move frozen weights: only what is the task's own may have it.
        groups: list[dict[str, Any]] = [
            {"params": [*self.shared.values(), *scores.values()], "weight_decay": 0.0},
            {"params": plain, "weight_decay": settings.weight_decay},
        ]
        adam = torch.optim.Adam([g for g in groups if g["params"]], settings.lr, fused=True)
        super().__init__(module, loss, adam, scores)

    def mask(self, name: str) -> Tensor:
        return self.edges[name].above(self.scores[name].detach().abs())

    def thetas(self) -> dict[str, Tensor]:
        return {
            name: weight * straight_through(self.scores[name].abs(), self.mask(name))
            for name, weight in self.shared.items()
        }

    def step(self, lr: float) -> None:
        for name, free in self.free.items():
            grad = self.shared[name].grad
            if grad is not None:
                grad.mul_(free)
        super().step(lr)


@register("wsn")
class WSN(Masked):
    """One network, of which each task uses a part and freezes it."""

    name = "wsn"
    Settings = WSNSettings
    settings: WSNSettings
    published: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "permuted-mnist": {"epochs": 5, "batch_size": 10},
        "split-cifar100": {"epochs": 50, "batch_size": 64},
        "superclass-cifar100": {"epochs": 50, "batch_size": 64, "lr_min": 1e-5},
        "omniglot-rotation": {"epochs": 100, "batch_size": 64},
    }

    def _begin(self, state: MaskState, task: str, facts: Facts, criterion: Loss) -> Trainee:
        module = self._module(state, task, facts)
        drawn = torch.Generator().manual_seed(self._seed("scores", task))
        scores = {}
        for name, weight in state.shared.items():
            bound = (len(weight) / max(weight.numel(), 1)) ** 0.5  # as PyTorch draws weights
            new = torch.empty(weight.shape, dtype=weight.dtype)
            new.uniform_(-bound, bound, generator=drawn)
            scores[name] = nn.Parameter(state.beside.get(name, new).clone().to(weight.device))
        used = {}
        for name, weight in state.shared.items() if state.tasks else ():
            used[name] = torch.zeros_like(weight, dtype=torch.bool)
            for part in state.tasks.values():
                used[name] |= self._used(part, name, weight)
        return WSNTrainee(module, criterion, scores, used, self.settings)

    def _keep(
        self, state: MaskState, task: str, trainee: Trainee, train: Batches
    ) -> tuple[MaskState, float]:
        assert isinstance(trainee, WSNTrainee)
        shared = {name: weight.detach().clone() for name, weight in trainee.shared.items()}
        masks = {name: pack(trainee.mask(name)) for name in shared}
        scores = {name: score.detach().clone() for name, score in trainee.scores.items()}
        state = self._learnt(state, task, trainee.module, shared, masks)
        return replace(state, beside=scores if self.settings.carry else {}), self._growth(state)

    def _theta(self, task: MaskedTask, name: str, shared: Tensor) -> Tensor:
        if name not in self.common:
            return shared
        return shared * unpack(task.masks[name], shared)

    def _used(self, task: MaskedTask, name: str, shared: Tensor) -> Tensor:
        return unpack(task.masks[name], shared)

    def _coded(self, masks: Tensors, before: Tensors) -> Tensors:
        return {name: encode(mask, before.get(name)) for name, mask in masks.items()}

    def _decoded(self, masks: Tensors, before: Tensors) -> Tensors:
        sizes = {weight.name: (weight.size + 7) // 8 for weight in self.layout.weights}
        if masks.keys() != sizes.keys():
            raise FileError("is missing, or is of another network: restore the file from a copy")
        return {name: decode(masks[name], before.get(name), sizes[name]) for name in sizes}


class Edge:
    """Where the strongest share of scores begins, sought first near where it was the last time.

    In a step the edge moves little, so nearly all scores need a comparison and no sorting.
    """

    def __init__(self, share: float) -> None:
        self.share = share
        self.last = self.margin = torch.nan  # not seen yet: nothing lies within

    def above(self, scores: Tensor) -> Tensor:
        """Return where the strongest scores are; equal ones at the edge are all taken."""
        flat = scores.reshape(-1)
        rank = max(1, round(self.share * flat.numel()))
        edge = self._nearby(flat, rank)
        if edge is None:
            edge = flat.kthvalue(flat.numel() - rank + 1).values
        now = edge.item()
        self.margin, self.last = max(4 * abs(now - self.last), self.margin / 2), now
        return scores >= edge

    def _nearby(self, flat: Tensor, rank: int) -> Tensor | None:
        """Return the score of that rank if it lies within the margin of the last one."""
        low, high = self.last - self.margin, self.last + self.margin
        near = flat[(flat >= low) & (flat <= high)]
        rank -= int((flat > high).sum())
        return near.kthvalue(near.numel() - rank + 1).values if 0 < rank <= near.numel() else None


def encode(mask: Tensor, before: Tensor | None) -> Tensor:
    """Code a packed mask, by itself or as the difference from the mask of the task before.

    The first byte says which: 1 is added for a difference, 2 for indices instead of Huffman's code.
    """
    blobs = []
    for kind, bits in enumerate([mask] if before is None else [mask, mask ^ before]):
        packed = bits.cpu().numpy()
        coder = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS, 9, zlib.Z_HUFFMAN_ONLY)
        blobs.append(bytes([kind]) + coder.compress(packed.tobytes()) + coder.flush())
        ones = np.flatnonzero(np.unpackbits(packed, bitorder="little"))
        if ones.size < packed.size:  # where bytes are mostly 0, and Huffman needs a bit for each
            coded = encode_indices(ones, 8 * packed.size).tobytes()
            blobs.append(bytes([kind + 2]) + ones.size.to_bytes(COUNT, "little") + coded)
    return torch.frombuffer(bytearray(min(blobs, key=len)), dtype=torch.uint8)


def decode(blob: Tensor, before: Tensor | None, size: int) -> Tensor:
    """Undo `encode` for a mask of `size` bytes."""
    data = blob.cpu().numpy().tobytes()
    if not data or data[0] >= 4 or (data[0] % 2 and before is None):
        raise FileError("is coded in a way not known here: upgrade")
    if data[0] < 2:
        opened = zlib.decompressobj(-zlib.MAX_WBITS)
        try:
            raw = opened.decompress(data[1:], size + 1)
        except zlib.error as error:
            raise FileError(f"is damaged ({error}): restore the file from a copy") from error
        if len(raw) != size or not opened.eof or opened.unused_data:
            raise FileError("is of another length than its weight: restore the file from a copy")
        packed = np.frombuffer(raw, np.uint8).copy()
    else:
        if len(data) <= COUNT:
            raise FileError("is cut off: restore the file from a copy")
        count = int.from_bytes(data[1 : 1 + COUNT], "little")
        coded = np.frombuffer(data[1 + COUNT :], np.uint8)
        ones = np.zeros(8 * size, np.uint8)
        ones[decode_indices(coded, count, 8 * size)] = 1
        packed = np.packbits(ones, bitorder="little")
    mask = torch.from_numpy(packed)
    return mask if not data[0] % 2 or before is None else mask ^ before
