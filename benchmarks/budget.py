"""The table of docs/budget.md, from the result files of `recipes/budget-*.yaml`.

Run: python -m benchmarks.budget
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parents[1] / "results"


def rows(folder: Path) -> list[dict[str, Any]]:
    """Return the finished cells of a results folder, by capacity."""
    found = [json.loads(file.read_text()) for file in folder.glob("cells/*/result.json")]
    return sorted(found, key=lambda cell: float(cell["capacity"]["paper"]))


def setting(cell: dict[str, Any]) -> str:
    """Return the setting that sets the size: a budget or a price."""
    settings = cell["config"]["settings"]
    if cell["method"] == "stl":
        return "STL, a network for every task"
    if settings["budget"] is not None:
        return f"budget = {settings['budget']:g}"
    moves = "" if settings["shared"] == "fixed" else ", shared weights learnt"
    return f"l1 = {settings['l1']:g}{moves}"


def table(folder: Path) -> str:
    """Return a Markdown table: setting, capacities, accuracy over all and over the later tasks."""
    lines = [
        "| setting | capacity (paper) | strict | bytes | accuracy | of tasks after the first |",
        "|---|---|---|---|---|---|",
    ]
    for cell in rows(folder):
        scores = [cell["final"][name] for name in cell["task_names"]]
        capacity = cell["capacity"]
        shown = [capacity["paper"], capacity["strict"], capacity["bytes"], cell["average_accuracy"]]
        shown.append(sum(scores[1:]) / len(scores[1:]))
        lines.append(f"| {setting(cell)} | " + " | ".join(f"{v:.1%}" for v in shown) + " |")
    return "\n".join(lines)


def main() -> None:
    """Print a table for every folder of results."""
    for folder in sorted(RESULTS.glob("budget-*")):
        print(f"{folder.name}\n\n{table(folder)}\n")


if __name__ == "__main__":
    main()
