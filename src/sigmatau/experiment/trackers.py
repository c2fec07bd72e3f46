"""Cells told to TensorBoard or MLflow as they run; a tracker that fails never costs a training."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from sigmatau.errors import ConfigError, MissingExtra, nearest
from sigmatau.experiment.config import Cell
from sigmatau.training import Epoch, Hook, State

log = logging.getLogger(__name__)


class Writer(Protocol):
    """What a tracker must be able to do."""

    def number(self, name: str, value: float, step: int) -> None: ...

    def close(self) -> None: ...


class TensorBoard:
    """Event files in the folder `tensorboard` of the results."""

    def __init__(self, out: Path, cell: Cell) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise MissingExtra("tensorboard", "trackers") from error
        self.writer: Any = SummaryWriter(str(out / "tensorboard" / cell.id))

    def number(self, name: str, value: float, step: int) -> None:
        self.writer.add_scalar(name, value, step)

    def close(self) -> None:
        self.writer.close()


class MLflow:
    """Runs in the store that MLFLOW_TRACKING_URI names, or in `mlflow.db` of the results."""

    def __init__(self, out: Path, cell: Cell) -> None:
        try:
            import mlflow
        except ImportError as error:
            raise MissingExtra("mlflow", "trackers") from error
        # By the client alone: the fluent interface keeps a global run.
        store = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{out.absolute() / 'mlflow.db'}"
        self.client: Any = mlflow.MlflowClient(tracking_uri=store)
        found = self.client.get_experiment_by_name(cell.stream)
        experiment = found.experiment_id if found else self.client.create_experiment(cell.stream)
        self.run = self.client.create_run(experiment, run_name=cell.id).info.run_id
        for key, value in {**cell.settings, "order": cell.order, "seed": cell.seed}.items():
            self.client.log_param(self.run, key, value)

    def number(self, name: str, value: float, step: int) -> None:
        self.client.log_metric(self.run, name, value, step=step)

    def close(self) -> None:
        self.client.set_terminated(self.run)


TRACKERS: dict[str, Callable[[Path, Cell], Writer]] = {"tensorboard": TensorBoard, "mlflow": MLflow}


def known(names: Iterable[str]) -> None:
    """Refuse a tracker that does not exist."""
    for name in names:
        if name not in TRACKERS:
            raise ConfigError(f"no tracker {name!r}; {nearest(name, TRACKERS)}")


class Tracked(Hook):
    """Tells trackers of every epoch of a cell."""

    def __init__(self, names: tuple[str, ...], out: Path, cell: Cell) -> None:
        self.writers: dict[str, Writer] = {}
        for name in names:
            self._try(name, partial(self._open, name, out, cell))

    def epoch_ends(self, task: str, epoch: Epoch, state: Callable[[], State]) -> None:
        numbers = {"loss": epoch.loss, "validation": epoch.score, "lr": epoch.lr}
        for kind, value in numbers.items():
            if value is not None:
                self._tell(f"{kind}/{task}", value, epoch.index + 1)

    def task_ends(self, learnt: int, score: float, capacity: float) -> None:
        self._tell("score", score, learnt)
        self._tell("capacity", capacity, learnt)

    def close(self) -> None:
        for name, writer in list(self.writers.items()):
            self._try(name, writer.close)

    def _tell(self, name: str, value: float, step: int) -> None:
        for tracker, writer in list(self.writers.items()):
            self._try(tracker, partial(writer.number, name, value, step))

    def _open(self, name: str, out: Path, cell: Cell) -> None:
        self.writers[name] = TRACKERS[name](out, cell)

    def _try(self, name: str, act: Callable[[], None]) -> None:
        try:
            act()
        except Exception as error:
            # Whatever a tracker or its server comes up with must not cost a training.
            log.warning("%s is left out from here on: %s", name, error)
            self.writers.pop(name, None)
