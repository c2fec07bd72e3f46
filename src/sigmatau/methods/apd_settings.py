"""The settings of additive parameter decomposition: what the paper names, and the budget."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, model_validator

from sigmatau.config import TrainingSettings
from sigmatau.core.proximal import dead_zone

L1 = 4e-4  # the paper's middle value for CIFAR-100
# Past tasks are kept to rounding if the dead zone is at most this part of the learning rate.
WORTHLESS = 0.02


class APDSettings(TrainingSettings):
    """Settings of additive parameter decomposition."""

    l1: float | None = Field(
        None, ge=0, description=f"price of a delta's size, {L1:g} unless a budget is given"
    )
    l2: float = Field(100.0, ge=0, description="price of drift: of past tasks, or of the shared")
    budget: float | None = Field(
        None, gt=0, lt=1, description="most new numbers a task may add, of the base network's"
    )
    budget_settled: float = Field(
        0.5, gt=0, lt=1, description="share of the training after which the budget is met"
    )
    budget_growth: float = Field(
        1.0, gt=0, le=1, description="n later tasks share n**this times one task's entries"
    )
    l1_growth: float = Field(
        0.0, ge=0, description="the n-th later task pays n**this times l1, so that growth slows"
    )
    l1_until: float = Field(
        1.0,
        gt=0,
        le=1,
        description="share of the training in which l1 holds; then the nonzeros stay",
    )
    l1_cut: float = Field(
        0.0,
        ge=0,
        description="nonzeros of at most so many learning rates are dropped when l1 ends",
    )
    retroactive: Literal["closed", "gradient", "off"] = Field(
        "closed", description="how past deltas follow the shared weights; off is APD-Fixed"
    )
    penalty: Literal["l2", "ewc"] = Field(
        "l2", description="what holds the shared weights when nothing is retroactive"
    )
    mask: bool = Field(True, description="a mask per task on the shared weights")
    mask_start: float = Field(3.0, description="where a mask's logits start")
    sparse: bool = Field(True, description="sparse deltas; off is the paper's ablation")
    shared: Literal["learnt", "fixed"] = Field(
        "learnt", description="fixed: the first task's weights are never changed"
    )
    start: Literal["shared", "last"] = Field(
        "shared", description="the weights a task starts from and stores its difference to"
    )
    consolidate_every: int = Field(0, ge=0, description="tasks between consolidations, 0 for none")
    groups: int = Field(2, ge=1, description="groups added at each consolidation")
    beta: float = Field(
        1e-6, ge=0, description="how far merged entries may lie apart; the paper's 1e-2 forgets"
    )
    fisher_samples: int = Field(1000, ge=1, description="samples for the EWC penalty's Fisher")

    @model_validator(mode="before")
    @classmethod
    def _unmasked(cls, given: Any) -> Any:
        """Leave masks out where there are none, unless they are asked for."""
        if isinstance(given, Mapping) and given.get("start") == "last":
            return {"mask": False, **given}
        return given

    @model_validator(mode="after")
    def _agree(self) -> APDSettings:
        if self.budget is not None and self.l1 is not None:
            raise ValueError("give l1 or budget, not both: a budget finds the sparsity itself")
        if not self.sparse and (self.budget is not None or self.l1 is not None):
            raise ValueError("sparse=False contradicts l1 and budget: leave them out")
        if self.budget is None and self.budget_growth != 1:
            raise ValueError("budget_growth needs a budget, which it makes smaller task by task")
        if self.budget is not None and self.retroactive == "gradient":
            raise ValueError("a budget needs retroactive='closed' or 'off'")
        if self.l1_growth and self.price == 0:
            raise ValueError("l1_growth needs an l1, which it raises task by task")
        if self.l1_until < 1 and (self.price == 0 or self.retroactive == "gradient"):
            raise ValueError("l1_until needs an l1, and retroactive='closed' or 'off'")
        if self.l1_cut and self.l1_until == 1:
            raise ValueError("l1_cut needs l1_until below 1: what is left is trained on")
        if self.retroactive != "off" and self.l2 == 0:
            raise ValueError("l2=0 would erase past tasks: raise it, or use retroactive='off'")
        if self.start == "last" and (self.mask or self.consolidate_every):
            raise ValueError("start='last' has no masks and no groups: leave them out")
        if self.start == "last" and (self.retroactive != "closed" or not self.sparse):
            raise ValueError("start='last' needs sparse deltas and retroactive='closed'")
        if self.penalty == "ewc" and self.retroactive != "off":
            raise ValueError("penalty='ewc' takes the place of l2 transfer: set retroactive='off'")
        return self

    @property
    def price(self) -> float:
        """Return the l1 in force."""
        if not self.sparse or self.budget is not None:
            return 0.0
        return L1 if self.l1 is None else self.l1

    def after(self, past: int) -> APDSettings:
        """Return the settings of a task that comes after `past` others.

        A price that rises alone would let past tasks drift by ever more. If they are kept to
        rounding they stay so: where it must, l2 rises along.
        """
        if not self.l1_growth or past < 2:
            return self
        risen = self.model_copy(update={"l1": self.price * past**self.l1_growth})
        if self.still and not risen.still:
            risen = risen.model_copy(update={"l2": risen.price / (WORTHLESS * self.lr)})
        return risen

    @property
    def reach(self) -> float:
        """Return what the weights of a past task may drift by for nothing."""
        return dead_zone(self.price, self.l2)

    @property
    def still(self) -> bool:
        """Return whether that is too little to be worth any drift."""
        return self.reach <= WORTHLESS * self.lr

    @property
    def moves(self) -> bool:
        """Return whether later tasks change the shared weights.

        Under a budget they do not: every shared entry that moves costs an entry in each past task.
        Nor do they if tasks start from the last one, which does for them what moving would.
        """
        return self.shared == "learnt" and self.budget is None and self.start == "shared"
