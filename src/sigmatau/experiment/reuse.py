"""Cells that another results folder has finished already, taken over instead of run again.

Recipes overlap: an ablation begins with a row of the main table, and a figure shows some of its
cells. Two cells are the same work if all they were resolved to is the same: stream, order, seed,
network, and every setting of the method, whether given or a default. A setting that a finished cell
does not know yet had its default there.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sigmatau.errors import FileError
from sigmatau.experiment.build import Plan
from sigmatau.experiment.config import Cell
from sigmatau.experiment.files import FORMAT, locked, make_folder, read_json, write_json
from sigmatau.experiment.precision import accepted, begun_in
from sigmatau.methods import registry

BESIDE = ("metrics.jsonl", "parameters.json")


def take_over(
    cells: Iterable[tuple[Cell, Path]], sources: Sequence[Path], root: Path | None
) -> list[Cell]:
    """Fill the folders of cells from results folders, and return the cells that were there."""
    known = _finished(sources)
    taken = []
    for cell, folder in cells if known else ():
        plan = Plan(cell, root)
        resolved = plan.resolved(plan.method())
        alike = [_work({**resolved, "precision": p}) for p in accepted(cell)]
        source = next((known[work] for work in alike if work in known), None)
        if source is not None and _copy(source, cell, folder):
            taken.append(cell)
    return taken


def _finished(sources: Sequence[Path]) -> dict[str, Path]:
    """Return the folder of each finished cell, by its work."""
    found: dict[str, Path] = {}
    for source in sources:
        if not source.is_dir():
            raise FileError(f"no results folder {source} to take cells from: check --reuse")
        for path in sorted(source.glob("cells/*/result.json")):
            result = read_json(path)
            if not isinstance(result, dict) or result.get("format") != FORMAT:
                continue
            if result["config"]["method"] in registry.names():
                found.setdefault(_work(result["config"]), path.parent)
    return found


def _work(resolved: Mapping[str, Any]) -> str:
    usual = {k: field.get_default() for k, field in Cell.model_fields.items()}
    defaults = registry.entry(resolved["method"]).defaults
    whole = {**usual, **resolved, "settings": {**defaults, **resolved["settings"]}}
    return json.dumps(whole, sort_keys=True)


def _copy(source: Path, cell: Cell, folder: Path) -> bool:
    """Copy a finished cell under its new name; the result last, so that it is whole if there."""
    result, about = read_json(source / "result.json"), read_json(source / "config.json")
    if result is None or about is None:
        return False
    with locked(make_folder(folder) / "lock") as mine:
        if not mine:  # someone runs it at this moment
            return False
        # What a run left half done goes first: it must not be taken up beside these files.
        for stale in [folder / "status.json", folder / "failure.json", *folder.glob("*.st")]:
            stale.unlink(missing_ok=True)
        named = {**cell.model_dump(mode="json"), "precision": begun_in(about)}
        write_json(folder / "config.json", {**about, "cell": named})
        for name in BESIDE:
            if (source / name).exists():
                shutil.copyfile(source / name, folder / name)
        write_json(folder / "result.json", {**result, "label": cell.label})
        (folder / "lock").unlink(missing_ok=True)
    return True
