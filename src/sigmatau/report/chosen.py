"""With what settings the rows were run, and the searches that chose them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from sigmatau.errors import FileError
from sigmatau.experiment.config import Common, Recipe, parse
from sigmatau.experiment.config import settings_of as settings_of_cell
from sigmatau.report.tables import Group, flat

# What a cell is, or follows from that, rather than how it learns.
_APART = frozenset(
    ("stream", "method", "order", "order_indices", "seed", "settings.seed", "head", "keep")
)


def settings_of(groups: Iterable[Group]) -> tuple[str, list[tuple[str, str]]]:
    """Return what all finished rows have in common, and each row's own.

    Of a row that was not run it is what the recipe asks for.
    """
    found = {g.label: _settings((g.done or g.runs)[0].config) for g in groups}
    done = [found[g.label] for g in groups if g.done]
    common = {k: v for k, v in done[0].items() if all(s.get(k) == v for s in done)} if done else {}
    own = [
        (label, _listed({k: v for k, v in settings.items() if common.get(k) != v}))
        for label, settings in found.items()
    ]
    return _listed(common), own


def _settings(config: Mapping[str, Any]) -> dict[str, str]:
    told: dict[str, str] = {}
    for key, value in flat(config).items():
        usual = Common.model_fields.get(key)
        if key in _APART or value is None or (usual is not None and value == usual.default):
            continue
        parts = value if isinstance(value, dict) else None
        if parts is None:
            told[key.removeprefix("settings.")] = _short(value)
        else:
            told |= {f"{key}.{part}": _short(v) for part, v in parts.items()}
    return told


def _listed(settings: Mapping[str, str]) -> str:
    return ", ".join(f"{key} {value}" for key, value in settings.items())


def _short(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return json.dumps(value)
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list):
        return "-".join(map(_short, value))
    return str(value)


class _Trial(BaseModel):
    state: str
    settings: dict[str, Any]
    value: float | None = None  # below zero: it does not fit the capacity

    @property
    def fits(self) -> bool:
        return self.state == "complete" and (self.value or 0) >= 0


class _Method(BaseModel):
    method: str


class _Search(BaseModel):
    cell: _Method


class _Trials(BaseModel):
    trials: list[_Trial]
    search: _Search | None = None


class _Best(BaseModel):
    method: str
    settings: dict[str, Any]
    validation: dict[str, float | None]


@dataclass(frozen=True)
class Study:
    """A search by `sigmatau tune`, from its `trials.json` and, if a trial fits, its `best.yaml`."""

    name: str
    method: str
    searched: str
    trials: str
    chosen: str
    score: str
    capacity: str
    settings: Mapping[str, Any]


def studies(folder: Path) -> list[Study]:
    """Read every search below a folder; none if it is not there."""
    if not folder.is_dir():
        return []
    return [_study(path) for path in sorted(folder.iterdir()) if path.is_dir()]


def _study(path: Path) -> Study:
    try:
        told = _Trials.model_validate_json((path / "trials.json").read_bytes())
        if told.search is not None and not any(trial.fits for trial in told.trials):
            best = _Best(method=told.search.cell.method, settings={}, validation={})
        else:
            best = _Best.model_validate(parse((path / "best.yaml").read_text(), str(path)))
    except (OSError, ValidationError, UnicodeDecodeError) as error:
        raise FileError(
            f"{path} is no finished search ({error}): let `sigmatau tune` with --out {path} end, "
            "or remove it"
        ) from error
    log = told.trials
    keys = list(dict.fromkeys(key for trial in log for key in trial.settings))
    states = [trial.state for trial in log]
    return Study(
        path.name,
        best.method,
        "; ".join(_tried(k, [t.settings[k] for t in log if k in t.settings]) for k in keys),
        f"{len(log)} (" + ", ".join(f"{states.count(s)} {s}" for s in sorted(set(states))) + ")",
        _listed({k: _short(best.settings[k]) for k in keys if k in best.settings}) or "none fits",
        _percent(best.validation.get("score"), 2),
        _percent(best.validation.get("capacity"), 1),
        {k: best.settings[k] for k in keys if k in best.settings},
    )


def _tried(key: str, values: Sequence[Any]) -> str:
    if all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in values):
        low, high = (f"{v:.3g}" for v in (min(values), max(values)))
        return f"{key} {low}" if low == high else f"{key} from {low} to {high}"
    return f"{key} in {', '.join(sorted({_short(v) for v in values}))}"


def _percent(value: float | None, digits: int) -> str:
    return "" if value is None else f"{100 * value:.{digits}f}"


def users(study: Study, recipes: Mapping[str, Recipe]) -> list[str]:
    """Return the rows of recipes that have what a search chose, on the stream it is named for."""
    if not study.settings:
        return []
    named = {recipe.stream for recipe in recipes.values() if recipe.stream in study.name}
    found: dict[str, None] = {}
    for name, recipe in recipes.items():
        for cell in recipe.cells() if not named or recipe.stream in named else ():
            if cell.method != study.method:
                continue
            settings = settings_of_cell(cell)
            if all(_same(settings.get(k), v) for k, v in study.settings.items()):
                found[f"{name}: {cell.label}"] = None
    return list(found)


def _same(one: Any, other: Any) -> bool:
    numbers = [v for v in (one, other) if isinstance(v, (int, float)) and not isinstance(v, bool)]
    return math.isclose(*numbers, rel_tol=1e-3) if len(numbers) == 2 else bool(one == other)
