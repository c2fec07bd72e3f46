"""How things are measured: sides take turns within a round, and memory is asked of a fresh process.

A machine that slows down for a while slows all sides of a round alike, so what is told is the
median of the ratios within a round, never a ratio of medians.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
Times = Mapping[str, list[float]]


def seconds(work: Callable[[], object]) -> float:
    """Time one call."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def alternate(sides: Mapping[str, Callable[[], object]], rounds: int, warm: int = 1) -> Times:
    """Time the sides in turn, every second round in the opposite order; warming rounds are lost."""
    times: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(-warm, rounds):
        for name in list(sides) if turn % 2 else list(sides)[::-1]:
            taken = seconds(sides[name])
            if turn >= 0:
                times[name].append(taken)
    return times


def over(times: Times, one: str, other: str) -> float:
    """Return the median over the rounds of the ratio of one side to another."""
    return statistics.median(a / b for a, b in zip(times[one], times[other], strict=True))


def median(times: Times, side: str) -> float:
    return statistics.median(times[side])


def in_fresh_process(call: str, *arguments: object) -> Any:
    """Return what `module.function` of this package returns for plain arguments, called on its own.

    Freed memory goes back to the system at once there, so that what is resident is in use.
    """
    module, _, function = call.partition(".")
    script = (
        "import json, sys, torch; torch.set_num_threads(1); "
        f"from benchmarks.{module} import {function}; "
        f"print(json.dumps({function}(*json.loads(sys.argv[1]))))"
    )
    paths = [str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(p for p in paths if p),
        "OMP_NUM_THREADS": "1",
        "MALLOC_MMAP_THRESHOLD_": "65536",
        "MALLOC_TRIM_THRESHOLD_": "65536",
    }
    done = subprocess.run(
        [sys.executable, "-c", script, json.dumps(arguments)],
        env=environment,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


class Peak:
    """The most bytes that this process held inside a `with`, and how many before it."""

    before = 0
    peak = 0

    def __enter__(self) -> Peak:
        # Forgets the peak of what came before. Elsewhere the peak is that since the process began,
        # which can only be too high.
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")
        self.before = _status("VmRSS")
        return self

    def __exit__(self, *_: object) -> None:
        self.peak = _status("VmHWM")

    @property
    def extra(self) -> int:
        return self.peak - self.before


def _status(key: str) -> int:
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:  # no Linux: the best there is, and in bytes on macOS
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(key))
