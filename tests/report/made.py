"""Result folders made of chosen numbers, in the form that running cells leaves them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

ORDERS = {
    "A": (0, 1, 2, 3, 4, 5, 6, 7, 8, 9),
    "B": (1, 7, 4, 5, 2, 0, 8, 6, 9, 3),
    "C": (7, 0, 5, 1, 8, 4, 3, 6, 2, 9),
}
TASKS = tuple(f"classes {10 * k} to {10 * k + 9}" for k in range(10))


def result(
    method: str = "apd1",
    order: str = "A",
    seed: int = 0,
    *,
    stream: str = "split-cifar100",
    label: str | None = None,
    score: float = 0.6,
    spread: float = 0.02,
    loss: float = 0.0,
    curve: Sequence[float] = (),
    seconds: float = 100.0,
    capacity: float = 1.35,
    tasks: Sequence[str] = TASKS,
    order_indices: Sequence[int] | None = None,
    **more: Any,
) -> dict[str, Any]:
    """Return a result in which every later task costs earlier ones `loss`."""
    indices = list(order_indices or ORDERS[order][: len(tasks)])
    names = [tasks[i] for i in indices]
    generator = np.random.default_rng([seed, ord(order[0]), len(method)])
    hard = np.linspace(-0.05, 0.05, len(tasks))[indices]
    start = score + hard + spread * generator.standard_normal(len(names))
    rows: list[list[float | None]] = [
        [float(start[i] - loss * (k - i)) if i <= k else None for i in range(len(names))]
        for k in range(len(names))
    ]
    matrix = np.array([[np.nan if v is None else v for v in row] for row in rows])
    lost = np.array([start[i] - matrix[-1, i] for i in range(len(names) - 1)])
    curve = list(curve) or np.linspace(1, capacity, len(names)).tolist()
    made = {
        "format": 1,
        "stream": stream,
        "method": method,
        "order": order,
        "seed": seed,
        "label": label or method,
        "metric": "accuracy",
        "task_names": names,
        "accuracy_matrix": rows,
        "average_accuracy": float(matrix[-1].mean()),
        "forgetting": {"average": float(lost.mean()), "worst": float(lost.max())},
        "final": dict(zip(names, matrix[-1].tolist(), strict=True)),
        "capacity": {
            "paper": curve[-1],
            "strict": 1.9 * curve[-1] - 0.9,
            "bytes": 1.5 * curve[-1] - 0.5,
            "beside": 0.0,
        },
        "capacity_curve": curve,
        "growth": dict.fromkeys(names, 0.035),
        "seconds": seconds,
        "seconds_per_task": [seconds / len(names)] * len(names),
        "steps": 8000,
        "notes": [],
        "config": {"stream": stream, "settings": {"epochs": 20, "seed": seed}},
        "versions": {"sigmatau": "0.1.0", "torch": "2.13.0"},
        "machine": {"cpu": "a processor", "cores": 2, "threads": 1},
    }
    return {**made, **more}


def put(folder: Path, made: dict[str, Any], parameters: Any = None) -> Path:
    """Write a finished cell."""
    cell = folder / "cells" / f"{made['label'].replace(' ', '.')}-{made['order']}-{made['seed']}"
    cell.mkdir(parents=True)
    (cell / "result.json").write_text(json.dumps(made))
    if parameters is not None:
        (cell / "parameters.json").write_text(json.dumps(parameters))
    return cell


def put_failed(folder: Path, method: str, order: str, seed: int, trace: str) -> Path:
    """Write a cell that failed."""
    cell = folder / "cells" / f"{method}-{order}-{seed}"
    cell.mkdir(parents=True)
    about = {"stream": "split-cifar100", "method": method, "order": order, "seed": seed}
    failure = {"cell": about, "error": "TrainingError: NaN", "trace": trace, "time": 0.0}
    (cell / "failure.json").write_text(json.dumps(failure))
    return cell


def drops() -> list[dict[str, Any]]:
    before = {name: 0.6 + 0.01 * k for k, name in enumerate(TASKS[:5])}
    after = {name: score for name, score in before.items() if name != TASKS[2]}
    return [{"step": 5, "task": TASKS[2], "before": before, "after": after}]


def wander(step: float) -> dict[str, Any]:
    """Return parameters of five tasks that move by `step` with every later task."""
    points = [
        {"task": TASKS[i], "step": k, "x": np.cos(i) + step * (k - i), "y": np.sin(i)}
        for k in range(1, 6)
        for i in range(k)
    ]
    return {"explained": [0.5, 0.2], "points": points}


def gallery(folder: Path) -> Path:
    """Write a folder that has something for every table line and every figure."""
    methods: dict[str, dict[str, Any]] = {
        "stl": {"score": 0.70, "spread": 0.008, "capacity": 10.0, "seconds": 100.0},
        "finetune": {"score": 0.64, "spread": 0.06, "loss": 0.02, "capacity": 1.0, "seconds": 90},
        "ewc": {"score": 0.62, "spread": 0.05, "loss": 0.008, "capacity": 1.0, "seconds": 105.0},
        "pgn": {"score": 0.63, "spread": 0.06, "capacity": 1.71, "seconds": 260.0},
        "apd1": {"score": 0.67, "spread": 0.02, "seconds": 125.0},
        "apd2": {"score": 0.68, "spread": 0.015, "seconds": 130.0, "capacity": 1.30},
    }
    growing = (1 + 0.14 * np.log(np.arange(1, 11))).tolist()
    for method, given in methods.items():
        for order in ORDERS:
            for seed in (0, 1):
                if (method, order) == ("ewc", "C"):
                    continue
                own = dict(given)
                if method == "apd2":
                    own["curve"] = growing
                if (method, order, seed) == ("apd1", "A", 0):
                    own["drops"] = drops()
                drift = {"finetune": 0.5, "apd1": 0.02}.get(method) if seed == 0 else None
                points = None if drift is None or order != "A" else wander(drift)
                put(folder, result(method, order, seed, **own), points)
    put_failed(folder, "ewc", "C", 0, "Traceback:\n  loss is NaN </script><b>at step 7</b>")
    return folder
