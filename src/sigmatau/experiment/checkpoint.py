"""What a cell has come to so far, kept so that a killed one goes on where its last epoch ended.

A checkpoint is one file with the scores so far and the training under way, which names the file of
the network it belongs to. The network is written first and the old one deleted last, so replacing
that one file is what counts: whatever moment a process dies at, all that is there fits together.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, cast

from torch import Tensor

from sigmatau.core import container
from sigmatau.core.container import Container, Record
from sigmatau.errors import FileError
from sigmatau.files import put
from sigmatau.methods import Method
from sigmatau.training import Epoch, Hook, State

Scores = list[float | None]


@dataclass
class Progress:
    """What was measured after each task that is learnt."""

    rows: list[Scores] = field(default_factory=list)
    capacity: list[float] = field(default_factory=list)
    growth: list[float] = field(default_factory=list)
    overhead: list[float] = field(default_factory=list)  # seconds of learning beside the epochs
    drops: list[dict[str, Any]] = field(default_factory=list)

    @property
    def dropped(self) -> list[str]:
        return [drop["task"] for drop in self.drops]


class Checkpoint:
    """The files of a cell under way; written when the last time was over `seconds` ago."""

    def __init__(self, folder: Path, resolved: Mapping[str, Any], seconds: float) -> None:
        self.folder, self.path = folder, folder / "checkpoint.st"
        self.metrics = folder / "metrics.jsonl"
        self.resolved, self.seconds = json.loads(json.dumps(resolved)), seconds
        self.progress = Progress()
        self.learnt = 0  # tasks that the network on the disk knows, dropped ones included
        self.state: State | None = None
        self.traces: list[dict[str, Tensor]] = []
        self.lines: list[dict[str, Any]] = []
        self.saved = time.monotonic()

    @property
    def network(self) -> Path:
        return self.folder / f"network-{self.learnt}.st"

    def load(self) -> None:
        """Take up what is on the disk."""
        if self.path.exists():
            with Container.open(self.path) as source:
                agrees = _agrees(source.meta.get("config"), self.resolved)
                if "learnt" not in source.meta or not agrees:
                    raise FileError(
                        f"{self.path} was begun with other settings or by another version: finish "
                        "it with those, or delete its folder to begin anew"
                    )
                self.progress = Progress(**source.meta["progress"])
                self.learnt = source.meta["learnt"]
                if "training" in source.names:
                    read = cast(State, source.read("training"))
                    # As copies: in the file tensors lie end to end, and torch crashes on the state
                    # of a random generator that does not begin at a multiple of 8 bytes.
                    self.state = {name: tensor.clone() for name, tensor in read.items()}
                steps = sum(name.startswith("trace/") for name in source.names)
                self.traces = [cast(State, source.read(f"trace/{k}")) for k in range(steps)]

    def trim(self) -> None:
        """Drop the lines of epochs that are to be run again, or were cut off."""
        epochs = 0 if self.state is None else len(self.state["epochs"])
        reached = (self.learnt, epochs)
        if self.metrics.exists():
            self.lines = [x for x in _lines(self.metrics) if (x["place"], x["index"]) < reached]
            put(self.metrics, "".join(json.dumps(line) + "\n" for line in self.lines))

    def save(self, method: Method[Any], learnt: int, state: Callable[[], State] | None) -> None:
        """Keep a network of `learnt` tasks, and the training of the next one if it is under way."""
        if time.monotonic() - self.saved < self.seconds:
            return
        with _writing(self.metrics), open(self.metrics, "a") as file:
            os.fsync(file.fileno())
        before, self.learnt = self.network, learnt
        if self.network != before and learnt:
            method.save(self.network)
        records: dict[str, Record] = {f"trace/{k}": {**t} for k, t in enumerate(self.traces)}
        if state is not None:
            records["training"] = {**state()}
        progress = asdict(self.progress)
        container.write(
            self.path, records, {"config": self.resolved, "progress": progress, "learnt": learnt}
        )
        if self.network != before:
            before.unlink(missing_ok=True)
        self.saved = time.monotonic()

    def line(self, line: dict[str, Any]) -> None:
        """Add the line of an epoch."""
        self.lines.append(line)
        with _writing(self.metrics), open(self.metrics, "a") as file:
            file.write(json.dumps(line) + "\n")

    def clear(self) -> None:
        """Delete what a finished cell does not need."""
        for path in [self.path, *self.folder.glob("network-*.st")]:
            path.unlink(missing_ok=True)


class Recorder(Hook):
    """Writes a line for every epoch, and the state of the training as often as it is worth it."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        method: Method[Any],
        place: int,
        beat: Callable[[int, int], None],
    ) -> None:
        self.checkpoint, self.method, self.place, self.beat = checkpoint, method, place, beat
        self.steps = 0
        self.epoch = 0 if checkpoint.state is None else len(checkpoint.state["epochs"])

    def starts(self, task: str, epochs: int) -> None:
        self.epochs = epochs
        self.beat(self.epoch, epochs)

    def batch_ends(self) -> None:
        self.steps += 1
        self.beat(self.epoch, self.epochs)

    def epoch_ends(self, task: str, epoch: Epoch, state: Callable[[], State]) -> None:
        finite = epoch.score is not None and epoch.score == epoch.score
        self.checkpoint.line(
            {
                "place": self.place,
                "task": task,
                "index": epoch.index,
                "loss": epoch.loss,
                "score": epoch.score if finite else None,
                "lr": epoch.lr,
                "seconds": epoch.seconds,
                "steps": self.steps,
            }
        )
        self.steps, self.epoch = 0, epoch.index + 1
        if self.epoch < self.epochs:  # else the network itself is about to be saved
            self.checkpoint.save(self.method, self.place, state)


def _agrees(old: Any, new: Any) -> bool:
    """Return whether all that was settled then is still so; what is new since has its default."""
    if isinstance(old, dict) and isinstance(new, dict):
        return all(key in new and _agrees(value, new[key]) for key, value in old.items())
    return bool(old == new)


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise FileError(
            f"{path} was not written ({error.strerror}): make room or let it be written to, and "
            "run again; the work up to here is kept"
        ) from error


def _lines(path: Path) -> list[dict[str, Any]]:
    lines = []
    for text in path.read_text().splitlines():
        with contextlib.suppress(ValueError):  # the last one may have been cut off
            lines.append(json.loads(text))
    return lines
