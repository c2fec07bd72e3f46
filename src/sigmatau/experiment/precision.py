"""The precision that `auto` stands for: half where the processor computes in it, else single.

Without instructions for 16-bit numbers they are emulated, which takes more than twice as long as
single precision; on a GPU it is single too. What a cell was begun in it is finished in, and either
is a result of `auto`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args

from sigmatau.experiment.config import Cell
from sigmatau.experiment.files import read_json

Concrete = Literal["bf16-mixed", "32-true"]
# What Linux calls the instructions: of x86 (two kinds), and of ARM.
INSTRUCTIONS = {"avx512_bf16", "amx_bf16", "bf16"}


@cache
def fastest(about: Path = Path("/proc/cpuinfo")) -> Concrete:
    """Return the precision that this machine is fastest in, as far as its flags tell."""
    try:
        words = set(about.read_text().split())
    except OSError:
        return "32-true"
    return "bf16-mixed" if words & INSTRUCTIONS else "32-true"


def accepted(cell: Cell) -> tuple[str, ...]:
    """Return the precisions that a result of this cell may have."""
    return get_args(Concrete) if cell.precision == "auto" else (cell.precision,)


def settled(cell: Cell, folder: Path | None = None) -> Cell:
    """Return the cell in the precision that its folder has begun in, or else this machine's."""
    if cell.precision != "auto":
        return cell
    about = None if folder is None else read_json(folder / "config.json")
    usual = fastest() if cell.accelerator == "cpu" else "32-true"
    begun = begun_in(about) if isinstance(about, dict) else usual
    return cell.model_copy(update={"precision": begun})


def begun_in(about: Mapping[str, Any]) -> str:
    """Return the precision of a cell from its `config.json`."""
    usual = Cell.model_fields["precision"].default
    return str(about.get("cell", {}).get("precision", usual))
