"""The figures of `docs/methods.md`: for every method, what was published and what came out here.

They are put between two marks of the document, so that the words around them stay as written.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from sigmatau.errors import FileError
from sigmatau.report import bars
from sigmatau.report.tables import Table

BEGIN, END = "<!-- figures: written by `sigmatau reproduced` -->", "<!-- end of figures -->"

# Not in the paper's table, but of the protocol that it borrows (accuracy in %).
ELSEWHERE: Mapping[str, Mapping[str, str]] = {
    "permuted-mnist": {
        name: f"{accuracy:.1f} (Chaudhry et al. 2019)"
        for name, accuracy in (("finetune", 48.0), ("ewc", 68.4), ("pgn", 93.6))
    }
}


def figures(tables: Mapping[str, Table], cells: Mapping[tuple[str, str], str]) -> str:
    """Return a table for each benchmark of the paper; `cells` tells what stands behind a row."""
    parts = []
    for name in bars.NEEDED:
        if name not in tables:
            continue
        lines = ["| method | row | published | ours | orders x seeds |", "|---|---|---|---|---|"]
        for row in tables[name].rows:
            method, label = row.group.method, row.group.label
            published = _told(row.theirs) or ELSEWHERE.get(name, {}).get(method, "not published")
            ours = _told(row.ours) or "not run yet"
            behind = cells[name, label] if row.ours else ""
            lines.append(f"| `{method}` | {label} | {published} | {ours} | {behind} |")
        parts.append(f"## {name}\n\n" + "\n".join(lines) + "\n")
    return "\n".join(parts)


def put_into(text: str, block: str, path: Path) -> str:
    """Return a document with what stands between its marks replaced."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise FileError(f"{path} has no place for the figures: put {BEGIN!r} and {END!r} into it")
    return f"{before}{BEGIN}\n\n{block}\n{END}{after}"


def _told(values: Mapping[str, float]) -> str:
    if "accuracy" not in values:
        return ""
    at = f" at {values['capacity']:.0f}" if "capacity" in values else ""
    return f"{values['accuracy']:.2f}{at}"
