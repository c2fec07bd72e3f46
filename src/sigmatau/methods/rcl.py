"""Reinforced continual learning: a controller learns how many units a task adds to each layer.

For every task after the first, an LSTM goes up the layers and draws from a softmax how many units
each of them gets: 0 to `max_units`, or to a share of the layer. A child network with these units is
really trained, for `child_epochs`, while all older units are frozen, and the controller is paid

    R = validation accuracy - alpha * units added

and improved by REINFORCE, grad of (R - V(s)) * log p(units), with a value network V as baseline
that is fitted to R; the state s is how wide the layers are by now. After `trials` children the one
that was paid best is trained anew for `epochs` epochs, and its units are frozen for good. New units
read all older ones and no older one reads them (`columns.py`), so earlier tasks stay as they are,
to the bit. Where there are no labels or no validation data, the validation or the training loss,
times -1, takes the place of the accuracy.

The controller starts anew for every task and is not kept. In the paper the child that was paid best
is used as it is; here children may train for fewer epochs than the task, so the best one is trained
in full. A task cannot be forgotten, since later ones read its units.

Reference: Xu and Zhu 2018, Reinforced Continual Learning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import ClassVar, cast

import torch
from pydantic import Field
from torch import Tensor, nn

from sigmatau.data import Batches
from sigmatau.inspection import Facts
from sigmatau.methods.columns import ColumnMethod, Columns, ColumnState, ColumnTrainee
from sigmatau.methods.descent import PAPER, DescentSettings, descent
from sigmatau.methods.phases import Phased
from sigmatau.methods.registry import register
from sigmatau.scoring import scorer
from sigmatau.training import Loss, Trainee


class RCLSettings(DescentSettings):
    """Settings of reinforced continual learning."""

    trials: int = Field(10, ge=1, description="children trained for a task to teach the controller")
    child_epochs: int = Field(2, ge=1, description="epochs that a child is trained")
    max_units: int = Field(30, ge=0, description="most units that a task adds to a layer")
    max_share: float | None = Field(
        None, gt=0, description="instead of `max_units`: most units, of the backbone's"
    )
    alpha: float = Field(1e-4, ge=0, description="price of a unit, in validation accuracy")
    controller_lr: float = Field(1e-2, gt=0, description="learning rate of controller and value")
    controller_units: int = Field(100, ge=1, description="units of the controller's LSTM")


class Controller(nn.Module):
    """An LSTM that draws one number of units after the other, and a value network."""

    def __init__(self, most: Sequence[int], hidden: int, generator: torch.Generator) -> None:
        super().__init__()
        self.enter = nn.Linear(len(most), hidden)
        self.cell = nn.LSTMCell(hidden, hidden)
        self.outs = nn.ModuleList(nn.Linear(hidden, n + 1) for n in most)
        self.again = nn.ModuleList(nn.Embedding(n + 1, hidden) for n in most)
        self.value = nn.Sequential(nn.Linear(len(most), hidden), nn.Tanh(), nn.Linear(hidden, 1))
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.uniform_(-0.1, 0.1, generator=generator)

    def draw(self, state: Tensor, generator: torch.Generator) -> Tensor:
        """Draw how many units each layer gets."""
        with torch.no_grad():
            return self._walk(
                state, lambda _, odds: torch.multinomial(odds.exp(), 1, generator=generator)[0]
            )[0]

    def log_odds(self, state: Tensor, actions: Tensor) -> Tensor:
        """Return the logarithm of the odds of drawing `actions`."""
        return self._walk(state, lambda layer, _: actions[layer])[1]

    def _walk(
        self, state: Tensor, choose: Callable[[int, Tensor], Tensor]
    ) -> tuple[Tensor, Tensor]:
        step, memory = self.enter(state)[None], None
        actions, total = [], state.new_zeros(())
        for layer, (out, again) in enumerate(zip(self.outs, self.again, strict=True)):
            memory = self.cell(step, memory)
            odds = out(memory[0][0]).log_softmax(0)
            actions.append(choose(layer, odds))
            total = total + odds[actions[-1]]
            step = again(actions[-1])[None]
        return torch.stack(actions), total


class RCLTrainee(Phased, ColumnTrainee):
    """A task in training: child after child, and then the one that was paid best."""

    def __init__(
        self,
        child: Callable[[Sequence[int]], Columns],
        loss: Loss,
        settings: RCLSettings,
        controller: Controller,
        state: Tensor,
        seed: Callable[[int], int],
        score: Callable[[Trainee, Batches], float],
    ) -> None:
        self.child, self.settings, self.controller = child, settings, controller
        self.state, self.seed, self.score = state, seed, score
        self.widths = torch.zeros(len(state), dtype=torch.long)
        self.best = torch.zeros(len(state), dtype=torch.long)
        self.paid = torch.tensor(-torch.inf, dtype=torch.float64)
        lengths = [settings.child_epochs] * settings.trials + [settings.epochs]
        super().__init__(child(self.widths.tolist()), loss, None, lengths, settings.lr_decay)
        self.teacher = torch.optim.Adam(controller.parameters(), settings.controller_lr)
        # A step of zeros moves nothing, and makes the moments that a training cut off must restore.
        for parameter in controller.parameters():
            parameter.grad = torch.zeros_like(parameter)
        self.teacher.step()

    def enters(self, phase: int) -> None:
        if phase < self.settings.trials:
            drawn = torch.Generator().manual_seed(self.seed(phase))
            self.widths.copy_(self.controller.draw(self.state, drawn))
        else:
            self.widths.copy_(self.best)
        self._build()

    def rebuilds(self, phase: int, state: Mapping[str, Tensor]) -> None:
        self.widths.copy_(state["extra/widths"])
        self._build()

    def _build(self) -> None:
        known = self.module.known  # all children read the same frozen units
        self.module = self.child(self.widths.tolist())
        self.module.known = known
        self.optimizer = descent(self.module.newest.parameters(), self.settings)

    def ends_epoch(self, loss: float, val: Batches | None) -> None:
        phase, age = self.place(self.coming - 1)
        if phase < self.settings.trials and age == self.lengths[phase] - 1:
            score = -loss if val is None else self.score(self, val)
            reward = score - self.settings.alpha * int(self.widths.sum())
            self.teach(reward)
            if reward > self.paid:
                self.paid.fill_(reward)
                self.best.copy_(self.widths)

    def teach(self, reward: float) -> None:
        """Make what was paid better than expected likelier, and the expectation better."""
        expected = self.controller.value(self.state)[0]
        chance = self.controller.log_odds(self.state, self.widths)
        loss = (expected - reward) ** 2 - (reward - expected.detach()) * chance
        self.teacher.zero_grad()
        loss.backward()
        self.teacher.step()

    def extra(self) -> Iterator[tuple[str, Tensor]]:
        yield from (("widths", self.widths), ("best", self.best), ("paid", self.paid))
        for name, parameter in self.controller.named_parameters():
            yield f"controller/{name}", parameter
            for kind, moment in self.teacher.state[parameter].items():
                yield f"controller/{name}:{kind}", moment


@register("rcl")
class RCL(ColumnMethod):
    """Units added to each layer, as many as a controller has learnt to be worth it."""

    name = "rcl"
    Settings = RCLSettings
    settings: RCLSettings
    # The paper prints capacities; these shares lead to about the same.
    published: ClassVar = {
        **PAPER,
        "split-cifar100": {**PAPER["split-cifar100"], "max_share": 0.135},
        "superclass-cifar100": {**PAPER["superclass-cifar100"], "max_share": 0.07},
    }

    @property
    def _most(self) -> tuple[int, ...]:
        """The most units that each layer may get."""
        chosen, widths = self.settings, self.chain.widths
        if chosen.max_share is None:
            return (chosen.max_units,) * len(widths)
        return tuple(max(1, round(chosen.max_share * units)) for units in widths)

    def _plan(self, state: ColumnState) -> tuple[int, int]:
        chosen = self.settings
        search = chosen.trials * chosen.child_epochs if state.columns else 0
        return search + chosen.epochs, min(chosen.select_last, chosen.epochs)

    def _begin(self, state: ColumnState, task: str, facts: Facts, criterion: Loss) -> Trainee:
        links = tuple(state.columns)

        def child(widths: Sequence[int]) -> Columns:
            drawn = torch.Generator().manual_seed(self._seed("column", task))
            return self._grown(state, widths, links, cast(int, facts.outputs), drawn)

        chosen = self.settings
        if not links:
            module = child(self.chain.widths)
            optimizer = descent(module.newest.parameters(), chosen)
            return ColumnTrainee(module, criterion, optimizer)
        drawn = torch.Generator().manual_seed(self._seed("controller", task))
        controller = Controller(self._most, chosen.controller_units, drawn)
        wide = torch.tensor([column.widths for column in state.columns.values()]).sum(0)
        start = wide / torch.tensor(self.chain.widths)
        trainee = RCLTrainee(
            child,
            criterion,
            chosen,
            controller,
            start,
            seed=lambda trial: self._seed("trial", task, trial),
            score=scorer(facts.labels, criterion, None),
        )
        trainee.links = links
        return trainee
