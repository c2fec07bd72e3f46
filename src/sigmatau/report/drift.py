"""How parameters move while later tasks are learnt, laid out in a plane.

`parameters.json` in a cell's folder holds two coordinates for each task and step: plain numbers, to
be drawn by `sigmatau report`, where the weights themselves would fill a disk.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from sigmatau.errors import DataError
from sigmatau.files import put

FILE = "parameters.json"


def project(steps: Sequence[Mapping[str, Tensor]]) -> dict[str, Any]:
    """Return the first two principal components of weight vectors.

    `steps[k]` maps each task learnt so far to its weights, as one vector, after k + 1 tasks;
    weights shared by all tasks may stand beside them under the name "".
    """
    given = [(task, k + 1, w) for k, step in enumerate(steps) for task, w in step.items()]
    if len(given) < 2:
        raise DataError("a plane needs at least two vectors: record the weights after each task")
    sizes = {w.numel() for _, _, w in given}
    if len(sizes) > 1:
        raise DataError(f"weights of one network have one size, these have {sorted(sizes)}")
    rows = np.stack([w.detach().cpu().double().reshape(-1).numpy() for _, _, w in given])
    rows -= rows.mean(axis=0)
    # Of few rows and many columns, the small matrix of inner products has the same components.
    strength, axes = np.linalg.eigh(rows @ rows.T)
    strength = np.maximum(strength[::-1][:2], 0)
    plane = axes[:, ::-1][:, :2] * np.sqrt(strength)
    # An eigenvector's sign is arbitrary; fixing it makes the same weights give the same picture.
    largest = plane[np.abs(plane).argmax(axis=0), [0, 1]]
    plane *= np.where(largest < 0, -1.0, 1.0)
    total = float((rows**2).sum())
    return {
        "explained": [float(v) / total if total else 0.0 for v in strength],
        "points": [
            {"task": task or None, "step": step, "x": float(x), "y": float(y)}
            for (task, step, _), (x, y) in zip(given, plane, strict=True)
        ],
    }


def write(folder: Path, steps: Sequence[Mapping[str, Tensor]]) -> Path:
    """Project the weights and put them into a cell's folder."""
    return put(Path(folder) / FILE, json.dumps(project(steps), allow_nan=False) + "\n")
