"""What importing the library costs beside importing torch, in fresh processes, turn by turn."""

from __future__ import annotations

import statistics
import subprocess
import sys

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


def main(rounds: int = 7) -> None:
    """Print medians, and ratios within a round, of importing torch and this library."""
    times = [{name: seconds(script) for name, script in SIDES.items()} for _ in range(rounds)]
    for name in SIDES:
        spent = statistics.median(t[name] for t in times)
        ratio = statistics.median(t[name] / t["torch"] for t in times)
        print(f"{name:16} {spent:6.2f} s  {ratio:5.2f} times import torch")


if __name__ == "__main__":
    main()
