"""`sigmatau data`: list the streams, fetch what they read, and show what they hold."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from sigmatau.streams.base import Stream

app = typer.Typer(help="List, fetch and look at the data.", no_args_is_help=True)
Root = Annotated[
    Path | None,
    typer.Option(
        "--root", help="Data folder (default: SIGMATAU_DATA, or the user's cache folder)."
    ),
]


@app.command("list")
def list_(root: Root = None) -> None:
    """List every stream, the image sets it reads, and which of them are there."""
    from rich.console import Console
    from rich.table import Table

    from sigmatau.streams import registry
    from sigmatau.streams.sets import SETS, data_root

    folder = data_root(root)
    table = Table("stream", "what it is", "image sets", caption=f"data folder: {folder}")
    for name in registry.names():
        entry = registry.entry(name)
        there = [
            f"[dim]{s} (missing)[/]" if SETS[s].missing(folder) else f"[green]{s}[/]"
            for s in entry.needs
        ]
        about = (entry.make.__doc__ or "").strip().splitlines()
        table.add_row(name, about[0] if about else "", ", ".join(there) or "embedded")
    Console().print(table)


@app.command()
def fetch(
    name: Annotated[str, typer.Argument(help="A stream, or an image set such as mnist.")],
    root: Root = None,
) -> None:
    """Download what a stream reads. What is there already is left alone."""
    from rich.console import Console

    from sigmatau.errors import ConfigError, nearest
    from sigmatau.streams import registry
    from sigmatau.streams.fetch import fetch as bring
    from sigmatau.streams.sets import SETS, data_root

    out = Console(soft_wrap=True)
    folder = data_root(root)
    if name not in SETS and name not in registry.names():
        raise ConfigError(
            f"there is no stream or image set {name!r}: {nearest(name, {*registry.names(), *SETS})}"
        )
    wanted = (name,) if name in SETS else registry.entry(name).needs
    for each in wanted:
        images = SETS[each]
        # A stream that can do without a set should not fail over one nobody can download.
        if images.missing(folder) and not images.downloads and len(wanted) > 1:
            out.print(f"[yellow]{each}[/]: cannot be downloaded. {images.how_to_get}")
        elif bring(images, folder):
            out.print(f"[green]{each}[/]: fetched into {folder / images.folder}")
        else:
            out.print(f"{each}: {folder / images.folder} is there already")
    if not wanted:
        out.print(f"{name} is embedded: nothing to fetch")


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="A stream.")],
    root: Root = None,
    seed: Annotated[int, typer.Option(help="Seed of the split.")] = 0,
    order: Annotated[str, typer.Option(help="A named order, or random:SEED.")] = "A",
    tasks: Annotated[int | None, typer.Option(min=1, help="Only the first so many tasks.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for the pictures.")] = Path("sheets"),
) -> None:
    """Write a contact sheet of each task, and print counts, classes and checks."""
    from sigmatau.streams import get

    stream = get(name, root=root, seed=seed)
    if not _show(stream, order, tasks, out):
        raise typer.Exit(1)


def _show(stream: Stream, order: str, tasks: int | None, out: Path) -> bool:
    """Print a stream task by task; return whether every check held."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from sigmatau.streams.sheet import Checker, contact_sheet

    console = Console()
    checker = Checker(stream)
    table = Table("task", "train", "val", "test", "classes", "", title=str(stream).strip("<>"))
    indices = stream.order(order)[:tasks]
    for i in indices:
        task = stream[i]
        checker.see(task)
        contact_sheet(task, out / f"{stream.name}-{i:03d}.png")
        parts = task.parts()
        counts = [f"{len(parts[p][1]):,}" if p in parts else "-" for p in ("train", "val", "test")]
        names = ", ".join(task.classes)
        table.add_row(
            escape(f"{i} {task.name}"),
            *counts,
            str(len(task.classes)),
            escape(names if len(names) < 60 else f"{names[:57]}..."),
        )
    console.print(table)
    checks = Table("check", "", "seen")
    for check in checker.result():
        checks.add_row(
            check.what, "[green]holds[/]" if check.holds else "[red]FAILS[/]", check.seen
        )
    console.print(checks)
    for note in stream.notes:
        console.print(f"note: {note}", markup=False)
    console.print(f"pictures: {out / f'{stream.name}-*.png'}", markup=False)
    return all(check.holds for check in checker.result())
