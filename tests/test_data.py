"""Batches: every row once an epoch, in one reused buffer, the same for the same seed."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from sigmatau.data import DatasetBatches, LoaderBatches, TensorBatches, as_batches
from sigmatau.errors import DataError

CPU = torch.device("cpu")


@given(st.integers(1, 40), st.integers(1, 12), st.integers(0, 5))
def test_an_epoch_has_every_row_once(rows: int, size: int, seed: int) -> None:
    x = torch.arange(rows * 2.0).view(rows, 2)
    y = torch.arange(rows)
    batches = TensorBatches(x, y, size)
    drawn = [
        (a.clone(), b.clone()) for a, b in batches.shuffled(torch.Generator().manual_seed(seed))
    ]
    again = [b.clone() for _, b in batches.shuffled(torch.Generator().manual_seed(seed))]
    seen = torch.cat([b for _, b in drawn])
    assert sorted(seen.tolist()) == list(range(rows))
    assert torch.equal(torch.cat([a for a, _ in drawn]), x[seen])
    assert torch.equal(torch.cat(again), seen)
    assert len(drawn) == batches.count
    if rows > 1 and size > 1:
        assert all(len(b) > 1 for _, b in drawn)  # batch normalisation cannot train on one row
    assert torch.equal(torch.cat([b for _, b in batches.ordered()]), y)


def test_one_buffer_is_filled_again_and_again() -> None:
    batches = TensorBatches(torch.randn(20, 3), torch.arange(20), 5)
    places = {x.data_ptr() for x, _ in batches.shuffled(torch.Generator())}
    assert len(places) == 1


def test_datasets_and_loaders() -> None:
    x, y = torch.randn(13, 2), torch.arange(13)

    class Rows(TensorDataset):
        """A dataset that is more than its tensors."""

        def __getitem__(self, i: int):
            return x[i] * 2, y[i]

    rows = DatasetBatches(Rows(x, y), 4, CPU)
    assert rows.count == 4
    seen = torch.cat([b for _, b in rows.shuffled(torch.Generator().manual_seed(1))])
    assert len(set(seen.tolist())) == 12  # the lone last row of a shuffled epoch is left out
    assert sum(len(b) for _, b in rows.ordered()) == 13
    loader = LoaderBatches(DataLoader(TensorDataset(x, y), batch_size=5), CPU)
    assert loader.count == 0
    assert torch.equal(torch.cat([b for _, b in loader.shuffled(torch.Generator())]), y)
    assert loader.count == 3


def test_what_is_no_data() -> None:
    class Endless(IterableDataset):
        def __iter__(self):
            return iter(())

    x = torch.randn(4, 2)
    cases = [
        (Endless(), "IterableDataset"),
        ((x, torch.tensor(3)), "as many"),
        ((x, torch.full((4,), float("nan"))), "targets that are NaN"),
        ("data", "pair"),
    ]
    for data, match in cases:
        with pytest.raises(DataError, match=match):
            as_batches(data, 4, CPU)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_batches_are_contiguous_however_images_lie_in_memory(layout: torch.memory_format) -> None:
    x, y = torch.rand(11, 3, 5, 4).to(memory_format=layout), torch.arange(11)
    batches = TensorBatches(x, y, 4)
    for served in (batches.shuffled(torch.Generator().manual_seed(0)), batches.ordered()):
        for images, labels in served:
            assert torch.equal(images, x[labels])
            assert images.is_contiguous()
