"""HAT: hard attention to the task. Each task claims units, and what they need is held.

Every unit of a hidden layer has an embedding e per task and the attention `a = sigmoid(s * e)`,
which multiplies the unit's output. s rises from 1/smax to smax within an epoch, so attention can
still move in its beginning and is all but binary at its end. The gradient of a weight from unit j
to unit i is multiplied by `1 - min(c_i, c_j)`, with c the largest attention of the past tasks. The
loss is `L + lamb * sum(a * (1 - c)) / sum(1 - c)`: only units that are still free cost anything.
Since s multiplies the gradient of e, that is compensated by
`smax / s * (cosh(s e) + 1) / (cosh(e) + 1)`, with `s e` cut at 50 and e kept within 6.

Serra, Suris, Miron and Karatzoglou, "Overcoming Catastrophic Forgetting with Hard Attention to the
Task", ICML 2018; the settings are those of their code. HAT-Large is the same on a wider network.
Attention acts on the inputs of the next layer, which is after activation, dropout and pooling as
there, and is multiplied into that layer's weights, so that an exported network is a plain one.
Their networks have no normalisation: here its parameters and statistics are each task's own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from itertools import pairwise
from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from sigmatau.data import Batches
from sigmatau.errors import BackboneError, FileError
from sigmatau.inspection import Facts
from sigmatau.methods.hat_chain import NEEDS, find_chain, spread
from sigmatau.methods.masks import Masked, MaskedTask, MaskState, MaskTrainee
from sigmatau.methods.patience import Patience, Patient, PatientSettings
from sigmatau.methods.registry import register
from sigmatau.methods.shared import Tensors
from sigmatau.training import Loss, Trainee

COSH_MOST = 50.0  # cosh of more would overflow soon
EMBEDDING_MOST = 6.0  # sigmoid(6) is 1 but for 0.25 %: further out, e could hardly return


class HATSettings(PatientSettings):
    """Settings of HAT."""

    epochs: int = Field(200, ge=1, description="passes over a task's training data")
    batch_size: int = Field(64, ge=1, description="samples a step")
    lr: float = Field(0.05, gt=0, description="SGD's learning rate in the first epoch")
    lamb: float = Field(0.75, ge=0, description="price of attention to units that are still free")
    smax: float = Field(400.0, gt=1, description="how hard attention is at the end of an epoch")
    clip: float = Field(10000.0, gt=0, description="largest norm of the gradient")


class HATTrainee(Patient, MaskTrainee):
    """A task in training: embeddings and weights together; `past` is the attention so far."""

    def __init__(
        self,
        module: nn.Module,
        loss: Loss,
        order: Sequence[str],
        common: Sequence[str],
        past: Tensors,
        settings: HATSettings,
        drawn: torch.Generator,
    ) -> None:
        parameters = dict(module.named_parameters())
        self.shared = {name: parameters[name] for name in common}
        self.gated = {name: parameters[name] for name in order[1:]}
        self.sources = dict(pairwise(reversed(order)))
        self.settings, self.patience = settings, Patience(settings)
        self.past = past
        held = self.shared if past else {}
        self.held = {n: 1 - occupied(n, w, past, self.sources) for n, w in held.items()}
        embeddings = {
            name: nn.Parameter(
                torch.randn(len(parameters[name]), generator=drawn).to(parameters[name])
            )
            for name in order[:-1]
        }
        own = [p for n, p in parameters.items() if p.requires_grad and n not in self.shared]
        groups: list[dict[str, Any]] = [
            {"params": [*self.shared.values(), *embeddings.values()], "weight_decay": 0.0},
            {"params": own, "weight_decay": settings.weight_decay},
        ]
        sgd = torch.optim.SGD([g for g in groups if g["params"]], settings.lr)
        super().__init__(module, loss, sgd, embeddings)
        self.hardness = settings.smax

    def begins_batch(self, batch: int, batches: int) -> None:
        low, high = 1 / self.settings.smax, self.settings.smax
        self.hardness = low + (high - low) * min(batch / max(batches, 1), 1.0)

    def attention(self) -> dict[str, Tensor]:
        """Return the attention to each layer's units, hard unless in training."""
        s = self.hardness if self.module.training else self.settings.smax
        return {name: torch.sigmoid(s * e) for name, e in self.scores.items()}

    def thetas(self) -> dict[str, Tensor]:
        gates = self.attention()
        return {n: w * spread(gates[self.sources[n]], w) for n, w in self.gated.items()}

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return super().loss(x, y) + self.penalty()

    def penalty(self) -> Tensor:
        return self.settings.lamb * self.sparsity()

    def sparsity(self) -> Tensor:
        """Return the mean attention to what is free."""
        gates = self.attention()
        free = {name: 1 - self.past.get(name, torch.zeros_like(a)) for name, a in gates.items()}
        total = sum((f.sum() for f in free.values()), torch.zeros(()))
        paid = sum(((gates[n] * f).sum() for n, f in free.items()), torch.zeros(()))
        return paid / total if total > 0 else paid

    @torch.no_grad()
    def step(self, lr: float) -> None:
        smax, s = self.settings.smax, self.hardness
        for name, held in self.held.items():
            grad = self.shared[name].grad
            if grad is not None:
                grad.mul_(held)
        for e in self.scores.values():
            if e.grad is not None:
                hard = torch.cosh((s * e).clamp(-COSH_MOST, COSH_MOST)) + 1
                e.grad.mul_(smax / s * hard / (torch.cosh(e) + 1))
        trained = [*self.scores.values(), *self.module.parameters()]
        nn.utils.clip_grad_norm_(trained, self.settings.clip)
        super().step(lr)
        for e in self.scores.values():
            e.clamp_(-EMBEDDING_MOST, EMBEDDING_MOST)


@register("hat")
class HAT(Masked):
    """One network, of whose units each task claims some."""

    name = "hat"
    Settings = HATSettings
    settings: HATSettings
    published: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "hetero8": {"epochs": 200, "batch_size": 64, "lr": 0.05}
    }

    @property
    def common(self) -> tuple[str, ...]:
        weights = super().common
        biases = [n.removesuffix("weight") + "bias" for n in weights]
        return (*weights, *(n for n in biases if n in self.layout.own))

    def _order(self, masks: Tensors) -> list[str]:
        """Return the weights in the order of the layers, the head's at the end."""
        return [*masks, f"{self.layout.head}.weight"]

    def _begin(self, state: MaskState, task: str, facts: Facts, criterion: Loss) -> Trainee:
        if self.layout.head is None:
            raise BackboneError(f"{NEEDS}, and a head per task at its end: head=None has none")
        module = self._module(state, task, facts)
        layers = [n.rpartition(".")[0] for n in super().common]
        order = find_chain(module, [*layers, self.layout.head], facts.sample)
        attentions = [part.masks for part in state.tasks.values()]
        names = super().common if attentions else ()
        past = {n: reduce(torch.maximum, [a[n] for a in attentions]) for n in names}
        drawn = torch.Generator().manual_seed(self._seed("embeddings", task))
        weights = [f"{layer}.weight" for layer in order]
        return HATTrainee(module, criterion, weights, self.common, past, self.settings, drawn)

    def _keep(
        self, state: MaskState, task: str, trainee: Trainee, train: Batches
    ) -> tuple[MaskState, float]:
        assert isinstance(trainee, HATTrainee)
        trainee.module.eval()
        masks = {name: a.detach().clone() for name, a in trainee.attention().items()}
        shared = {name: weight.detach().clone() for name, weight in trainee.shared.items()}
        state = self._learnt(state, task, trainee.module, shared, masks)
        return state, self._growth(state)

    def _theta(self, task: MaskedTask, name: str, shared: Tensor) -> Tensor:
        source = dict(pairwise(reversed(self._order(task.masks)))).get(name)
        return shared if source is None else shared * spread(task.masks[source], shared)

    def _used(self, task: MaskedTask, name: str, shared: Tensor) -> Tensor:
        sources = dict(pairwise(reversed(self._order(task.masks))))
        return occupied(name, shared, task.masks, sources) > 0

    def _decoded(self, masks: Tensors, before: Tensors) -> Tensors:
        sizes = {weight.name: (weight.shape[0],) for weight in self.layout.weights}
        if {name: tuple(mask.shape) for name, mask in masks.items()} != sizes:
            raise FileError("is missing, or is of another network: restore the file from a copy")
        return masks


def occupied(name: str, tensor: Tensor, attention: Tensors, sources: Mapping[str, str]) -> Tensor:
    """Return how much of a weight or bias is claimed: the lesser attention of its two units."""
    layer, _, kind = name.rpartition(".")
    units = attention[f"{layer}.weight"]
    after = units.view(-1, *[1] * (tensor.ndim - 1)).expand_as(tensor)
    source = sources.get(name)
    if kind == "bias" or source is None:
        return after
    return torch.minimum(after, spread(attention[source], tensor))
