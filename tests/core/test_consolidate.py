"""Consolidation against its definition and scikit-learn's own K-means."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.cluster import KMeans

from sigmatau.core.consolidate import consolidate, points, starting_weights
from sigmatau.core.sparse import Sparse


def rows_like(seed: int, tasks: int = 6, entries: int = 12, kinds: int = 2) -> torch.Tensor:
    """Return deltas that come in `kinds` kinds, each task near its kind's own pattern."""
    g = torch.Generator().manual_seed(seed)
    pattern = torch.randn(kinds, entries, generator=g) * (
        torch.rand(kinds, entries, generator=g) < 0.6
    )
    noise = 0.004 * torch.rand(tasks, entries, generator=g)
    noise += torch.randn(tasks, entries, generator=g) * (
        torch.rand(tasks, entries, generator=g) < 0.1
    )
    dense = pattern[torch.arange(tasks) % kinds]
    return torch.where(dense != 0, dense + noise, dense)


@given(st.integers(0, 500), st.sampled_from([0.0, 1e-4, 1e-2, 1.0]), st.integers(1, 8))
def test_every_delta_is_kept_within_beta_and_exactly_where_not_merged(
    seed: int, beta: float, count: int
) -> None:
    dense = rows_like(seed)
    deltas = [Sparse.from_dense(d.view(3, 4)) for d in dense]
    found = consolidate(deltas, [None] * 6, count, beta, np.random.default_rng(seed))
    assert len(set(found.labels)) <= min(count, 6)
    for i, (old, new) in enumerate(zip(deltas, found.deltas, strict=True)):
        group = found.groups.get(found.labels[i], Sparse.empty((3, 4)))
        rebuilt = (group + new).dense()
        assert (rebuilt - old.dense()).abs().max() <= beta + 1e-6
        members = [j for j, g in enumerate(found.labels) if g == found.labels[i]]
        stack = torch.stack([deltas[j].dense() for j in members])
        merged = (stack.amax(0) - stack.amin(0) <= beta) & (len(members) > 1)
        assert torch.equal(rebuilt[~merged], old.dense()[~merged])
        assert not bool((new.dense()[merged] != 0).any())
        assert not bool((group.dense()[~merged] != 0).any())


def test_groups_are_those_of_scikit_learn_for_the_same_start() -> None:
    dense = rows_like(1, tasks=9, kinds=3)
    deltas = [Sparse.from_dense(d) for d in dense]
    found = consolidate(deltas, [None] * 9, 3, 0.01, np.random.default_rng(5))
    start = starting_weights([None] * 9, 3, np.random.default_rng(5)) @ dense.numpy()
    theirs = KMeans(3, init=start, n_init=1).fit(dense.numpy())
    assert found.labels == theirs.labels_.tolist()
    for g, part in found.groups.items():
        assert np.allclose(part.values, theirs.cluster_centers_[g][part.indices], atol=1e-6)


def test_points_keep_the_distances() -> None:
    dense = rows_like(3, tasks=5, entries=40)
    found = points([Sparse.from_dense(d) for d in dense])
    assert found.shape == (5, 5)
    ours = np.linalg.norm(found[:, None] - found[None], axis=-1)
    assert np.allclose(ours, torch.cdist(dense.double(), dense.double()), atol=1e-6)


def test_old_centres_are_where_the_next_round_starts() -> None:
    previous = [0, 1, 0, 1, 0, None]
    weights = starting_weights(previous, 4, np.random.default_rng(0))
    assert np.allclose(weights[0], [1 / 3, 0, 1 / 3, 0, 1 / 3, 0])
    assert np.allclose(weights[1], [0, 1 / 2, 0, 1 / 2, 0, 0])
    for drawn in weights[2:]:
        assert sorted(drawn) == [0, 0, 0, 0, 0, 1]
    assert len({tuple(drawn) for drawn in weights[2:]}) == 2


def test_what_tasks_share_is_stored_once() -> None:
    common = torch.tensor([1.0, -2.0, 0.0, 3.0])
    deltas = [Sparse.from_dense(common + torch.tensor([0, 0, 0, extra])) for extra in (0.0, 0.5, 2)]
    found = consolidate(deltas, [None] * 3, 1, 1e-3, np.random.default_rng(0))
    assert found.groups[0].dense().tolist() == [1.0, -2.0, 0.0, 0.0]
    assert [d.dense().tolist()[3] for d in found.deltas] == [3.0, 3.5, 5.0]
    assert sum(d.nnz for d in found.deltas) + found.groups[0].nnz == 5


@pytest.mark.parametrize("tasks", [1, 3])
def test_nothing_to_group(tasks: int) -> None:
    deltas = [Sparse.empty((2, 2)) for _ in range(tasks)]
    found = consolidate(deltas, [None] * tasks, 2, 0.1, np.random.default_rng(0))
    assert found.groups == {}
    assert found.labels == [0] * tasks


def test_a_group_of_one_keeps_its_delta() -> None:
    deltas = [Sparse.from_dense(torch.tensor(v)) for v in ([5.0, 0.0], [0.0, -5.0])]
    found = consolidate(deltas, [None, None], 2, 1.0, np.random.default_rng(0))
    assert sorted(found.labels) == [0, 1]
    assert found.groups == {}
    assert all(a is b for a, b in zip(found.deltas, deltas, strict=True))
