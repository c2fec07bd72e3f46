"""A recipe and cells whose document can be worked out by hand, and how to read it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sigmatau.report.reproduced import document

from .made import put, result

RECIPE = """
title: A table
stream: split-cifar100
orders: [A, B, C]
methods:
  - {method: stl, label: STL}
  - {method: l2t, label: L2T}
  - {method: ewc, label: EWC}
  - {method: den, label: DEN}
  - {method: apd1, label: APD(1), settings: {l1: 6e-4}}
  - {method: apd2, label: APD(2), settings: {l1: 6e-4}}
  - {method: apd1, label: small, settings: {budget: 0.01}}
  - {method: apd1, label: large, settings: {budget: 0.03}}
"""


def two(
    method: str, label: str, order: str, one: float, other: float, **more: Any
) -> dict[str, Any]:
    """Return a result of two tasks with these final scores, in %."""
    indices = (0, 1) if order == "A" else (1, 0)
    made = result(
        method, order, label=label, tasks=("one", "two"), order_indices=indices, spread=0, **more
    )
    final = {"one": one / 100, "two": other / 100}
    return {**made, "final": final, "average_accuracy": (one + other) / 200}


def results(root: Path) -> Path:
    """Write a recipe and cells whose table can be worked out by hand."""
    (root / "recipes").mkdir(parents=True)
    (root / "recipes" / "split-cifar100.yaml").write_text(RECIPE)
    folder = root / "results" / "split-cifar100"
    config = {"settings": {"l1": 6e-4, "l2": 100.0}}
    apd = {"capacity": 1.35, "seconds": 150.0, "config": config}
    for order, one, other in (("A", 50, 60), ("B", 54, 60), ("C", 52, 63)):
        put(folder, two("stl", "STL", order, 60, 60, capacity=2.0, seconds=100.0))
        put(folder, two("l2t", "L2T", order, 45, 55, capacity=1.0))
        put(folder, two("ewc", "EWC", order, 40, 50, capacity=1.0))
        put(folder, two("apd1", "APD(1)", order, one, other, **apd))
        for label, budget, score, size in (("small", 0.01, 59, 1.1), ("large", 0.03, 61, 1.3)):
            given = {"settings": {"budget": budget, "l2": 100.0}}
            put(folder, two("apd1", label, order, score, score, capacity=size, config=given))
    put(folder, two("apd2", "APD(2)", "A", 58, 60, capacity=1.3))
    return root / "results"


def text(folder: Path) -> str:
    return document(folder, folder.parent / "REPRODUCED.md").text


def line(told: str, *starts: str) -> list[list[str]]:
    """Return the cells of the table rows that start so."""
    rows = [[c.strip() for c in t.strip("|").split("|")] for t in told.splitlines() if "|" in t]
    return [row for row in rows if row[: len(starts)] == list(starts)]


def judged(told: str, recipe: str, row: str, bar: str) -> list[str]:
    (found,) = [r for r in line(told, recipe, row) if r[2].startswith(bar)]
    return found[3:]
