"""Sorted indices as a Rice code of their gaps, within a few hundredths of the entropy bound.

A gap is cut at bit `width`: the low bits are stored as they are, the rest in unary. One code serves
every density, because at width 0 it *is* the bitmap: a one for each index, a zero for each hole.
The code can say nothing but a strictly increasing sequence, so a hostile blob can at worst run
past the end of the tensor, which is a single comparison to find.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sigmatau.errors import FileError

Bytes = NDArray[np.uint8]
Indices = NDArray[np.signedinteger[Any]]

MAX_SIZE = 2**40
"""The most numbers a tensor may have. Sums below stay far from 64 bits, whatever a file claims."""


def encode_indices(indices: Indices, size: int) -> Bytes:
    """Code strictly increasing `indices` in [0, size). No indices make no bytes."""
    if not 0 <= size <= MAX_SIZE:
        raise ValueError(f"a tensor of {size} numbers is out of range: at most 2**40 can be stored")
    gaps = indices.astype(np.int64)
    gaps[1:] -= gaps[:-1] + 1  # the holes before each index, hence never below 0
    if not gaps.size:
        return np.empty(0, np.uint8)
    if gaps.min() < 0 or indices[-1] >= size:
        raise ValueError(f"indices must be strictly increasing, from 0 to at most {size - 1}")

    # One more low bit costs a bit an index and saves half of every unary part. The saving shrinks
    # with each step, so the first step that does not pay is the end.
    width, high = 0, gaps
    while (high - (high >> 1)).sum() > gaps.size:
        width, high = width + 1, high >> 1

    low = np.empty((gaps.size, width), np.uint8)
    for bit in range(width):
        low[:, bit] = (gaps >> bit) & 1
    ones = np.cumsum(high + 1) - 1
    unary = np.zeros(ones[-1] + 1, np.uint8)
    unary[ones] = 1
    parts = [np.packbits(bits, bitorder="little") for bits in (low.reshape(-1), unary)]
    return np.concatenate([np.array([width], np.uint8), *parts])


def decode_indices(blob: Bytes, count: int, size: int) -> Indices:
    """Undo `encode_indices`; the indices are 32-bit where `size` allows it.

    Memory follows the length of the blob, never `count` or `size` alone.
    """
    dtype = np.int32 if size < 2**31 else np.int64
    if not count:
        _check(not blob.size, "bytes where no indices are")
        return np.empty(0, dtype)
    _check(0 <= size <= MAX_SIZE, "a tensor of more than 2**40 numbers")
    _check(0 < count < 8 * blob.size, "fewer indices than stated")
    width = int(blob[0])
    # No encoder needs wider low bits, and the sums below cannot overflow with this.
    _check(count << width <= 2 * size, "an index beyond the end of its tensor")
    cut = 1 + (count * width + 7) // 8
    low, unary = blob[1:cut], blob[cut:]
    _check(unary.size > 0 and unary[-1] > 0, "cut or padded indices")

    bits = np.unpackbits(unary, bitorder="little")
    # Counted first, since finding the ones takes 64 times the memory of the blob if all are set.
    _check(np.count_nonzero(bits) == count, "another number of indices than stated")
    ones = np.flatnonzero(bits)
    order = np.arange(count)
    high = ones - order  # the unary parts, summed up to each index
    _check(int(high[-1]) << width < size, "an index beyond the end of its tensor")
    indices = (high << width) + np.cumsum(_fields(low, width, order)) + order if width else ones
    _check(indices[-1] < size, "an index beyond the end of its tensor")
    return indices.astype(dtype)


def _fields(packed: Bytes, width: int, order: Indices) -> Indices:
    """Cut bits into numbers of `width` bits: each lies within the 64-bit word at its first byte."""
    padded = np.concatenate([packed, np.zeros(8, np.uint8)])
    words = np.ndarray(packed.size + 1, "<u8", padded, strides=(1,))
    start = order * width
    end = (order.size * width) % 8
    _check(not (end and packed[-1] >> end), "bits after the last index")
    fields: NDArray[np.uint64] = words[start >> 3] >> (start & 7).astype(np.uint64)
    return (fields & np.uint64((1 << width) - 1)).astype(np.int64)


def _check(sound: bool | np.bool_, problem: str) -> None:
    if not sound:
        raise FileError(f"coded indices hold {problem}")
