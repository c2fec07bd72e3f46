"""Figures as PNG and SVG files, drawn with matplotlib."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Sequence
from math import ceil
from typing import TYPE_CHECKING, Any

from sigmatau.errors import MissingExtra
from sigmatau.report.plot import (
    Figure,
    Panel,
    Series,
    colour,
    crowding,
    shape,
    x_ticks,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MARKS = {"circle": "o", "square": "s", "diamond": "D"}


def draw(figure: Figure, kinds: Sequence[str] = ("png", "svg")) -> dict[str, bytes]:
    """Return a figure in each kind of file; the same figure gives the same bytes.

    Matplotlib's own renderers do the work: no screen and no browser is needed.
    """
    try:
        from matplotlib import rc_context
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure as Canvas
    except ImportError as error:
        raise MissingExtra("matplotlib", "report") from error
    columns = 1 if figure.wide else min(3, len(figure.panels))
    rows = ceil(len(figure.panels) / columns)
    style: dict[Any, Any] = {
        "font.size": 9,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "grid.alpha": 0.25,
        "svg.hashsalt": "sigmatau",
        "svg.fonttype": "none",
    }
    drawn = {}
    with rc_context(style):
        width = 8.0 if figure.wide else 4.2 * columns
        legend = figure.legend()
        # Room for the longest name at 9 points and its mark, so that none is cut off.
        longest = max((len(series.name) for series in legend), default=0)
        abreast = max(1, min(len(legend), int(width / (0.5 + 0.075 * longest))))
        height = 3.2 * rows + 0.5 + 0.2 * ceil(len(legend) / abreast)
        canvas = Canvas(figsize=(width, height), layout="constrained")
        FigureCanvasAgg(canvas)
        axes = list(canvas.subplots(rows, columns, squeeze=False).flat)
        for k, axis in enumerate(axes):
            if k < len(figure.panels):
                _panel(axis, figure.panels[k], figure.wide)
            else:
                axis.set_visible(False)
        if legend:
            handles = [_key(series) for series in legend]
            canvas.legend(handles=handles, loc="outside lower center", ncols=abreast, frameon=False)
        canvas.suptitle(figure.title, fontweight="bold")
        for kind in kinds:
            out = io.BytesIO()
            # No date in the file: the same results make the same bytes.
            metadata: dict[str, Any] = {"Date": None} if kind == "svg" else {"Software": None}
            canvas.savefig(out, format=kind, dpi=150, metadata=metadata)
            drawn[kind] = out.getvalue()
    return drawn


def _panel(axis: Axes, panel: Panel, wide: bool) -> None:
    bars = [series for series in panel.series if series.kind == "bars"]
    for series in panel.series:
        _series(axis, series, bars)
    axis.set_title(textwrap.fill(panel.title, 100 if wide else 50), fontsize=9)
    axis.set_xlabel(panel.x)
    axis.set_ylabel(panel.y)
    if panel.log_x:
        axis.set_xscale("log")
        axis.set_xticks([], minor=True)
    if ticks := x_ticks(panel):
        axis.set_xticks(list(ticks), list(ticks.values()), fontsize=7 if panel.ticks else None)
    if panel.y_range:
        axis.set_ylim(*panel.y_range)


def _series(axis: Axes, series: Series, bars: list[Series]) -> None:
    hue = colour(series.hue)
    face = "none" if series.hollow else hue
    mark = _MARKS[shape(series.hue)]
    x, y = list(series.x), [float("nan") if v is None else v for v in series.y]
    match series.kind:
        case "span":
            axis.vlines(x, y, series.high, color=hue, alpha=0.45, linewidth=5 * crowding(series))
        case "bars":
            width = 0.8 / len(bars)
            shift = (bars.index(series) - (len(bars) - 1) / 2) * width
            axis.bar([v + shift for v in x], y, width, color=hue)
        case "points":
            if series.error:
                axis.errorbar(x, y, series.error, fmt="none", ecolor=hue, alpha=0.7, capsize=3)
            size = 26 * crowding(series)
            axis.scatter(x, y, s=size, marker=mark, facecolors=face, edgecolors=hue, zorder=3)
        case "path":
            axis.plot(x, y, color=hue, linewidth=1, alpha=0.7)
            sizes = [60] + [14] * (len(x) - 1)
            axis.scatter(x, y, s=sizes, facecolors=face, edgecolors=hue, zorder=3)
        case "dashed":
            axis.plot(x, y, "--", color=hue, linewidth=1, alpha=0.9)
        case "line":
            axis.plot(x, y, color=hue, linewidth=1.6, marker=mark, markersize=3)


def _key(series: Series) -> Any:
    from matplotlib.lines import Line2D

    hue = colour(series.hue)
    return Line2D(
        [],
        [],
        color=hue,
        marker=_MARKS[shape(series.hue)],
        markerfacecolor="none" if series.hollow else hue,
        linestyle="-" if series.kind in ("line", "path") else "",
        label=series.name,
    )
