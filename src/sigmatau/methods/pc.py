"""Progress and compress: learn a task in a column of its own, then distil it into the one network.

Progress trains an active column, drawn anew for every task, that also reads the frozen base:

    h_l = f( W_l h_(l-1) + a_l * U_l relu(V_l h_(l-1)^base + c_l) + b_l )

V squeezes the base's activations (a 1x1 convolution before a convolution), U has the layer's own
kernel, a is a scale per unit that starts small. Compress then trains the base, and it alone, on

    KL(active(x) || base(x)) + strength/2 * sum of gamma F (theta - theta_before)^2

which is online EWC (`ewc.py`): F <- gamma F + F_task, each task's Fisher made 1 in the mean. After
that the base alone predicts and the column is thrown away. Both phases run for `epochs` epochs
each, those of the first task too. Heads are per task and not held.

Left out: the reinforcement learning side of the paper. Tasks without class labels are refused, as
both the divergence and the Fisher are those of class probabilities.

Reference: Schwarz et al. 2018, Progress & Compress.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import ClassVar, cast

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from sigmatau.data import Batches
from sigmatau.methods.chain import Chain, Stage, read_chain
from sigmatau.methods.descent import PAPER, descent
from sigmatau.methods.ewc import OnlineEWC, OnlineEWCSettings
from sigmatau.methods.known import Known
from sigmatau.methods.phases import Phased
from sigmatau.methods.registry import register
from sigmatau.methods.shared import SharedState, Tensors
from sigmatau.training import Loss, Trainee

PROGRESS, COMPRESS = 0, 1


class PCSettings(OnlineEWCSettings):
    """Settings of progress and compress."""

    strength: float = Field(1.0, ge=0, description="price of moving what past tasks depend on")
    adapter: float = Field(
        0.25, gt=0, description="units an adapter squeezes the base into, of those of its layer"
    )


class Adapter(nn.Module):
    """What a layer of the active column takes from the base: a * U relu(V h + c)."""

    def __init__(self, stage: Stage, share: float, generator: torch.Generator) -> None:
        super().__init__()
        held = stage.layer.weight
        inner = max(1, round(share * stage.units))
        shape = (held.shape[1], inner) if held.ndim == 2 else (held.shape[1], inner, 1)
        self.squeeze = nn.utils.skip_init(  # type: ignore[no-untyped-call]
            type(stage.layer), *shape, dtype=held.dtype
        )
        bring = torch.empty((stage.units, inner, *held.shape[2:]), dtype=held.dtype)
        self.bring = stage.with_weights(bring, None)
        self.scale = nn.Parameter(torch.empty((stage.units, *(1 for _ in held.shape[2:]))))
        with torch.no_grad():
            self.scale.uniform_(0, 0.1, generator=generator)
            for layer in (self.squeeze, self.bring):
                bound = layer.weight[0].numel() ** -0.5
                for parameter in layer.parameters():
                    parameter.uniform_(-bound, bound, generator=generator)
        self.to(held.device)

    def forward(self, h: Tensor) -> Tensor:
        out: Tensor = self.scale * self.bring(self.squeeze(h).relu())
        return out


class Pair(nn.Module):
    """The base and the active column; which of the two trains and answers depends on the phase.

    `chain` is the base as it was before the task, which the active column reads in both phases:
    what is distilled is what was learnt, whatever the base becomes meanwhile.
    """

    def __init__(
        self, base: nn.Module, chain: Chain, share: float, generator: torch.Generator
    ) -> None:
        super().__init__()
        self.base, self.chain, self.phase = base, chain, PROGRESS
        self.known = Known()
        self.start = chain.start()
        self.layers, self.tails = nn.ModuleList(), nn.ModuleList()
        self.adapters = nn.ModuleList()
        for i, stage in enumerate(chain.stages):
            below = stage.layer.weight.shape[1] // stage.fan
            self.layers.append(stage.drawn(stage.units, below, generator))
            self.tails.append(stage.follow(stage.units))
            if i:
                self.adapters.append(Adapter(stage, share, generator))

    def train(self, mode: bool = True) -> Pair:
        super().train(mode and self.phase == PROGRESS)
        self.base.train(mode and self.phase == COMPRESS)
        self.training = mode
        return self

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.active(x) if self.phase == PROGRESS else self.base(x)
        return out

    def active(self, x: Tensor) -> Tensor:
        """Return the outputs of the active column."""
        x, *known = self.known(x, self.before)
        h = self.start(x)
        for i, (layer, tail) in enumerate(zip(self.layers, self.tails, strict=True)):
            z = layer(h)
            if i:
                z = z + self.adapters[i - 1](known[i - 1])
            h = tail(z)
        return cast(Tensor, h)

    @torch.no_grad()
    def before(self, x: Tensor) -> list[Tensor]:
        """Return what each layer of the base but the first was given before the task."""
        known = []
        for _, module in self.chain.before:
            x = module(x)
        for stage in self.chain.stages[:-1]:
            x = stage.layer(x)
            for _, module in stage.tail:
                x = module(x)
            known.append(x)
        return known


class PCTrainee(Phased):
    """A task in training: first the active column, then the base."""

    module: Pair

    def __init__(
        self,
        module: Pair,
        loss: Loss,
        settings: PCSettings,
        anchors: Tensors,
        pull: Tensors,
    ) -> None:
        # Adam and SGD pass over what has no gradient, so one optimiser serves both phases.
        optimizer = descent(module.parameters(), settings)
        super().__init__(module, loss, optimizer, [settings.epochs] * 2, settings.lr_decay)
        live = dict(module.base.named_parameters())
        device = next(iter(live.values())).device  # what comes from a file may be elsewhere
        self.held = [
            (live[name], anchors[name].to(device), hold.to(device)) for name, hold in pull.items()
        ]
        self.taught = Known()

    def fed(self, data: Batches, scoring: bool = False) -> Batches:
        if self.module.phase == PROGRESS:
            return self.module.known.fed(data, self.module.before)
        return data if scoring else self.taught.fed(data, self._taught)

    def _taught(self, x: Tensor) -> list[Tensor]:
        return [F.log_softmax(self.module.active(x), 1)]

    def enters(self, phase: int) -> None:
        self.module.phase = phase

    def rebuilds(self, phase: int, state: Mapping[str, Tensor]) -> None:
        self.module.phase = phase

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        if self.module.phase == PROGRESS:
            return super().loss(x, y)
        with torch.no_grad():
            x, taught = self.taught(x, self._taught)
        learnt = F.log_softmax(self.module.base(x), 1)
        return F.kl_div(learnt, taught, reduction="batchmean", log_target=True)

    @torch.no_grad()
    def step(self, lr: float) -> None:
        if self.module.phase == COMPRESS:
            for weight, anchor, hold in self.held:
                assert weight.grad is not None
                # Divided as an implicit step would be, so that a firm hold does not overshoot.
                weight.grad.addcmul_(weight - anchor, hold).div_(1 + lr * hold)
        super().step(lr)


@register("pc")
class PC(OnlineEWC):
    """One network that every task is distilled into, held by online EWC."""

    name = "pc"
    Settings = PCSettings
    settings: PCSettings
    published: ClassVar = {
        **PAPER,
        "permuted-mnist": {"epochs": 1, "batch_size": 10, "weight_decay": 0.0},
    }

    def _fresh(self) -> SharedState:
        read_chain(self._backbone, self.layout.head, self.name)
        return super()._fresh()

    def _plan(self, state: SharedState) -> tuple[int, int]:
        epochs = self.settings.epochs
        return 2 * epochs, min(self.settings.select_last, epochs)

    def _trainee(
        self, state: SharedState, task: str, module: nn.Module, criterion: Loss
    ) -> Trainee:
        before = copy.deepcopy(module).eval()
        chain = read_chain(before, self.layout.head, self.name)
        drawn = torch.Generator().manual_seed(self._seed("active", task))
        pair = Pair(module, chain, self.settings.adapter, drawn).train()
        firmness = self.settings.strength * self.settings.gamma
        fisher = state.beside.get("fisher", {})
        pull = {name: firmness * hold for name, hold in fisher.items()}
        return PCTrainee(pair, criterion, self.settings, state.weights, pull)

    def _keep(
        self, state: SharedState, task: str, trainee: Trainee, train: Batches
    ) -> tuple[SharedState, float]:
        base = cast(Pair, trainee.module).base
        return super()._keep(state, task, Trainee(base, trainee.criterion, None), train)
