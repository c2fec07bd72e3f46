"""The report as one HTML page that needs nothing but itself: tables, figures, runs, failures."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from importlib import resources
from typing import Any

import sigmatau
from sigmatau.errors import MissingExtra
from sigmatau.report.per_task import task_table
from sigmatau.report.plot import (
    Figure,
    Panel,
    Series,
    colour,
    crowding,
    shape,
    x_ticks,
)
from sigmatau.report.results import Results, Run
from sigmatau.report.tables import Table

_SPAN_WIDTH = 9


def page(
    results: Results, tables: Iterable[Table], figures: Mapping[str, list[Figure]], title: str
) -> str:
    """Return the whole page."""
    try:
        from jinja2 import Environment, PackageLoader, StrictUndefined
        from plotly.offline import get_plotlyjs  # type: ignore[import-untyped]
    except ImportError as error:
        raise MissingExtra("plotly and jinja2", "report") from error
    environment = Environment(
        loader=PackageLoader("sigmatau.report", "template"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    sections = [
        {
            "table": table,
            "tasks": task_table(table),
            "figures": figures[table.stream],
            "runs": results.of(table.stream),
            "failed": results.of(table.stream, "failed"),
        }
        for table in tables
    ]
    number = {id(run): k for k, run in enumerate(results.runs)}
    states = ("done", "failed", "unfinished", "missing")
    drawn = {
        f"{stream}/{figure.name}/{k}": _plotly(panel)
        for stream, listed in figures.items()
        for figure in listed
        for k, panel in enumerate(figure.panels)
    }
    template = resources.files("sigmatau.report") / "template"
    text: str = environment.get_template("page.html").render(
        title=title,
        made=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        version=sigmatau.__version__,
        counts={s: sum(run.state == s for run in results.runs) for s in states},
        notes=results.notes,
        sections=sections,
        colour=colour,
        shape=shape,
        about=_about,
        # Inside a script element only `<` could end it; JSON may write it as an escape.
        plots=_script_json(drawn),
        matrices=_script_json(
            {number[id(run)]: _matrix(run) for run in results.runs if run.state == "done"}
        ),
        place=lambda run: number[id(run)],
        style=(template / "page.css").read_text(encoding="utf-8"),
        script=(template / "page.js").read_text(encoding="utf-8"),
        plotlyjs=get_plotlyjs(),
    )
    return text


def _script_json(value: Any) -> str:
    return json.dumps(value, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


def _matrix(run: Run) -> dict[str, Any]:
    """Return a run's accuracy matrix in %, short enough that hundreds of them fit a page."""
    result = run.done
    # A row ends with the task just learnt; the page fills it up again.
    rows = [
        [None if v is None else round(100 * v, 2) for v in row[: k + 1]]
        for k, row in enumerate(result.accuracy_matrix)
    ]
    return {"tasks": result.task_names, "rows": rows}


def _about(run: Run) -> list[tuple[str, str]]:
    """Return what a reader may want to know of a finished run, as pairs of strings."""
    result = run.done
    facts = {
        "capacity": result.capacity.model_dump(),
        "growth by task": result.growth,
        "seconds by task": result.seconds_per_task,
        "config": result.config,
        "versions": result.versions,
        "machine": result.machine,
    }
    return [(name, json.dumps(fact, indent=1)) for name, fact in facts.items() if fact]


def _plotly(panel: Panel) -> dict[str, Any]:
    """Return a panel as Plotly draws it; colours of the page are added there, by its theme."""
    x: dict[str, Any] = {"title": {"text": panel.x}, "automargin": True}
    y: dict[str, Any] = {"title": {"text": panel.y}, "automargin": True}
    if panel.log_x:
        x["type"] = "log"
    if ticks := x_ticks(panel):
        x |= {"tickvals": list(ticks), "ticktext": list(ticks.values())}
    if panel.y_range:
        y["range"] = list(panel.y_range)
    if panel.ticks:
        x |= {"tickangle": 0, "range": [-0.6, len(panel.ticks) - 0.4]}
    return {"data": [_trace(s) for s in panel.series], "layout": {"xaxis": x, "yaxis": y}}


def _trace(series: Series) -> dict[str, Any]:
    hue = colour(series.hue)
    trace: dict[str, Any] = {
        "name": series.name,
        "x": list(series.x),
        "y": list(series.y),
        "hovertemplate": "%{text}<extra></extra>",
        "text": list(series.hover),
        "textposition": "none",
    }
    marker: dict[str, Any] = {
        "color": hue,
        "size": 9 * crowding(series) ** 0.5,
        "symbol": shape(series.hue),
    }
    if series.hollow:
        marker |= {"symbol": f"{shape(series.hue)}-open", "line": {"width": 2}}
    line = {"color": hue, "width": 2}
    match series.kind:
        case "bars":
            return {**trace, "type": "bar", "marker": {"color": hue}}
        case "span":
            # One stroke a task: a line that is broken after each.
            both = zip(series.y, series.high, strict=True)
            trace |= {
                "x": [v for x in series.x for v in (x, x, None)],
                "y": [v for low, high in both for v in (low, high, None)],
                "line": {"color": hue, "width": _SPAN_WIDTH * crowding(series)},
                "mode": "lines",
                "opacity": 0.4,
                "hoverinfo": "skip",
            }
            del trace["hovertemplate"], trace["text"]
        case "points":
            trace |= {"mode": "markers", "marker": marker}
            if series.error:
                trace["error_y"] = {"array": list(series.error), "color": hue, "thickness": 1.2}
        case "line":
            small = {**marker, "size": 5 * crowding(series) ** 0.5}
            trace |= {"mode": "lines+markers", "line": line, "marker": small}
        case "dashed":
            trace |= {"mode": "lines", "line": {**line, "width": 1.3, "dash": "dash"}}
        case "path":
            sizes = [15] + [6] * (len(series.x) - 1)
            trace |= {"mode": "lines+markers", "line": {**line, "width": 1.2}}
            trace["marker"] = {**marker, "size": sizes}
    return {**trace, "type": "scatter"}
