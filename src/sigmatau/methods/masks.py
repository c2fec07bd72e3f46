"""Methods whose tasks are masks over one set of weights: `theta_t = shared * mask_t`.

All that is alike in Piggyback, HAT and WSN. A method says which tensors the tasks share, how a
task's masks act on a weight (`_theta`), and which entries of the shared weights a task needs
(`_used`): what no task needs any more goes back to its start when a task is forgotten.
"""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from sigmatau.capacity import BESIDE
from sigmatau.core.container import Container, RawRecord, Record
from sigmatau.core.state import fit_head, fresh_head
from sigmatau.errors import FileError
from sigmatau.inspection import Facts
from sigmatau.methods.base import Method
from sigmatau.methods.shared import Tensors, dense
from sigmatau.training import Loss, Trainee


@dataclass(frozen=True)
class MaskedTask:
    """What one task keeps: masks, parameters and buffers of its own, and its head."""

    masks: Tensors
    own: Tensors
    head: Tensors


@dataclass(frozen=True)
class MaskState:
    """The shared weights, the tasks, and what is needed only to learn the next one."""

    shared: Tensors
    tasks: Mapping[str, MaskedTask] = field(default_factory=dict)
    beside: Tensors = field(default_factory=dict)


class MaskTrainee(Trainee):
    """A network whose weights are put together from shared ones and trainable mask scores."""

    def __init__(
        self,
        module: nn.Module,
        loss: Loss,
        optimizer: torch.optim.Optimizer,
        scores: Mapping[str, nn.Parameter],
    ) -> None:
        super().__init__(module, loss, optimizer)
        self.scores = scores

    @abstractmethod
    def thetas(self) -> dict[str, Tensor]:
        """Return the masked weights by name."""

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = torch.func.functional_call(self.module, self.thetas(), (x,))
        return out

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        yield from super().weights()
        yield from ((f"{name}:score", score) for name, score in self.scores.items())


class Masked(Method[MaskState]):
    """One set of weights, and masks per task."""

    can_forget = True

    @property
    def common(self) -> tuple[str, ...]:
        """The tensors that all tasks share."""
        return tuple(weight.name for weight in self.layout.weights)

    @property
    def private(self) -> tuple[str, ...]:
        """The tensors, besides the head, of which each task may have its own."""
        return tuple(n for n in (*self.layout.own, *self.layout.buffers) if n not in self.common)

    @abstractmethod
    def _theta(self, task: MaskedTask, name: str, shared: Tensor) -> Tensor:
        """Return a shared tensor under the masks of a task."""

    @abstractmethod
    def _used(self, task: MaskedTask, name: str, shared: Tensor) -> Tensor:
        """Return which entries of a shared tensor the task needs, as booleans."""

    def _coded(self, masks: Tensors, before: Tensors) -> Tensors:
        """Return masks as they go into the file, given those of the task before."""
        return masks

    def _decoded(self, masks: Tensors, before: Tensors) -> Tensors:
        """Undo `_coded`, and refuse what does not fit the network."""
        return masks

    # Learning

    def _module(self, state: MaskState, task: str, facts: Facts) -> nn.Module:
        """Return a network to train: shared weights, the rest as the oldest task has it, a head."""
        module = copy.deepcopy(self._backbone).train()
        oldest = next((part.own for part in state.tasks.values()), {})
        with torch.no_grad():
            live = _live(module)
            for name, tensor in {**oldest, **state.shared}.items():
                live[name].copy_(tensor)
        if self.layout.head is not None and facts.outputs is not None:
            drawn = torch.Generator().manual_seed(self._seed("head", task))
            fresh_head(module, self.layout.head, facts.outputs, drawn)
        return module

    def _learnt(
        self, state: MaskState, task: str, module: nn.Module, shared: Tensors, masks: Tensors
    ) -> MaskState:
        """Return the state with a task added, which keeps all of its own but constant buffers."""
        live = {name: tensor.detach().clone() for name, tensor in _live(module).items()}
        base = {**dict(self._backbone.named_buffers()), **shared}
        own = {
            n: live[n] for n in self.private if n not in base or not torch.equal(live[n], base[n])
        }
        head = {n: live[n] for n in self.layout.head_parameters}
        return replace(
            state, shared=shared, tasks={**state.tasks, task: MaskedTask(masks, own, head)}
        )

    def _growth(self, state: MaskState) -> float:
        """Return what the latest task's masks and own tensors add; 32 bits make a number."""
        *_, before, part = (MaskedTask({}, {}, {}), *state.tasks.values())
        bits = sum(m.nbytes / 4 for m in self._coded(part.masks, before.masks).values())
        return (bits + sum(t.numel() for t in part.own.values())) / self.layout.size

    # Using

    @torch.no_grad()
    def _compose(self, state: MaskState, task: str, module: nn.Module) -> nn.Module:
        part, live, base = state.tasks[task], _live(module), _live(self._backbone)
        for name in (*self.common, *self.private):
            if name in part.own:
                live[name].copy_(part.own[name])
            elif name in state.shared:
                live[name].copy_(self._theta(part, name, state.shared[name]))
            else:
                live[name].copy_(base[name])
        if self.layout.head is not None:
            head = {n: self._theta(part, n, t) for n, t in part.head.items()}
            fit_head(module, self.layout.head, {n.rpartition(".")[2]: t for n, t in head.items()})
        return module

    def _drop(self, state: MaskState, task: str) -> MaskState:
        tasks = {name: part for name, part in state.tasks.items() if name != task}
        start = self._fresh()
        if not tasks:
            return start
        shared = {}
        for name, tensor in state.shared.items():
            used = torch.zeros_like(tensor, dtype=torch.bool)
            for part in tasks.values():
                used |= self._used(part, name, tensor)
            shared[name] = torch.where(used, tensor, start.shared[name])
        return replace(start, shared=shared, tasks=tasks)

    def _fresh(self) -> MaskState:
        live = _live(self._backbone)
        return MaskState({name: live[name].detach().clone() for name in self.common})

    def _records(self, state: MaskState) -> tuple[dict[str, Record | RawRecord], dict[str, Any]]:
        records: dict[str, Record | RawRecord] = {}
        if state.tasks:
            records["shared"] = dict(state.shared)
        before: Tensors = {}
        for task, part in state.tasks.items():
            kinds = {"mask": self._coded(part.masks, before), "own": part.own, "head": part.head}
            records[f"task/{task}"] = {
                f"{kind}/{name}": t for kind, held in kinds.items() for name, t in held.items()
            }
            before = part.masks
        if state.beside:
            records[BESIDE + "scores"] = dict(state.beside)
        return records, {"beside": bool(state.beside)}

    def _restore(
        self, source: Container, meta: Mapping[str, Any], tasks: Sequence[str]
    ) -> MaskState:
        fresh = self._fresh()
        if not tasks:
            return fresh
        shared = dense(source, "shared")
        self._fits(source, shared, dict.fromkeys(self.common))
        parts, before = {}, cast(Tensors, {})
        for task in tasks:
            kinds: dict[str, dict[str, Tensor]] = {"mask": {}, "own": {}, "head": {}}
            for key, tensor in dense(source, f"task/{task}").items():
                kind, _, name = key.partition("/")
                if kind not in kinds:
                    raise FileError(f"{source.path} holds {key!r}, not known here: upgrade")
                kinds[kind][name] = tensor
            wanted = [n for n in self.private if n in kinds["own"] or n in self.layout.own]
            self._fits(source, kinds["own"], dict.fromkeys(wanted))
            rows = next((len(t) for t in kinds["head"].values() if t.ndim), 0)
            self._fits(source, kinds["head"], dict.fromkeys(self.layout.head_parameters, rows))
            try:
                before = self._decoded(kinds["mask"], before)
            except FileError as error:
                raise FileError(f"{source.path}: a mask of {task!r} {error}") from error
            parts[task] = MaskedTask(before, kinds["own"], kinds["head"])
        beside = dense(source, BESIDE + "scores") if meta["beside"] else {}
        self._fits(source, beside, dict.fromkeys(beside))
        return MaskState(shared, parts, beside)

    def _fits(self, source: Container, found: Tensors, wanted: Mapping[str, int | None]) -> None:
        """Refuse tensors that are not of the network; `wanted` may give the number of rows."""
        shapes = {**self.layout.shapes, **self.layout.buffers}
        for name in found.keys() | wanted.keys():
            shape = shapes.get(name, ())
            if wanted.get(name) is not None:
                shape = (wanted[name] or 0, *shape[1:])
            if name not in found or name not in wanted or tuple(found[name].shape) != shape:
                raise FileError(f"{source.path}: {name!r} does not fit the network")


def pack(mask: Tensor) -> Tensor:
    """Return a boolean tensor as bytes of eight bits."""
    return torch.from_numpy(np.packbits(mask.cpu().numpy().reshape(-1), bitorder="little"))


def unpack(packed: Tensor, like: Tensor) -> Tensor:
    """Undo `pack` for a mask of the shape of `like`."""
    if packed.dtype != torch.uint8 or packed.shape != ((like.numel() + 7) // 8,):
        raise FileError("does not fit the network: restore the file from a copy")
    bits = np.unpackbits(packed.cpu().numpy(), count=like.numel(), bitorder="little")
    return torch.from_numpy(bits).bool().view(like.shape).to(like.device)


def straight_through(scores: Tensor, mask: Tensor) -> Tensor:
    """Return `mask`, to the bit, with the gradient of `scores`."""
    return mask.to(scores.dtype) + (scores - scores.detach())


def _live(module: nn.Module) -> dict[str, Tensor]:
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}
