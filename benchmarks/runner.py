"""What the runner costs: many tiny cells through a grid, beside the same work in a plain loop.

The plain loop learns and scores every cell's tasks with nothing around it: no files, no locks, no
checkpoints. Rounds alternate between the two and processor time is compared, so that a busy machine
spoils neither. Run: python -m benchmarks.runner [CELLS]
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import torch

from benchmarks._document import Bar, Section, Table
from sigmatau.experiment.build import Plan
from sigmatau.experiment.config import Cell, Recipe
from sigmatau.experiment.engines.local import Local
from sigmatau.experiment.grid import run_grid

LIMIT = 0.1
ROUND = 20  # cells


def recipe(cells: int) -> Recipe:
    """Return tiny cells: five tasks of 8x8 digits, about half a second each."""
    return Recipe.of(
        {
            "stream": "digits",
            "methods": ["apd1"],
            "settings": {"epochs": 8},
            "orders": [f"random:{i}" for i in range(cells)],
        }
    )


def plainly(cell: Cell) -> None:
    plan = Plan(cell)
    method, tests = plan.method(), []
    for place in range(len(plan.names)):
        task = plan.task(place)
        tests.append((task.name, task.test))
        method.learn(task.name, task.train, task.val, outputs=len(task.classes), progress=False)
        for name, test in tests:
            method.accuracy(name, test)
        method.capacity()


def main(count: int = 1000) -> Section:
    cells = recipe(count).cells()
    plainly(cells[0])  # the first pays for imports and data
    plain = ran = 0.0
    with tempfile.TemporaryDirectory() as folder:
        for start in range(0, count, ROUND):
            some = cells[start : start + ROUND]
            began = time.process_time()
            for cell in some:
                plainly(cell)
            plain += time.process_time() - began
            began = time.process_time()
            run_grid(recipe(count), Path(folder), Local(1), cells=some)
            ran += time.process_time() - began
    lost = (ran - plain) / ran
    row = [str(count), f"{plain / count:.2f}", f"{lost:.1%}"]
    columns = ["cells", "s a cell, processor time", "of it the runner"]
    return Section([Table("", columns, [row])], [Bar("runner, share of a cell", lost, LIMIT)])


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(main(*map(int, sys.argv[1:2])))
