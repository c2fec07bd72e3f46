"""A progress bar for learning a task: on a terminal by default, nowhere else."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from sigmatau.training import Epoch, Hook, State


class ProgressBar(Hook):
    """Shows epochs, loss and validation score of the task being learnt."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
        )

        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[told]}"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
        )

    def starts(self, task: str, epochs: int) -> None:
        self.row = self.bar.add_task(f"learning {task}", total=epochs, told="")

    def epoch_ends(self, task: str, epoch: Epoch, state: Callable[[], State]) -> None:
        score = "" if epoch.score is None else f" validation {epoch.score:.4f}"
        self.bar.update(self.row, completed=epoch.index + 1, told=f"loss {epoch.loss:.4f}{score}")


@contextmanager
def with_progress(hooks: Iterable[Hook], wanted: bool | None) -> Iterator[tuple[Hook, ...]]:
    """Add a progress bar to `hooks` if it is wanted, or if nobody said and there is a terminal."""
    hooks = tuple(hooks)
    if wanted is False or (wanted is None and not sys.stderr.isatty()):
        yield hooks
        return
    shown = ProgressBar()
    with shown.bar:
        yield (*hooks, shown)
