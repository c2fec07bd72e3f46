"""Cells on a Ray cluster. All nodes must see the results folder and the data under the same path.

A cell whose worker or node dies is started again elsewhere by Ray, and goes on from its checkpoint.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterator, Sequence
from typing import Any

from sigmatau.errors import ConfigError, MissingExtra
from sigmatau.experiment.engines import Job, Outcome, attempt, lost

try:
    import ray
    from ray.exceptions import RayError
except ImportError as error:
    raise MissingExtra("ray", "ray") from error

RETRIES = 3  # of a cell whose process was killed


class Ray:
    """As many cells side by side as the cluster has cores for, each with `threads` of them."""

    def __init__(
        self, address: str | None = None, threads: int = 1, workers: int | None = None
    ) -> None:
        _answers(address)
        try:
            ray.init(
                address=address or "local",
                num_cpus=None if address else workers,
                include_dashboard=None if address else False,
                log_to_driver=False,
                logging_level=logging.ERROR,
            )
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise _absent(address, error) from error
        cores = int(ray.cluster_resources().get("CPU", 1))  # type: ignore[no-untyped-call]
        self.threads = threads
        self.workers = max(1, min(workers or cores, cores // threads))

    def run(self, jobs: Sequence[Job]) -> Iterator[Outcome]:
        remote = ray.remote(num_cpus=self.threads, max_retries=RETRIES)(attempt)
        left = list(reversed(jobs))
        pending: dict[Any, Job] = {}
        while left or pending:
            while left and len(pending) < self.workers:
                job = left.pop()
                pending[remote.remote(job)] = job
            (ready, *_), _ = ray.wait(list(pending))
            job = pending.pop(ready)
            try:
                yield ray.get(ready)
            except RayError as error:
                yield lost(job, f"its worker was lost {RETRIES + 1} times: {error}")


def _answers(address: str | None) -> None:
    """See that somebody listens: Ray itself would try for minutes before it gives up."""
    host, colon, port = (address or "").rpartition("://")[2].partition(":")
    if colon and port.isdecimal():
        try:
            socket.create_connection((host, int(port)), timeout=10).close()
        except OSError as error:
            raise _absent(address, error) from error


def _absent(address: str | None, error: Exception) -> ConfigError:
    return ConfigError(
        f"no Ray cluster at {address!r} ({error}): start one with `ray start --head`, or leave out "
        "--address for one on this machine. One that has a token lets nobody in without "
        "RAY_AUTH_MODE=token"
    )
