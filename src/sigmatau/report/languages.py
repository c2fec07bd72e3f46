"""A table in the languages that people paste: Markdown, LaTeX, CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable

from sigmatau.report.tables import COLUMNS, Table


def to_markdown(table: Table) -> str:
    """Return the table as Markdown, with its notes."""
    columns = table.columns()
    head = ["method", "source", *(c.title for c in columns), "cells"]
    rows = [
        [line.label, f"**{line.source}**" if line.source == "ours" else line.source]
        + [line.text(c) for c in columns]
        + [line.cells]
        for line in table.lines
    ]
    rule = ["---", "---", *("---:" for _ in columns), "---"]
    cells = [[c.replace("|", "\\|") for c in row] for row in (head, rule, *rows)]
    body = "\n".join(f"| {' | '.join(row)} |" for row in cells)
    meaning = "; ".join(f"{c.title}: {c.about}" for c in columns)
    notes = [meaning, *table.notes]
    if table.source:
        notes.insert(0, f"Lines marked paper are from {table.source}; ours were measured here.")
    return f"## {table.stream}\n\n{body}\n\n" + "\n".join(f"- {note}" for note in notes) + "\n"


_LATEX = str.maketrans(
    {c: f"\\{c}" for c in "&%$#_{}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
)


def to_latex(table: Table) -> str:
    """Return the table as a LaTeX tabular for booktabs."""
    columns = table.columns()

    def row(cells: Iterable[str]) -> str:
        return " & ".join(cell.translate(_LATEX) for cell in cells) + r" \\"

    lines = [
        "% needs \\usepackage{booktabs}",
        *(f"% {note}" for note in table.notes),
        f"\\begin{{tabular}}{{ll{'r' * len(columns)}l}}",
        r"\toprule",
        row(["method", "source", *(c.title for c in columns), "cells"]),
    ]
    for line in table.lines:
        if line.source == "ours" or line.cells == "not run here":
            lines.append(r"\midrule")
        lines.append(row([line.label, line.source, *map(line.text, columns), line.cells]))
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])


def to_csv(table: Table) -> str:
    """Return the table as CSV with all digits."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["stream", "method", "source", *(c.key for c in COLUMNS), "cells"])
    for line in table.lines:
        numbers = [repr(line.values[c.key]) if c.key in line.values else "" for c in COLUMNS]
        writer.writerow([table.stream, line.label, line.source, *numbers, line.cells])
    return out.getvalue()
