"""Cells that take a fraction of a second, and what is the same in two results."""

from __future__ import annotations

from typing import Any

from sigmatau.experiment.config import Cell, Recipe

TINY: dict[str, Any] = {
    "stream": "digits",
    "tasks": 3,
    "rows": {"train": 60, "val": 20, "test": 30},
    "backbone": {"widths": [8, 6]},
    "checkpoint_seconds": 0,
}


def tiny(method: str = "apd1", **fields: Any) -> Cell:
    settings = {"epochs": 4, **fields.pop("settings", {})}
    return Cell.of({**TINY, "method": method, "settings": settings, **fields})


def tiny_recipe(**fields: Any) -> Recipe:
    given = {"methods": ["apd1", "finetune"], "orders": ["A", "B"], "seeds": [0]}
    return Recipe.of({**TINY, "settings": {"epochs": 2}, **given, **fields})


def timeless(result: dict[str, Any] | None) -> dict[str, Any]:
    """Return a result without what differs from run to run."""
    assert result is not None
    times = ("seconds", "seconds_per_task", "machine")
    return {key: value for key, value in result.items() if key not in times}
