"""Hierarchical consolidation: what several tasks' deltas have in common is stored once per group.

Per weight, the tasks' deltas are grouped by K-means. Where all members of a group agree to within
beta, the group takes the centre's value and the members' own entries become zero; elsewhere members
keep what they have.

However large the weight, n tasks span at most n dimensions, and their inner products say all that
K-means asks for. So it runs on n points of n coordinates with the same distances, and what has the
size of the weight is gone through once.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sigmatau.core.sparse import Sparse, union


@dataclass(frozen=True)
class Grouping:
    """The outcome for one weight: each task's group, the groups' parts, the tasks' new deltas."""

    labels: list[int]
    groups: dict[int, Sparse]
    deltas: list[Sparse]


def consolidate(
    deltas: Sequence[Sparse],
    previous: Sequence[int | None],
    count: int,
    beta: float,
    rng: np.random.Generator,
) -> Grouping:
    """Group the whole deltas (a task's own plus its old group's part) into `count` groups.

    `previous` is each task's group in the round before, None for tasks that had none: the old
    groups' centres are where K-means starts, and the rest of the `count` starts are drawn from the
    tasks. Labels are numbered from 0.
    """
    if not any(delta.nnz for delta in deltas):
        return Grouping([0] * len(deltas), {}, list(deltas))
    labels = kmeans(points(deltas), starting_weights(previous, count, rng))
    groups: dict[int, Sparse] = {}
    out = list(deltas)
    for g in sorted(set(labels)):
        members = [i for i, label in enumerate(labels) if label == g]
        if len(members) > 1:
            groups[g], apart = merge([deltas[i] for i in members], beta)
            for i, delta in zip(members, apart, strict=True):
                out[i] = delta
    return Grouping(labels, groups, out)


def points(deltas: Sequence[Sparse]) -> NDArray[np.float64]:
    """Return a point for each delta, of as many coordinates as deltas, with the same distances."""
    from scipy.sparse import csr_matrix

    data = np.concatenate([d.values.double().cpu().numpy() for d in deltas])
    index = np.concatenate([d.indices.cpu().numpy() for d in deltas])
    ends = np.cumsum([0, *(d.nnz for d in deltas)])
    matrix = csr_matrix((data, index, ends), shape=(len(deltas), deltas[0].size))
    values, vectors = np.linalg.eigh((matrix @ matrix.T).toarray())
    out: NDArray[np.float64] = vectors * np.sqrt(np.maximum(values, 0))
    return out


def starting_weights(
    previous: Sequence[int | None], count: int, rng: np.random.Generator
) -> NDArray[np.float64]:
    """Return the first centres as rows of shares of the tasks: old groups' means, and drawn tasks.

    The means of old groups are those of their members as they are today.
    """
    tasks = len(previous)
    count = min(count, tasks)
    known = sorted({g for g in previous if g is not None})[:count]
    weights = np.zeros((count, tasks))
    for slot, g in enumerate(known):
        members = [i for i, label in enumerate(previous) if label == g]
        weights[slot, members] = 1 / len(members)
    drawn = rng.choice(tasks, size=count - len(known), replace=False)
    weights[range(len(known), count), drawn] = 1
    return weights


def kmeans(found: NDArray[np.float64], start: NDArray[np.float64]) -> list[int]:
    """Run scikit-learn's K-means until no point changes its group, and return the groups."""
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning

    with warnings.catch_warnings():
        # Tasks with equal deltas leave centres unused, which is as it should be.
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = KMeans(n_clusters=len(start), init=start @ found, n_init=1, tol=0).fit(found)
    return [int(g) for g in model.labels_]


def merge(deltas: Sequence[Sparse], beta: float) -> tuple[Sparse, list[Sparse]]:
    """Return what the members of a group have in common, and what each keeps for itself."""
    columns = union([d.indices for d in deltas])
    places = [torch.searchsorted(columns, d.indices) for d in deltas]
    values = deltas[0].values
    total, held = values.new_zeros(columns.shape), values.new_zeros(columns.shape)
    low, high = torch.full_like(total, torch.inf), torch.full_like(total, -torch.inf)
    for delta, at in zip(deltas, places, strict=True):
        total[at] += delta.values
        held[at] += 1
        low[at] = torch.minimum(low[at], delta.values)
        high[at] = torch.maximum(high[at], delta.values)
    lacking = held < len(deltas)  # some member is zero there
    low = torch.where(lacking, low.clamp(max=0), low)
    high = torch.where(lacking, high.clamp(min=0), high)
    merged = high - low <= beta
    common = Sparse(columns, total / len(deltas) * merged, deltas[0].shape).nonzero()
    return common, [_only(d, ~merged[at]) for d, at in zip(deltas, places, strict=True)]


def _only(delta: Sparse, kept: Tensor) -> Sparse:
    return Sparse(delta.indices[kept], delta.values[kept], delta.shape)
