"""The settings of DEN, with the values of its reference where it gives them."""

from __future__ import annotations

from pydantic import Field

from sigmatau.config import TrainingSettings


class DENSettings(TrainingSettings):
    """Settings of dynamically expandable networks."""

    l1: float = Field(1e-5, ge=0, description="price of a weight's size, which makes it zero")
    group: float = Field(1e-3, ge=0, description="price of a new unit, as a group of weights")
    expand: int | tuple[int, ...] = Field(
        10, description="units added to a layer when needed, for all layers or one by one"
    )
    loss_threshold: float = Field(0.01, ge=0, description="loss above which units are added")
    split_threshold: float = Field(0.05, ge=0, description="drift beyond which a unit is doubled")
    drift: float = Field(0.5, ge=0, description="price of moving old weights, by their square")
    stage_epochs: int | None = Field(
        None, ge=1, description="epochs of every phase but the last, None for `epochs`"
    )

    @property
    def phases(self) -> tuple[int, ...]:
        """The epochs of the phases of a later task."""
        short = self.epochs if self.stage_epochs is None else self.stage_epochs
        return (short, short, short, self.epochs)

    def by_layer(self, layers: int) -> tuple[int, ...]:
        """Return the units to add, layer by layer."""
        return (self.expand,) * layers if isinstance(self.expand, int) else self.expand
