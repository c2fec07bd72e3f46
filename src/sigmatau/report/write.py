"""A report on disk: the page, and each table and figure as files of its own."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sigmatau.files import put
from sigmatau.report import languages, per_task, static, tables
from sigmatau.report.figures import TASKS, all_figures
from sigmatau.report.page import page
from sigmatau.report.results import read


@dataclass(frozen=True)
class Written:
    """What was written, and of how much."""

    page: Path
    files: int
    finished: int
    failed: int
    wanted: int
    notes: tuple[str, ...]


def write_report(
    folders: Sequence[Path],
    out: Path,
    *,
    title: str | None = None,
    tasks: Sequence[int] = TASKS,
) -> Written:
    """Write `index.html`, `tables/` and `figures/` into `out`."""
    results = read(folders)
    made = [tables.table(results, stream) for stream in results.streams()]
    figures = {table.stream: all_figures(table, tasks) for table in made}
    headline = title or f"Results: {', '.join(folder.resolve().name for folder in folders)}"
    # All is made before anything is written: a missing package leaves no half of a report.
    text = page(results, made, figures, headline)
    files: dict[str, str | bytes] = {}
    for table in made:
        name = re.sub(r"[^\w.=+-]+", "_", table.stream)
        files[f"tables/{name}.md"] = languages.to_markdown(table)
        files[f"tables/{name}.tex"] = languages.to_latex(table)
        files[f"tables/{name}.csv"] = languages.to_csv(table)
        files[f"tables/{name}-tasks.csv"] = per_task.to_csv(table.groups)
        if (by_task := per_task.task_table(table)) is not None:
            files[f"tables/{name}-tasks.md"] = per_task.to_markdown(by_task)
        for figure in figures[table.stream]:
            for kind, picture in static.draw(figure).items():
                files[f"figures/{name}-{figure.name}.{kind}"] = picture
    for path, content in files.items():
        put(out / path, content)
    states = [run.state for run in results.runs]
    return Written(
        put(out / "index.html", text),
        len(files),
        states.count("done"),
        states.count("failed"),
        len(states),
        tuple(results.notes),
    )
