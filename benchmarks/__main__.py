"""Run benchmarks, all of them or some: python -m benchmarks [NAME ...]

Each one is printed, kept in results/bench, and put into the documents. With --write nothing is
measured: the documents are made anew from what was kept.
"""

from __future__ import annotations

import pkgutil
import sys
from importlib import import_module

import torch

import benchmarks
from benchmarks._document import keep, write_documents

LAST = "scale"  # reckons with what the others found


def names() -> list[str]:
    found = [m.name for m in pkgutil.iter_modules(benchmarks.__path__) if m.name[0] != "_"]
    return sorted(found, key=lambda name: (name == LAST, name))


def main(chosen: list[str]) -> None:
    torch.set_num_threads(1)
    if unknown := set(chosen) - set(names()):
        raise SystemExit(f"no benchmark {', '.join(unknown)}; there are {', '.join(names())}")
    for name in chosen or names():
        print(f"\n== {name}\n", flush=True)
        section = import_module(f"benchmarks.{name}").main()
        if section is not None:
            print(section, flush=True)
            keep(name, section)
            write_documents()


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        write_documents()
    else:
        main(sys.argv[1:])
