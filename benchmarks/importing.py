"""What importing the library costs beside importing torch, in fresh processes, turn by turn."""

from __future__ import annotations

import statistics
import subprocess
import sys

from benchmarks._document import Section, Table

SIDES = {
    "torch": "import torch",
    "sigmatau": "import sigmatau",
    "sigmatau.APDNet": "import sigmatau; sigmatau.APDNet",
}


def seconds(statement: str) -> float:
    """Time one import, without the start of the interpreter."""
    script = f"import time; a = time.perf_counter(); {statement}; print(time.perf_counter() - a)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    return float(done.stdout)


def main(rounds: int = 7) -> Section:
    times = [{name: seconds(script) for name, script in SIDES.items()} for _ in range(rounds)]
    rows = []
    for name in SIDES:
        spent = statistics.median(t[name] for t in times)
        ratio = statistics.median(t[name] / t["torch"] for t in times)
        rows.append([name, f"{spent:.2f}", f"{ratio:.2f}"])
    return Section([Table("", ["import", "s", "over torch"], rows)])


if __name__ == "__main__":
    print(main())
