"""The `sigmatau` command: one sub-command each lives beside what it commands, and is mounted here.

Nothing heavy is imported before a command runs, so that `--help` answers at once.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from sigmatau.errors import SigmatauError
from sigmatau.experiment.cli import app as experiment
from sigmatau.report.cli import app as report
from sigmatau.streams.cli import app as data

app = typer.Typer(
    help="Continual learning, task after task, without forgetting.",
    no_args_is_help=True,
    # A traceback in a frame hides the one line a user needs.
    pretty_exceptions_enable=False,
)
app.add_typer(data, name="data")
app.add_typer(experiment)
app.add_typer(report)


def _version(wanted: bool) -> None:
    if wanted:
        from sigmatau import __version__

        typer.echo(f"sigmatau {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """Continual learning, task after task, without forgetting."""


def main() -> None:
    """Run the command; an error raised on purpose becomes one message and status 1."""
    try:
        app()
    except SigmatauError as error:
        typer.secho(f"error: {error}", fg="red", err=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
