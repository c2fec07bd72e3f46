"""Additive parameter decomposition: `theta_t = shared * mask_t + delta_t`, with a sparse delta.

The first task trains the shared weights; each later one learns a mask, a sparse delta and what it
takes of the shared weights' freedom, while past tasks are kept where they are by a closed form
(`core.retroactive`). APD-Fixed, APD(1), APD(2), the paper's ablations and the growth budget are
settings of this one class.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, cast

import numpy as np
import torch
from torch import Tensor, nn

from sigmatau.core.archive import from_records, to_records
from sigmatau.core.consolidate import consolidate
from sigmatau.core.container import Container, RawRecord, Record
from sigmatau.core.fisher import diagonal_fisher
from sigmatau.core.layout import Weight
from sigmatau.core.learner import Decomposed
from sigmatau.core.retroactive import PastTasks, SharedPenalty, far, rewrite
from sigmatau.core.sparse import Sparse
from sigmatau.core.state import APDState, Lazy, TaskPart, fresh_head
from sigmatau.data import Batches
from sigmatau.errors import ConfigError, DataError
from sigmatau.inspection import Facts
from sigmatau.methods.apd_settings import APDSettings
from sigmatau.methods.apd_training import APDTrainee, ReferenceTrainee
from sigmatau.methods.base import Method
from sigmatau.methods.descent import PAPER
from sigmatau.methods.registry import register
from sigmatau.training import Loss, Trainee


@register("apd-fixed", retroactive="off")
@register("apd1")
@register("apd2", consolidate_every=5)
class APDNet(Method[APDState]):
    """Any network, made to learn task after task by additive parameter decomposition.

        net = APDNet(backbone, budget=0.03)
        net.learn("birds", (x, y))
        net.predict("birds", x)

    `backbone` is copied, never changed. Its last linear or convolutional layer is the head, of
    which every task gets its own, unless `head` names another (None: there is none). Large
    parameters that cannot be decomposed are refused unless `keep` (patterns of names) says to keep
    them whole per task. All other arguments are settings, listed in `APDSettings`.
    """

    name = "apd"
    Settings = APDSettings
    settings: APDSettings
    can_forget = True
    # The middle ones where the paper names several (Yoon et al. 2020).
    published: ClassVar = {
        "split-cifar100": {**PAPER["split-cifar100"], "l1": 4e-4, "beta": 1e-2},
        "superclass-cifar100": {**PAPER["superclass-cifar100"], "l1": 4e-4, "beta": 1e-2},
        "omniglot-rotation": {
            **PAPER["omniglot-rotation"],
            "l1": 4e-4,
            "groups": 3,
            "beta": 1e-4,
        },
        "permuted-mnist": {"epochs": 1, "batch_size": 10, "l1": 1e-4, "l2": 0.1},
        "mnist-variation": {**PAPER["mnist-variation"], "l1": 2e-4},
    }
    replaces: ClassVar = {"budget": "l1", "sparse": "l1"}

    def _fresh(self) -> APDState:
        # Copied when first used: a network that is loaded never needs it.
        parameters = dict(self._backbone.named_parameters())
        initial = {w.name: parameters[w.name].detach() for w in self.layout.weights}
        return APDState(
            Lazy(fetch=lambda: {name: t.clone() for name, t in initial.items()}),
            linked=self.settings.start == "last",
        )

    def consolidate(self) -> None:
        """Group the tasks' deltas now, whatever `consolidate_every` says."""
        if self.settings.start == "last":
            raise ConfigError("with start='last' tasks share what they have in common already")
        with self._lock:
            self._memory = replace(self._memory, state=self._grouped(self._memory.state))

    # Learning

    def _begin(self, state: APDState, task: str, facts: Facts, criterion: Loss) -> Trainee:
        if self.settings.penalty == "ewc" and not facts.labels:
            raise DataError(
                "penalty='ewc' needs class labels: how much a weight matters is read from class "
                "probabilities. Use penalty='l2' for a loss of your own"
            )
        module = copy.deepcopy(self._backbone).train()
        if state.tasks:
            # Biases and normalisation start where the weights do. The shared ones come from the
            # oldest task.
            start = list(state.tasks)[-1 if state.linked else 0]
            state.write(start, self.layout, module, self._buffers())
        if self.layout.head is not None and facts.outputs is not None:
            drawn = torch.Generator().manual_seed(self._seed("head", task))
            fresh_head(module, self.layout.head, facts.outputs, drawn)
        chosen = self._next(state)
        if not state.tasks:
            trained = [p for p in module.parameters() if p.requires_grad]
            adam = torch.optim.Adam(
                trained, chosen.lr, weight_decay=chosen.weight_decay, fused=True
            )
            return Trainee(module, criterion, adam)
        if chosen.retroactive == "gradient":
            return self._reference(state, module, criterion)
        entries = None if chosen.budget is None else self._entries(chosen.budget, len(state.tasks))
        parameters = dict(module.named_parameters())
        weights = []
        for weight in self.layout.weights:
            before = state.shared()[weight.name]
            if state.linked:
                before = parameters[weight.name].detach().clone()
            logits = before.new_full((weight.channels,), chosen.mask_start)
            weights.append(
                Decomposed(
                    weight,
                    parameters[weight.name],
                    before.clone(),
                    before,
                    torch.zeros_like(before),
                    nn.Parameter(logits) if chosen.mask else None,
                    self._penalty(state, weight) if chosen.moves else None,
                    torch.ones_like(before) if entries is not None else None,
                )
            )
        return APDTrainee(module, criterion, weights, chosen, entries)

    def _penalty(self, state: APDState, weight: Weight) -> SharedPenalty:
        chosen = self.settings
        if chosen.retroactive == "off":
            strength: float | Tensor = chosen.l2
            if state.importance is not None:
                strength = chosen.l2 * state.importance()[weight.name]
            return SharedPenalty.quadratic(strength)
        return SharedPenalty.retroactive(self._past(state, weight), self._next(state).still)

    def _next(self, state: APDState) -> APDSettings:
        """Return the settings of the task that is learnt next."""
        return self.settings.after(len(state.tasks))

    def _past(self, state: APDState, weight: Weight) -> PastTasks:
        parts = [task() for task in state.tasks.values()]
        deltas = [part.deltas[weight.name] for part in parts]
        masks = [part.masks.get(weight.name) for part in parts]
        chosen = self._next(state)
        return PastTasks(weight, deltas, masks, chosen.price, chosen.l2)

    def _entries(self, budget: float, past: int) -> int:
        """Return how many entries of deltas the budget has for a task that comes after `past`."""
        masks = sum(w.channels for w in self.layout.weights) if self.settings.mask else 0
        sizes = {**self.layout.shapes, **self.layout.buffers}
        own = sum(int(np.prod(sizes[n])) for n in (*self.layout.own, *self.layout.buffers))
        entries = int(budget * self.layout.size) - masks - own
        if entries < 0:
            least = (masks + own) / self.layout.size
            raise ConfigError(
                f"budget={budget:g} is less than what a task needs for its masks, biases and "
                f"normalisation: {least:.4f}. Raise it above that"
            )
        # Together, n tasks after the first have n**power times what one of them alone has.
        power = self.settings.budget_growth
        return int(entries * (past**power - (past - 1) ** power))

    def _reference(self, state: APDState, module: nn.Module, criterion: Loss) -> Trainee:
        past = {weight.name: self._past(state, weight) for weight in self.layout.weights}
        return ReferenceTrainee(module, criterion, state.shared(), past, self._next(state))

    @torch.no_grad()
    def _keep(
        self, state: APDState, task: str, trainee: Trainee, train: Batches
    ) -> tuple[APDState, float]:
        before = sum(part().nonzeros for part in state.tasks.values())
        tasks = dict(state.tasks)
        shared: dict[str, Tensor] = {}
        deltas: dict[str, Sparse] = {}
        masks: dict[str, Tensor] = {}
        parameters = dict(trainee.module.named_parameters())
        if isinstance(trainee, APDTrainee):
            shared = {w.weight.name: w.shared.clone() for w in trainee.decomposed}
            deltas = {w.weight.name: Sparse.from_dense(w.delta) for w in trainee.decomposed}
            if state.linked:  # what is kept of the weights is what they are, not what they moved
                shared = dict(state.shared())
                theta = {name: parameters[name].detach() for name in deltas}
                deltas = {n: replace(d, values=d.gather(theta[n])) for n, d in deltas.items()}
            masks = {w.weight.name: m for w in trainee.decomposed if (m := w.mask) is not None}
            if self.settings.retroactive == "closed" and self.settings.moves:
                tasks = self._rewritten(state, shared)
        elif isinstance(trainee, ReferenceTrainee):
            shared, deltas, masks, rewritten = trainee.outcome()
            for (name, held), new in zip(state.tasks.items(), rewritten, strict=True):
                tasks[name] = Lazy(replace(held(), deltas=new))
        else:
            shared = {w.name: parameters[w.name].detach().clone() for w in self.layout.weights}
            deltas = {name: Sparse.empty(held.shape, held) for name, held in shared.items()}
        base, live = self._buffers(), dict(trainee.module.named_buffers())
        part = TaskPart(
            deltas,
            masks,
            {name: parameters[name].detach().clone() for name in self.layout.own},
            {name: parameters[name].detach().clone() for name in self.layout.head_parameters},
            {n: live[n].clone() for n in self.layout.buffers if not torch.equal(live[n], base[n])},
        )
        tasks[task] = Lazy(part)
        after = sum(held().nonzeros for held in tasks.values())
        rest = (*part.masks.values(), *part.own.values(), *part.buffers.values())
        growth = (after - before + sum(t.numel() for t in rest)) / self.layout.size
        state = replace(state, shared=Lazy(shared), tasks=tasks)
        if self.settings.penalty == "ewc":
            state = replace(state, importance=Lazy(self._importance(state, task, trainee, train)))
        every = self.settings.consolidate_every
        if every and len(tasks) % every == 0:
            state = self._grouped(state)
        return state, growth

    def _rewritten(
        self, state: APDState, shared: Mapping[str, Tensor]
    ) -> dict[str, Lazy[TaskPart]]:
        """Return the past tasks with deltas that make up for what the shared weights moved."""
        chosen = self._next(state)
        moved = {w.name: shared[w.name] - state.shared()[w.name] for w in self.layout.weights}
        beyond = {name: far(d, chosen.reach) for name, d in moved.items()}
        tasks = {}
        for name, held in state.tasks.items():
            part = held()
            deltas = {
                w.name: rewrite(
                    part.deltas[w.name],
                    part.masks.get(w.name),
                    moved[w.name],
                    beyond[w.name],
                    w.out_dim,
                    chosen.reach,
                    chosen.still,
                )
                for w in self.layout.weights
            }
            tasks[name] = Lazy(replace(part, deltas=deltas))
        return tasks

    def _importance(
        self, state: APDState, task: str, trainee: Trainee, train: Batches
    ) -> dict[str, Tensor]:
        """Return the shared weights' Fisher information, summed over the tasks so far."""
        names = [w.name for w in self.layout.weights]
        drawn = torch.Generator().manual_seed(self._seed("fisher", task))
        inputs = (x for x, _ in train.shuffled(drawn))
        with torch.enable_grad():
            fisher = diagonal_fisher(
                trainee.module, names, inputs, self.settings.fisher_samples, drawn
            )
        part = state.tasks[task]()
        for weight in self.layout.weights:
            mask = part.masks.get(weight.name)
            if mask is not None:  # a change of the shared weight reaches theta through the mask
                fisher[weight.name] *= mask.view(weight.broadcast()) ** 2
            if state.importance is not None:
                fisher[weight.name] += state.importance()[weight.name]
        return fisher

    def _grouped(self, state: APDState) -> APDState:
        """Return the state with the deltas consolidated into one more round of groups."""
        parts = [task() for task in state.tasks.values()]
        if not parts:
            return state
        count = state.group_count + self.settings.groups
        rng = np.random.default_rng(self._seed("groups", count))
        groups: dict[int, dict[str, Sparse]] = {}
        for weight in self.layout.weights:
            whole = [state.whole_delta(part, weight.name) for part in parts]
            previous = [part.groups.get(weight.name) for part in parts]
            found = consolidate(whole, previous, count, self.settings.beta, rng)
            for g, common in found.groups.items():
                groups.setdefault(g, {})[weight.name] = common
            parts = [
                replace(
                    part,
                    deltas={**part.deltas, weight.name: delta},
                    groups={**part.groups, weight.name: label},
                )
                for part, delta, label in zip(parts, found.deltas, found.labels, strict=True)
            ]
        tasks = {name: Lazy(part) for name, part in zip(state.tasks, parts, strict=True)}
        held = {g: Lazy(cast(Mapping[str, Sparse], part)) for g, part in sorted(groups.items())}
        return replace(state, tasks=tasks, groups=held, group_count=count)

    # Using

    def _buffers(self) -> dict[str, Tensor]:
        # Walking a network takes as long as writing a small one, so not where it is for nothing.
        return dict(self._backbone.named_buffers()) if self.layout.buffers else {}

    def _compose(self, state: APDState, task: str, module: nn.Module) -> nn.Module:
        state.write(task, self.layout, module, self._buffers())
        return module

    def _drop(self, state: APDState, task: str) -> APDState:
        rest = state.without(task)
        return rest if rest.tasks else self._fresh()

    def _records(self, state: APDState) -> tuple[dict[str, Record | RawRecord], dict[str, Any]]:
        return to_records(state)

    def _restore(
        self, source: Container, meta: Mapping[str, Any], tasks: Sequence[str]
    ) -> APDState:
        return from_records(source, meta, self.layout, tasks, self._fresh())
