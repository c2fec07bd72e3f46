"""`sigmatau report`, `reproduced`, `compare`: what came out, beside the paper and another run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer()


@app.command()
def report(
    folders: Annotated[list[Path], typer.Argument(help="Results folders.", metavar="DIR...")],
    out: Annotated[
        Path | None, typer.Option(help="Where to write.", show_default="DIR/report")
    ] = None,
    title: Annotated[str | None, typer.Option(help="Headline of the page.")] = None,
    task: Annotated[
        list[int] | None,
        typer.Option(
            min=1,
            help="Place of a task to follow in the forgetting curves.",
            show_default="1, 6, 11",
        ),
    ] = None,
) -> None:
    """Write a page with tables and figures of results, and the same as files."""
    from sigmatau.report.figures import TASKS
    from sigmatau.report.write import write_report

    target = out or folders[0] / "report"
    done = write_report(folders, target, title=title, tasks=task or TASKS)
    for note in done.notes:
        typer.secho(f"note: {note}", fg="yellow", err=True)
    typer.echo(
        f"{done.page}: {done.finished} of {done.wanted} cells"
        + (f", {done.failed} failed" if done.failed else "")
        + f"; {done.files} more files with tables and figures beside it"
    )


@app.command()
def reproduced(
    results: Annotated[Path, typer.Argument(help="Folder with a results folder for each recipe.")],
    out: Annotated[Path, typer.Option(help="The document.")] = Path("REPRODUCED.md"),
    recipes: Annotated[
        Path | None, typer.Option(help="Folder of the recipes.", show_default="beside the results")
    ] = None,
    methods: Annotated[
        Path | None, typer.Option(help="A document with a place for a short form of the figures.")
    ] = None,
) -> None:
    """Write one document of all recipes: ours beside the paper's, verdicts, pictures."""
    from sigmatau.report.reproduced import write

    done = write(results, out, recipes, methods)
    for told in done.warnings:
        typer.secho(f"note: {told}", fg="yellow", err=True)
    typer.echo(f"{out}: written, with {len(done.figures)} pictures in {results / 'figures'}")


@app.command()
def compare(
    a: Annotated[Path, typer.Argument(help="A results folder.", metavar="A")],
    b: Annotated[Path, typer.Argument(help="Another.", metavar="B")],
    level: Annotated[float, typer.Option(help="Confidence level of the intervals.")] = 0.95,
    csv: Annotated[Path | None, typer.Option(help="Write the comparison to this file.")] = None,
) -> None:
    """Compare two results folders, with confidence intervals over orders and seeds."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from sigmatau.files import put
    from sigmatau.report.compare import compare as compared
    from sigmatau.report.compare import to_csv

    found = compared(a, b, level)
    if csv is not None:
        put(csv, to_csv(found))
    console = Console()
    for stream in dict.fromkeys(row.stream for row in found.rows):
        table = Table(title=escape(stream), box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
        for title in ("method", "measure"):
            table.add_column(title)
        # Numbers are never cut, however narrow the terminal.
        for title in ("A", "B", "B - A", f"{level:.0%} from", "to", "pairs", "B is"):
            table.add_column(title, no_wrap=True, min_width=len(title), justify="right")
        last = ""
        for row in (r for r in found.rows if r.stream == stream):
            if row.label != last:
                table.add_section()
            bounds = ["" if v is None else f"{v:+.2f}" for v in (row.low, row.high)]
            table.add_row(
                "" if row.label == last else escape(row.label),
                row.measure,
                f"{row.a:.2f}",
                f"{row.b:.2f}",
                f"{row.difference:+.2f}",
                *bounds,
                str(row.paired) if row.paired else f"{row.cells_a} | {row.cells_b}",
                row.verdict,
            )
            last = row.label
        console.print(table)
    for side, names in (("A", found.only_a), ("B", found.only_b)):
        for name in names:
            console.print(f"only in {side}: {name}", markup=False)
