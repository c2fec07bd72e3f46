"""The processes that learn one cell together: the one that asked leads, and starts the others.

The leader is like the only process of any other cell: it holds the lock, writes the files, hears
the hooks. The others follow: they learn the same tasks and keep nothing. A follower is ended with
its leader, whatever ends that, since the pipe between them closes; and a leader whose follower is
lost is told so by the connection that breaks.

    python -m sigmatau.experiment.ranks     a follower, told by a line of JSON what to do
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import IO, Any

import torch

from sigmatau.errors import ConfigError, MissingExtra, SigmatauError, TrainingError
from sigmatau.experiment.config import Cell

try:
    from lightning_fabric import Fabric
    from lightning_fabric.plugins.environments.lightning import LightningEnvironment
    from lightning_fabric.strategies.ddp import DDPStrategy
except ImportError as error:
    raise MissingExtra("lightning-fabric", "fabric") from error

MODULE = "sigmatau.experiment.ranks"
# Followers wait while the leader scores tasks. One that is lost is noticed without any timeout.
PATIENCE = timedelta(days=1)
SET_BY_FABRIC = ("MASTER_ADDR", "MASTER_PORT", "OMP_NUM_THREADS")

logging.getLogger("lightning_fabric").setLevel(logging.WARNING)  # it greets at every start


class _Started(LightningEnvironment):
    """Processes of this machine that are there already."""

    def __init__(self, rank: int, port: int) -> None:
        super().__init__()
        self.rank, self._main_port = rank, port

    @property
    def creates_processes_externally(self) -> bool:
        return True

    @property
    def main_address(self) -> str:
        return "127.0.0.1"

    def local_rank(self) -> int:
        return self.rank

    def node_rank(self) -> int:
        return 0


class Follower:
    """Another process, from the leader's side."""

    def __init__(self, given: dict[str, Any]) -> None:
        self.name = f"process {given['rank'] + 1} of {given['cell']['devices']}"
        self.errors: IO[str] = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self.process = subprocess.Popen(
            [sys.executable, "-m", MODULE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
        )
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it is gone already, as `wait` will tell
            print(json.dumps(given), file=self.process.stdin, flush=True)

    def wait(self) -> None:
        """Wait until it has read all it needs from the disk and is about to connect."""
        assert self.process.stdout is not None
        if not self.process.stdout.readline():
            raise TrainingError(self.why())

    def gone(self) -> bool:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(5)  # its connection breaks a moment before it ends
        return self.process.poll() is not None

    def why(self) -> str:
        self.process.wait()
        self.errors.seek(0)
        told = self.errors.read().strip().splitlines() or ["it left no word"]
        return (
            f"{self.name} was lost with status {self.process.returncode} ({told[-1]}): see that "
            "there is memory for all of them, and run again; what is finished is kept"
        )

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()
        self.errors.close()


@contextlib.contextmanager
def started(cell: Cell, folder: Path, root: Path | None) -> Iterator[Fabric]:
    """Start the other processes of a cell, and end them with the block."""
    if torch.distributed.is_initialized():
        raise ConfigError("this process is of a group already: run the cell in one that is not")
    before = {name: os.environ.get(name) for name in SET_BY_FABRIC}
    followers: list[Follower] = []
    try:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        given = {
            "cell": cell.model_dump(mode="json"),
            "folder": str(folder),
            "root": None if root is None else str(root),
            "port": port,
        }
        followers += [Follower({**given, "rank": k}) for k in range(1, cell.devices)]
        for follower in followers:
            follower.wait()
        yield _connected(cell, 0, port)
    except SigmatauError:
        raise
    except RuntimeError as error:
        lost = next((f for f in followers if f.gone()), None)
        if lost is None:
            raise
        raise TrainingError(lost.why()) from error
    finally:
        for follower in followers:
            follower.end()
        _disconnect()
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def _connected(cell: Cell, rank: int, port: int) -> Fabric:
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # else Fabric would choose for us
    assert cell.precision != "auto", "a cell is settled before it runs"
    strategy: Any = "auto" if cell.devices == 1 else DDPStrategy(timeout=PATIENCE)
    fabric = Fabric(
        accelerator=cell.accelerator,
        devices=cell.devices,
        strategy=strategy,
        plugins=[_Started(rank, port)],
        precision=cell.precision,
    )
    fabric.launch()
    return fabric


def _disconnect() -> None:
    # Left to the end of the process, the threads of a connection may abort it.
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def main() -> None:
    """Follow."""
    from sigmatau.experiment.cell import follow

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it is the leader that is interrupted
    given = json.loads(sys.stdin.readline())
    threading.Thread(target=_ends_with_leader, daemon=True).start()
    cell, root = Cell.of(given["cell"]), given["root"]

    def connect() -> Fabric:
        print("ready", flush=True)
        return _connected(cell, given["rank"], given["port"])

    try:
        follow(cell, Path(given["folder"]), None if root is None else Path(root), connect)
    finally:
        _disconnect()


def _ends_with_leader() -> None:
    sys.stdin.read()  # until the other end is closed, by its owner or by his death
    os._exit(1)


if __name__ == "__main__":
    main()
