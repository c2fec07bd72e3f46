"""Sparse tensors against dense arithmetic."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from sigmatau.core.budget import strongest
from sigmatau.core.sparse import Sparse, index_dtype, union

tensors = st.integers(0, 10_000).map(
    lambda seed: (
        torch.randn(4, 5, generator=torch.Generator().manual_seed(seed))
        * (torch.rand(4, 5, generator=torch.Generator().manual_seed(seed + 1)) < 0.4)
    )
)


@given(tensors, tensors)
def test_arithmetic_is_that_of_dense_tensors(a: torch.Tensor, b: torch.Tensor) -> None:
    x, y = Sparse.from_dense(a), Sparse.from_dense(b)
    assert torch.equal(x.dense(), a)
    assert torch.equal((x + y).dense(), a + b)
    assert torch.equal(x.add_to(b.clone()), a + b)
    assert torch.equal(x.gather(b), b.reshape(-1)[a.reshape(-1) != 0])
    assert torch.equal(
        union([x.indices, y.indices]).long(), ((a != 0) | (b != 0)).view(-1).nonzero().squeeze(1)
    )
    coordinates = (a != 0).nonzero()
    for dim in (0, 1):
        assert torch.equal(x.rows(dim).long(), coordinates[:, dim])


@given(tensors, tensors, tensors)
def test_entries_written_over_others(a: torch.Tensor, b: torch.Tensor, below: torch.Tensor) -> None:
    x, y = Sparse.from_dense(a), Sparse.from_dense(b)
    written = torch.where(a != 0, a, below)
    assert torch.equal(x.put_into(below.clone()), written)
    both = torch.where(b != 0, b, written)
    assert torch.equal(y.over(x).put_into(below.clone()), both)
    zero = Sparse(x.indices, torch.zeros_like(x.values), x.shape)  # a zero is written too
    assert torch.equal(zero.put_into(below.clone()), below * (a == 0))


def test_entries_that_cancel_are_dropped() -> None:
    x = Sparse.from_dense(torch.tensor([1.0, 0.0, 2.0]))
    y = Sparse.from_dense(torch.tensor([-1.0, 0.0, 2.0]))
    assert (x + y).indices.tolist() == [2]
    assert x.nonzero() is x


def test_sizes_and_types() -> None:
    empty = Sparse.empty((3, 4))
    assert (empty.nnz, empty.size, empty.nbytes) == (0, 12, 0)
    assert torch.equal(empty.dense(), torch.zeros(3, 4))
    assert index_dtype(2**31 - 1) == torch.int32
    assert index_dtype(2**31) == torch.int64
    assert Sparse.from_dense(torch.ones(2)).to("cpu").nbytes == 2 * 8


@given(st.integers(0, 1000), st.integers(0, 60))
def test_the_strongest_are_chosen_and_never_more(seed: int, count: int) -> None:
    g = torch.Generator().manual_seed(seed)
    scores = [torch.randint(0, 5, (4, 5), generator=g).float(), torch.rand(7, generator=g)]
    masks = strongest(scores, count)
    flat, chosen = torch.cat([s.view(-1) for s in scores]), torch.cat([m.view(-1) for m in masks])
    assert int(chosen.sum()) == min(count, int((flat > 0).sum()))
    assert set(chosen.tolist()) <= {0.0, 1.0}
    if 0 < int(chosen.sum()) < len(flat):
        assert flat[chosen == 1].min() >= flat[chosen == 0].max() or count > int((flat > 0).sum())
    assert not bool(chosen[flat == 0].any())
