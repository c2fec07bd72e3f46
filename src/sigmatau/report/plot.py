"""What a figure is, whoever draws it: panels of series, one description for page and file.

The page draws it with Plotly, the files are drawn with matplotlib; neither is needed here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Kind = Literal["points", "line", "path", "dashed", "bars", "span"]

# Ten hues that stay apart for colour-blind readers, on white as on black.
COLOURS = (
    "#3b7dd8",
    "#e07b1f",
    "#2a9d6f",
    "#d1495b",
    "#8e6bd0",
    "#9a7142",
    "#d46fb3",
    "#7f8896",
    "#b3a11f",
    "#23a6b8",
)


SHAPES = ("circle", "square", "diamond")


def colour(hue: int) -> str:
    return COLOURS[hue % len(COLOURS)]


def shape(hue: int) -> str:
    """Return a mark for what comes after the last colour and starts with the first again."""
    return SHAPES[hue // len(COLOURS) % len(SHAPES)]


@dataclass(frozen=True)
class Series:
    """Points under one name, which is what the legend shows and a click hides.

    A `span` is a vertical stroke from `y` to `high`; a `path` is a line through a plane whose first
    point is large. `error` is half the length of an error bar.
    """

    name: str
    x: Sequence[float]
    y: Sequence[float | None]
    hue: int = 0
    kind: Kind = "points"
    high: Sequence[float] = ()
    error: Sequence[float] = ()
    hover: Sequence[str] = ()
    hollow: bool = False


@dataclass(frozen=True)
class Panel:
    """One pair of axes."""

    title: str
    series: Sequence[Series]
    x: str = ""
    y: str = ""
    ticks: Sequence[str] = ()  # what stands at the places 0, 1, 2, ... of the x axis
    log_x: bool = False
    whole_x: bool = False  # x counts something
    y_range: tuple[float, float] | None = None


@dataclass(frozen=True)
class Figure:
    """A figure: `name` for files, and what the reader should see in it."""

    name: str
    title: str
    caption: str
    panels: Sequence[Panel]
    wide: bool = False  # a panel takes the whole width

    def legend(self) -> list[Series]:
        """Return one series for each name, in the order they appear."""
        found: dict[str, Series] = {}
        for panel in self.panels:
            for series in panel.series:
                if series.kind != "span":
                    found.setdefault(series.name, series)
        return list(found.values())


def x_ticks(panel: Panel) -> dict[float, str]:
    """Return what stands where on the x axis; nothing where any round numbers will do."""
    if panel.ticks:
        count = len(panel.ticks)
        step = 1 if count <= 12 else 2 if count <= 24 else 10
        return {place: panel.ticks[place] for place in range(step - 1, count, step)}
    values = [x for series in panel.series for x in series.x]
    chosen = _log(values) if panel.log_x else _whole(values) if panel.whole_x else []
    return {tick: f"{tick:g}" for tick in chosen}


def _log(values: Sequence[float]) -> list[float]:
    """Return round numbers for a logarithmic axis over some positive values."""
    low, high = min(values), max(values)
    for steps in ((1,), (1, 2, 5), (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8)):
        ticks = [float(f"{step}e{power}") for power in range(-6, 9) for step in steps]
        ticks = [tick for tick in ticks if 0.95 * low <= tick <= 1.05 * high]
        if len(ticks) > 2:
            return ticks
    return sorted({float(f"{low:.3g}"), float(f"{high:.3g}")})


def _whole(values: Sequence[float]) -> list[float]:
    """Return at most eleven multiples of a round whole number."""
    low, high = min(values), max(values)
    steps = (step * 10**power for power in range(9) for step in (1, 2, 5))
    step = next(step for step in steps if high - low <= 10 * step)
    return [float(tick) for tick in range(math.ceil(low / step) * step, int(high) + 1, step)]


def crowding(series: Series) -> float:
    """Return how much smaller marks must be where there are many of them: 1 for a few."""
    return 1.0 if len(series.x) <= 20 else max(0.3, 20 / len(series.x))
