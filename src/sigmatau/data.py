"""What a user may call data, made into batches: tensors, a Dataset or a DataLoader.

Tensors are the quick road: a task is a pair of tensors, a batch is an index, and one buffer is
filled again and again, so no sample ever passes through Python on its own. All data goes to the
device of the network: tensors as a whole, what a Dataset or a DataLoader gives batch by batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sized
from typing import Any, Protocol, cast

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from sigmatau.errors import DataError

Batch = tuple[Tensor, Tensor]
Array = Tensor | np.ndarray[Any, Any]
Data = tuple[Array, Array] | Dataset[Any] | DataLoader[Any]


class Batches(Protocol):
    """Data that can be gone through in a shuffled or in a fixed order."""

    @property
    def count(self) -> int:
        """Return how many batches an epoch has, 0 if that is not known."""

    def shuffled(self, generator: torch.Generator) -> Iterator[Batch]: ...

    def ordered(self) -> Iterator[Batch]: ...


class TensorBatches:
    """Two tensors, served in batches. A shuffled batch lives until the next one is asked for.

    Batches are contiguous, as those of a DataLoader are: a network that calls `x.view` needs that.
    """

    def __init__(self, x: Tensor, y: Tensor, batch_size: int) -> None:
        self.x, self.y, self.batch_size = x.contiguous(), y, batch_size

    def __len__(self) -> int:
        return len(self.x)

    @property
    def count(self) -> int:
        return len(self.cuts())

    def cuts(self) -> list[tuple[int, int]]:
        """Return where batches start and end; a lone last row joins the batch before it.

        Batch normalisation cannot train on one row, and a row must not be lost either.
        """
        n = len(self.x)
        starts = list(range(0, n, self.batch_size))
        if len(starts) > 1 and n - starts[-1] == 1:
            starts.pop()
        return list(zip(starts, [*starts[1:], n], strict=True))

    def shuffled(self, generator: torch.Generator) -> Iterator[Batch]:
        order = torch.randperm(len(self.x), generator=generator).to(self.x.device)
        longest = min(self.batch_size + 1, len(self.x))
        x, y = torch.empty_like(self.x[:longest]), torch.empty_like(self.y[:longest])
        for start, end in self.cuts():
            chosen, rows = order[start:end], end - start
            torch.index_select(self.x, 0, chosen, out=x[:rows])
            torch.index_select(self.y, 0, chosen, out=y[:rows])
            yield x[:rows], y[:rows]

    def ordered(self) -> Iterator[Batch]:
        for start in range(0, len(self.x), self.batch_size):
            end = start + self.batch_size
            yield self.x[start:end], self.y[start:end]


class LoaderBatches:
    """A user's own DataLoader, taken as it is; its shuffling is the user's."""

    def __init__(self, loader: DataLoader[Any], device: torch.device) -> None:
        self.loader, self.device = loader, device
        self.count = 0

    def shuffled(self, generator: torch.Generator) -> Iterator[Batch]:
        return self.ordered()

    def ordered(self) -> Iterator[Batch]:
        seen = 0
        for batch in self.loader:
            x, y = _pair(batch)
            yield x.to(self.device), y.to(self.device)
            seen += 1
        self.count = seen  # known once it was gone through, whatever the loader says of itself


class DatasetBatches:
    """A Dataset read sample by sample, shuffled by the run's own generator."""

    def __init__(self, dataset: Dataset[Any], batch_size: int, device: torch.device) -> None:
        self.dataset, self.batch_size, self.device = dataset, batch_size, device
        self.count = -(-len(cast(Sized, dataset)) // batch_size)

    def shuffled(self, generator: torch.Generator) -> Iterator[Batch]:
        yield from self._read(shuffle=True, generator=generator)

    def ordered(self) -> Iterator[Batch]:
        yield from self._read(shuffle=False, generator=None)

    def _read(self, shuffle: bool, generator: torch.Generator | None) -> Iterator[Batch]:
        loader = DataLoader(
            self.dataset, self.batch_size, shuffle=shuffle, generator=generator, num_workers=0
        )
        last = len(cast(Sized, self.dataset)) % self.batch_size
        for batch in loader:
            x, y = _pair(batch)
            if shuffle and len(x) == 1 and last == 1 and len(loader) > 1:
                continue  # batch normalisation cannot train on one row
            yield x.to(self.device), y.to(self.device)


def as_batches(
    data: Data, batch_size: int, device: torch.device, what: str = "the data"
) -> Batches:
    """Make batches of `data` on a device, refusing at once what can be seen to be wrong with it."""
    if isinstance(data, DataLoader):
        if isinstance(data.dataset, Sized) and len(data.dataset) == 0:
            raise DataError(f"{what} is empty")
        return LoaderBatches(data, device)
    if isinstance(data, TensorDataset) and len(data.tensors) == 2:
        data = (data.tensors[0], data.tensors[1])
    if isinstance(data, IterableDataset):
        raise DataError(f"{what} is an IterableDataset: wrap it in a DataLoader of your own")
    if isinstance(data, Dataset):
        if len(cast(Sized, data)) == 0:
            raise DataError(f"{what} is empty")
        return DatasetBatches(data, batch_size, device)
    x, y = _pair(data, what)
    if x.ndim == 0 or y.ndim == 0 or len(x) != len(y):
        raise DataError(
            f"{what} needs as many inputs as targets along the first dimension, "
            f"got inputs of shape {tuple(x.shape)} and targets of shape {tuple(y.shape)}"
        )
    if len(x) == 0:
        raise DataError(f"{what} is empty")
    if x.is_floating_point() and not bool(torch.isfinite(x).all()):
        raise DataError(f"{what} has inputs that are NaN or infinite: clean or mask them first")
    if y.is_floating_point() and not bool(torch.isfinite(y).all()):
        raise DataError(f"{what} has targets that are NaN or infinite: clean or mask them first")
    return TensorBatches(x.to(device), y.to(device), batch_size)


def _pair(batch: Any, what: str = "a batch") -> Batch:
    if not isinstance(batch, (tuple, list)) or len(batch) != 2:
        raise DataError(
            f"{what} must be a pair (inputs, targets), a Dataset or a DataLoader of such pairs, "
            f"got {type(batch).__name__}"
        )
    x, y = (as_tensor(part) for part in batch)
    if not isinstance(x, Tensor) or not isinstance(y, Tensor):
        raise DataError(
            f"{what} must hold tensors, got {type(x).__name__} and {type(y).__name__}: make "
            "tensors of them, for a Dataset in its transform"
        )
    # Labels may be integers of any kind, or yes and no; torch's losses take one kind.
    return x.detach(), y.detach() if y.is_floating_point() or y.is_complex() else y.long()


def as_tensor(x: Any) -> Any:
    """Return an array as a tensor, and all else as it is."""
    if not isinstance(x, np.ndarray):
        return x
    try:
        return torch.from_numpy(np.ascontiguousarray(x))
    except TypeError as error:
        raise DataError(f"an array of {x.dtype} does not become a tensor: {error}") from error
