"""Processes on this machine, through joblib; a killed one does not take the others' work along."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path

from joblib import Parallel, delayed, parallel_config
from joblib.externals.loky.process_executor import TerminatedWorkerError

from sigmatau.experiment.engines import Job, Outcome, attempt, cores, lost

log = logging.getLogger(__name__)


class Local:
    """So many cells side by side, each with `threads` threads."""

    def __init__(self, workers: int | None = None, threads: int = 1) -> None:
        self.workers = workers or max(1, cores() // threads)
        self.threads = threads

    def run(self, jobs: Sequence[Job]) -> Iterator[Outcome]:
        left = {job.cell.id: job for job in jobs}
        while left:
            try:
                for outcome in self._pool(list(left.values()), self.workers):
                    del left[outcome.id]
                    yield outcome
            except TerminatedWorkerError:
                # Whoever was at work may be to blame, by using up the memory for one: each of them
                # goes on alone, so that the guilty one is known and the rest is finished.
                suspects = [j for j in left.values() if (Path(j.folder) / "lock").exists()]
                log.warning("a worker was killed: %s go on alone", [j.cell.id for j in suspects])
                for job in suspects:
                    del left[job.cell.id]
                    yield self._alone(job)

    def _alone(self, job: Job) -> Outcome:
        try:
            # With one worker joblib would use this very process.
            return next(self._pool([job], 2))
        except TerminatedWorkerError as error:
            return lost(job, f"its process was killed twice, perhaps for want of memory: {error}")

    def _pool(self, jobs: Sequence[Job], workers: int) -> Iterator[Outcome]:
        with parallel_config("loky", n_jobs=workers, inner_max_num_threads=self.threads):
            pool = Parallel(batch_size=1, return_as="generator_unordered")
            yield from pool(delayed(attempt)(job) for job in jobs)
