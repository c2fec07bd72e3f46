"""Hierarchical consolidation: what several tasks' deltas have in common is stored once per group.

Per weight, the tasks' deltas are the rows of a sparse matrix, grouped by K-means. Where all
members of a group agree to within beta, the group takes the centre's value and the members' own
entries become zero; elsewhere members keep what they have.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

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
    shape = deltas[0].shape
    columns = union([d.indices for d in deltas])
    rows = [torch.searchsorted(columns, d.indices) for d in deltas]
    if not columns.numel():
        return Grouping([0] * len(deltas), {}, list(deltas))
    start = starting_centres(deltas, rows, columns.numel(), previous, count, rng)
    labels, centres = kmeans(deltas, rows, columns.numel(), start)

    groups: dict[int, Sparse] = {}
    out = list(deltas)
    for g in sorted(set(labels)):
        members = [i for i, label in enumerate(labels) if label == g]
        if len(members) == 1:
            continue
        values = torch.zeros(len(members), columns.numel())
        for row, i in enumerate(members):
            values[row, rows[i]] = deltas[i].values.cpu()
        merged = values.amax(0) - values.amin(0) <= beta
        centre = torch.from_numpy(centres[g]) * merged
        device = columns.device
        groups[g] = Sparse(columns, centre.to(device), shape).nonzero()
        apart = (~merged).to(device)
        for i in members:
            kept = apart[rows[i]]
            out[i] = Sparse(deltas[i].indices[kept], deltas[i].values[kept], shape)
    return Grouping(labels, groups, out)


def starting_centres(
    deltas: Sequence[Sparse],
    rows: Sequence[torch.Tensor],
    width: int,
    previous: Sequence[int | None],
    count: int,
    rng: np.random.Generator,
) -> NDArray[np.float32]:
    """Return the old groups' means, as they are today, and new centres drawn from the tasks."""
    count = min(count, len(deltas))
    known = sorted({g for g in previous if g is not None})[:count]
    centres = torch.zeros(count, width)
    for slot, g in enumerate(known):
        members = [i for i, label in enumerate(previous) if label == g]
        for i in members:
            centres[slot, rows[i].cpu()] += deltas[i].values.cpu() / len(members)
    drawn = rng.choice(len(deltas), size=count - len(known), replace=False)
    for slot, i in enumerate(drawn, start=len(known)):
        centres[slot, rows[i].cpu()] = deltas[i].values.cpu()
    out: NDArray[np.float32] = centres.numpy()
    return out


def kmeans(
    deltas: Sequence[Sparse],
    rows: Sequence[torch.Tensor],
    width: int,
    start: NDArray[np.float32],
) -> tuple[list[int], NDArray[np.float32]]:
    """Run scikit-learn's K-means on the deltas as sparse rows, from the given centres."""
    from scipy.sparse import csr_matrix
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning

    data = np.concatenate([d.values.cpu().numpy() for d in deltas])
    index = np.concatenate([r.cpu().numpy() for r in rows]).astype(np.int32)
    ends = np.cumsum([0, *(d.nnz for d in deltas)])
    matrix = csr_matrix((data, index, ends), shape=(len(deltas), width))
    with warnings.catch_warnings():
        # Tasks with equal deltas leave centres unused, which is as it should be.
        warnings.simplefilter("ignore", ConvergenceWarning)
        found = KMeans(n_clusters=len(start), init=start, n_init=1).fit(matrix)
    return [int(g) for g in found.labels_], found.cluster_centers_.astype(np.float32)
