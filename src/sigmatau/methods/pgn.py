"""Progressive networks: every task gets a column of its own beside the frozen ones of the past.

    h_l^t = f( W_l^t h_(l-1)^t + sum over linked columns i < t of U_l^(t:i) h_(l-1)^i )

W is the task's own layer and U its lateral connections, which are linear: matrices between dense
layers, convolutions with the layer's own kernel between convolutions. Only W and U of the newest
column are trained, so earlier tasks stay as they are, to the bit. The first column is the backbone
(or a share of it, `first`), later ones have `width` of its units or `units` by layer. With
`max_links`, a column reads the first so many, and beside them no other column is ever needed: a
task costs the same to learn and to predict however many there are.

Left out: the non-linear adapters (a projection, an activation and a learnt scale before U), with
which the authors save weights when columns are as wide as the backbone; columns here are narrow.
What the small scale is for, that foreign activations do not drown the column's own at first, is
done by starting U at zero.
A task cannot be forgotten, since later columns read its units.

Reference: Rusu et al. 2016, Progressive Neural Networks.
"""

from __future__ import annotations

from typing import ClassVar, cast

import torch
from pydantic import Field

from sigmatau.errors import ConfigError
from sigmatau.inspection import Facts
from sigmatau.methods.columns import ColumnMethod, ColumnState, ColumnTrainee
from sigmatau.methods.descent import PAPER, DescentSettings, descent
from sigmatau.methods.registry import register
from sigmatau.training import Loss, Trainee


class PGNSettings(DescentSettings):
    """Settings of progressive networks."""

    width: float = Field(0.06, gt=0, description="a later column's units, of the backbone's")
    units: tuple[int, ...] | None = Field(
        None, description="a later column's units, layer by layer, instead of `width`"
    )
    first: float = Field(1.0, gt=0, le=1, description="the first column's units, of the backbone's")
    max_links: int | None = Field(
        None, ge=1, description="most columns that a column reads, the first ones"
    )


@register("pgn")
class PGN(ColumnMethod):
    """A column per task, reading all the older ones."""

    name = "pgn"
    Settings = PGNSettings
    settings: PGNSettings
    # Widths that lead to the capacities which Yoon et al. (2020) print: 171, 271 and 1045 %.
    published: ClassVar = {
        **PAPER,
        "permuted-mnist": {"epochs": 1, "batch_size": 10, "weight_decay": 0.0, "width": 0.25},
        "split-cifar100": {**PAPER["split-cifar100"], "width": 0.061},
        "superclass-cifar100": {**PAPER["superclass-cifar100"], "width": 0.057},
        "omniglot-rotation": {**PAPER["omniglot-rotation"], "width": 0.112, "max_links": 3},
    }

    def _fresh(self) -> ColumnState:
        state, units = super()._fresh(), self.settings.units
        if units is not None and (len(units) != len(self.chain.widths) or min(units) < 1):
            raise ConfigError(
                f"units={units}: give one number of units, at least 1, for each of the "
                f"{len(self.chain.widths)} layers before the head"
            )
        return state

    def _begin(self, state: ColumnState, task: str, facts: Facts, criterion: Loss) -> Trainee:
        chosen = self.settings
        share = chosen.width if state.columns else chosen.first
        widths = tuple(max(1, round(share * units)) for units in self.chain.widths)
        if state.columns and chosen.units is not None:
            widths = chosen.units
        # Of the latest columns each would read others, and so all of them would be needed.
        links = tuple(state.columns)[: chosen.max_links]
        drawn = torch.Generator().manual_seed(self._seed("column", task))
        module = self._grown(state, widths, links, cast(int, facts.outputs), drawn)
        module.newest.quieten(self.chain)
        trainee = ColumnTrainee(module, criterion, descent(module.newest.parameters(), chosen))
        trainee.links = links
        return trainee
