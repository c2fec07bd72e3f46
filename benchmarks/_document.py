"""From what was measured to the documents: figures in `results/bench`, tables between two markers.

A benchmark returns a `Section`. It is kept as JSON, and the documents' tables are made from those
files alone, so that no number in them is typed by hand. Text outside the markers is left as it is:

    <!-- bench steps --> this is replaced <!-- end -->

`bars` and `machine` in the place of a name stand for the bars of all benchmarks and where they ran.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from benchmarks._measure import ROOT
from sigmatau.experiment.provenance import processor
from sigmatau.files import put

RESULTS, DOCS = ROOT / "results" / "bench", ROOT / "docs"
_BLOCK = re.compile(r"(<!-- bench ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


@dataclass(frozen=True)
class Bar:
    """What was asked for: a value that is at most `limit`."""

    what: str
    value: float
    limit: float

    @property
    def kept(self) -> bool:
        return self.value <= self.limit


@dataclass(frozen=True)
class Table:
    """Rows under column names, with a line above that says what they are."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]

    def __str__(self) -> str:
        lines = [self.columns, ["---"] * len(self.columns), *self.rows]
        table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        return f"{self.title}\n\n{table}" if self.title else table


@dataclass(frozen=True)
class Section:
    """What one benchmark found: tables to read, bars to keep, and numbers to reckon with."""

    tables: Sequence[Table] = ()
    bars: Sequence[Bar] = ()
    numbers: Mapping[str, float] = field(default_factory=dict)
    figure: str = ""  # a file in docs/
    machine: str = ""

    def __str__(self) -> str:
        parts = [str(table) for table in self.tables]
        if self.bars:
            parts.append(str(bars_table(self.bars)))
        if self.figure:
            parts.append(f"![]({self.figure})")
        return "\n\n".join(parts)


def bars_table(bars: Sequence[Bar]) -> Table:
    rows = [
        [b.what, f"{b.limit:g}", f"{b.value:.3g}", "kept" if b.kept else "**missed**"] for b in bars
    ]
    return Table("", ["what", "at most", "measured", ""], rows)


def machine() -> str:
    """Say what the figures were measured on, without telling whose machine it is."""
    hardware = f"{processor()}, {os.cpu_count()} logical cores"
    with contextlib.suppress(OSError, ValueError):
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
        hardware += f", {memory:.0f} GiB"
    software = f"{platform.system()}, Python {platform.python_version()}, torch {torch.__version__}"
    return f"{hardware}; {software}; one torch thread"


def keep(name: str, section: Section) -> None:
    """Write a section to its file."""
    told = asdict(section) | {"machine": machine()}
    put(RESULTS / f"{name}.json", json.dumps(told, indent=1) + "\n")


def kept(name: str) -> Section:
    """Return the section that was kept under a name, an empty one if there is none."""
    path = RESULTS / f"{name}.json"
    if not path.exists():
        return Section()
    told: dict[str, Any] = json.loads(path.read_text())
    told["tables"] = [Table(**table) for table in told["tables"]]
    told["bars"] = [Bar(**bar) for bar in told["bars"]]
    return Section(**told)


def all_kept() -> dict[str, Section]:
    return {path.stem: kept(path.stem) for path in sorted(RESULTS.glob("*.json"))}


def write_documents(folder: Path = DOCS) -> None:
    """Fill in every marked place of every document."""
    sections = all_kept()
    for path in sorted(folder.glob("*.md")):
        text = path.read_text()
        filled = fill(text, sections)
        if filled != text:
            put(path, filled)


def fill(text: str, sections: Mapping[str, Section]) -> str:
    """Return a document with what stands between its markers made anew."""
    named = [match.group(2) for match in _BLOCK.finditer(text)]
    sections = {name: sections[name] for name in named if name in sections}

    def block(match: re.Match[str]) -> str:
        start, name, end = match.groups()
        if name == "bars":
            found = str(bars_table([bar for s in sections.values() for bar in s.bars]))
        elif name == "machine":
            found = machines(sections)
        else:
            found = str(sections.get(name) or "Not measured yet.")
        return f"{start}\n{found}\n\n{end}"

    return _BLOCK.sub(block, text)


def machines(sections: Mapping[str, Section]) -> str:
    """Say on which machine each section was measured."""
    found: dict[str, list[str]] = {}
    for name, section in sections.items():
        found.setdefault(section.machine, []).append(name)
    if len(found) == 1:
        return f"{next(iter(found))}."
    return "\n".join(f"- {told} ({', '.join(names)})." for told, names in found.items())
