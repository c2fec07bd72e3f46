"""Run every benchmark, one after the other: python -m benchmarks [NAME ...]"""

from __future__ import annotations

import pkgutil
import sys
from importlib import import_module

import benchmarks


def main() -> None:
    found = [m.name for m in pkgutil.iter_modules(benchmarks.__path__) if m.name[0] != "_"]
    for name in sys.argv[1:] or found:
        print(f"\n== {name}", flush=True)
        import_module(f"benchmarks.{name}").main()


if __name__ == "__main__":
    main()
