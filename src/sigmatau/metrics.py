"""Measures of continual learning, as pure functions of accuracy matrices.

`A[k][i]` is the score of task i after k + 1 tasks were learnt, tasks numbered as they came; entries
above the diagonal (tasks not yet learnt) are ignored and may be NaN.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

Matrix = NDArray[np.float64]


def _square(matrix: ArrayLike) -> Matrix:
    a = np.asarray(matrix, dtype=np.float64)
    if a.ndim != 2 or a.shape[0] != a.shape[1] or not len(a):
        raise ValueError(f"an accuracy matrix is square and not empty, this one is {a.shape}")
    return a


def average_accuracy(matrix: ArrayLike) -> float:
    """Return the mean score over all tasks after the last one was learnt."""
    return float(_square(matrix)[-1].mean())


def forgetting(matrix: ArrayLike) -> Matrix:
    """Return for each task but the last its best earlier score minus its final one.

    After Chaudhry et al. 2018; negative where a task got better later.
    """
    a = _square(matrix)
    last = len(a) - 1
    return np.array([a[i:last, i].max() - a[last, i] for i in range(last)])


def average_forgetting(matrix: ArrayLike) -> float:
    """Return the mean of `forgetting`, 0 for a single task."""
    f = forgetting(matrix)
    return float(f.mean()) if len(f) else 0.0


def worst_forgetting(matrix: ArrayLike) -> float:
    """Return the maximum of `forgetting`, 0 for a single task."""
    f = forgetting(matrix)
    return float(f.max()) if len(f) else 0.0


def opd(performance: Mapping[str, Sequence[Mapping[str, float]]]) -> dict[str, float]:
    """Return each task's order-normalised performance disparity.

    `performance[order]` lists, per seed, the final score of every task by its name. A task's
    disparity is the largest minus the smallest, over orders, of its mean over seeds.
    """
    if not performance or not all(performance.values()):
        raise ValueError("disparity needs at least one run for every order")
    tasks = set.intersection(*(set(run) for runs in performance.values() for run in runs))
    if not tasks:
        raise ValueError("the runs have no task in common")
    means = {
        task: [float(np.mean([run[task] for run in runs])) for runs in performance.values()]
        for task in sorted(tasks)
    }
    return {task: max(scores) - min(scores) for task, scores in means.items()}


def aopd(performance: Mapping[str, Sequence[Mapping[str, float]]]) -> float:
    """Return the average of `opd` over tasks."""
    return float(np.mean(list(opd(performance).values())))


def mopd(performance: Mapping[str, Sequence[Mapping[str, float]]]) -> float:
    """Return the maximum of `opd` over tasks."""
    return max(opd(performance).values())
