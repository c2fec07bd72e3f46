"""Any sequence of learn, forget, consolidate, save and load keeps every task what it must be.

Beside the network runs a model of dense tensors that follows the definitions alone.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from torch import Tensor

import sigmatau
from sigmatau.core.proximal import soft_threshold
from sigmatau.core.retroactive import EATEN
from sigmatau.methods.apd_settings import WORTHLESS

from .conftest import blobs, small_mlp

INPUTS = blobs(77)[0]
Dense = dict[str, Tensor]


class Life(RuleBasedStateMachine):
    @initialize(
        variant=st.sampled_from(
            [
                {"l1": 1e-3},
                {"l1": 5e-3, "l2": 1.0},
                {"l1": 5e-3, "l2": 1.0, "l1_growth": 0.5},
                {"l1": 1e-3, "l2": 2.0, "l1_growth": 0.8},  # l2 rises along
                {"l1": 1e-3, "consolidate_every": 3},
                {"retroactive": "off"},
                {"shared": "fixed"},
                {"budget": 0.5},
                {"sparse": False},
                {"mask": False},
            ]
        ),
        beta=st.sampled_from([1e-4, 1e-2, 0.3]),
    )
    def start(self, variant: dict[str, object], beta: float) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.net = sigmatau.APDNet(
            small_mlp(), epochs=2, batch_size=20, lr=2e-2, beta=beta, **variant
        )
        self.beta, self.counter = beta, 0
        self.weights = {w.name: w for w in self.net.layout.weights}
        # By task: its mask spread over the weight, its delta and its group's part, all dense.
        self.mask: dict[str, Dense] = {}
        self.delta: dict[str, Dense] = {}
        self.group: dict[str, Dense] = {}
        self.shared: Dense = {}

    def read(self, task: str) -> tuple[Dense, Dense, Dense]:
        state = self.net._memory.state
        part = state.tasks[task]()
        mask, delta, group = {}, {}, {}
        for name, weight in self.weights.items():
            held = part.masks.get(name)
            full = torch.ones(weight.shape)
            mask[name] = full if held is None else full * held.view(weight.broadcast())
            delta[name] = part.deltas[name].dense()
            common = state.group_part(part, name)
            group[name] = torch.zeros(weight.shape) if common is None else common.dense()
        return mask, delta, group

    def follow(self, task: str) -> None:
        self.mask[task], self.delta[task], self.group[task] = self.read(task)

    def theta(self, task: str) -> Dense:
        return {
            n: self.shared[n] * self.mask[task][n] + self.group[task][n] + self.delta[task][n]
            for n in self.weights
        }

    @rule(seed=st.integers(0, 1000))
    def learn(self, seed: int) -> None:
        task = f"task {self.counter}"
        self.counter += 1
        before, chosen = self.shared, self.net.settings
        rounds = self.net._memory.state.group_count
        self.net.learn(task, blobs(seed, rows=40), blobs(seed, rows=20))
        self.shared = {n: t.clone() for n, t in self.net._memory.state.shared().items()}
        if self.delta and chosen.retroactive == "closed" and chosen.moves:
            price = chosen.price * len(self.delta) ** chosen.l1_growth
            reach, least = price / (2 * chosen.l2), WORTHLESS * chosen.lr
            if reach > least >= chosen.price / (2 * chosen.l2):
                reach = least / 2
            for past in self.delta:
                for name in self.weights:
                    moved = self.shared[name] - before[name]
                    drift = self.mask[past][name] * moved
                    residual = self.delta[past][name] - drift
                    if reach <= least:
                        dropped = (drift != 0) & (residual.abs() <= EATEN * reach)
                        self.delta[past][name] = residual.masked_fill(dropped, 0.0)
                    else:
                        self.delta[past][name] = soft_threshold(residual, reach)
        elif self.delta and not chosen.moves:
            assert all(torch.equal(self.shared[n], before[n]) for n in self.weights)
        self.mask[task], self.delta[task], self.group[task] = self.read(task)
        if self.net._memory.state.group_count != rounds:
            self.regrouped()

    def regrouped(self) -> None:
        """After a consolidation: every theta within beta of what it was, then go on from there."""
        for task in self.net.tasks[: len(self.delta)]:
            before = self.theta(task)
            mask, delta, group = self.read(task)
            for name in self.weights:
                now = self.shared[name] * mask[name] + group[name] + delta[name]
                drift = (now - before[name]).abs()
                assert drift.max() <= self.beta + 1e-5
            self.follow(task)

    @precondition(lambda self: self.counter and self.net.tasks)
    @rule()
    def consolidate(self) -> None:
        self.net.consolidate()
        self.regrouped()

    @precondition(lambda self: self.counter and self.net.tasks)
    @rule(data=st.data())
    def forget(self, data: st.DataObject) -> None:
        task = data.draw(st.sampled_from(self.net.tasks))
        others = [t for t in self.net.tasks if t != task]
        before = {t: self.net.predict(t, INPUTS) for t in others}
        self.net.forget(task)
        for held in (self.mask, self.delta, self.group):
            del held[task]
        for t, expected in before.items():
            assert torch.equal(self.net.predict(t, INPUTS), expected)
        if not others:
            self.shared = {}

    @precondition(lambda self: self.counter)
    @rule(over=st.booleans())
    def save_and_load(self, over: bool) -> None:
        path = Path(self.folder.name) / ("net.st" if over else f"{self.counter}.st")
        before = {t: self.net.predict(t, INPUTS) for t in self.net.tasks}
        self.net.save(path)
        self.net = sigmatau.load(path, small_mlp())
        for t, expected in before.items():
            assert torch.equal(self.net.predict(t, INPUTS), expected)

    @invariant()
    def weights_are_what_the_definition_says(self) -> None:
        if not hasattr(self, "delta"):
            return
        assert set(self.net.tasks) == set(self.delta)
        state = self.net._memory.state
        for task in self.net.tasks:
            for name, expected in self.theta(task).items():
                got = state.theta(task, self.weights[name])
                assert (got - expected).abs().max() <= 1e-6

    @invariant()
    def what_is_stored_is_sparse_and_sorted(self) -> None:
        if not hasattr(self, "delta"):
            return
        state = self.net._memory.state
        for part in state.tasks.values():
            for delta in part().deltas.values():
                assert bool((delta.values != 0).all())
                assert bool((delta.indices[1:] > delta.indices[:-1]).all())
        members = {g for part in state.tasks.values() for g in part().groups.values()}
        assert set(state.groups) <= members

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            self.folder.cleanup()


Life.TestCase.settings = settings(
    max_examples=25, stateful_step_count=12, deadline=None, derandomize=True
)
TestLife = Life.TestCase
