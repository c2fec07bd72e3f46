"""The index code: exact both ways, near the entropy bound, and deaf to nonsense."""

import tracemalloc
from math import lgamma, log

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sigmatau.core.codec import MAX_SIZE, decode_indices, encode_indices
from sigmatau.errors import FileError


def log2_choose(n: int, k: int) -> float:
    return (lgamma(n + 1) - lgamma(k + 1) - lgamma(n - k + 1)) / log(2)


@st.composite
def index_sets(draw: st.DrawFn) -> tuple[np.ndarray, int]:
    size = draw(st.integers(1, 40) | st.integers(1, 2**31 + 5) | st.integers(1, MAX_SIZE))
    near = draw(st.integers(0, size - 1))  # clusters, where one width cannot fit all gaps
    some = st.integers(0, size - 1) | st.integers(near, min(near + 30, size - 1))
    return np.array(sorted(draw(st.sets(some, max_size=60))), np.int64), size


@given(index_sets())
def test_round_trip(case: tuple[np.ndarray, int]) -> None:
    indices, size = case
    blob = encode_indices(indices, size)
    found = decode_indices(blob, len(indices), size)
    assert found.tolist() == indices.tolist()
    assert found.dtype == (np.int32 if size < 2**31 else np.int64)


@given(index_sets(), st.data())
def test_a_wrong_byte_or_count_is_an_error_or_another_valid_set(
    case: tuple[np.ndarray, int], data: st.DataObject
) -> None:
    indices, size = case
    blob = encode_indices(indices, size)
    count = len(indices) + data.draw(st.integers(-1, 1))
    if len(blob):
        blob[data.draw(st.integers(0, len(blob) - 1))] = data.draw(st.integers(0, 255))
    blob = blob[: data.draw(st.integers(max(0, len(blob) - 2), len(blob)))]
    try:
        found = decode_indices(blob, count, size)
    except FileError:
        return
    assert len(found) == count
    assert (np.diff(found.astype(np.int64)) > 0).all()
    assert not count or (found[0] >= 0 and found[-1] < size)


@given(st.binary(max_size=80), st.integers(0, 2**50), st.integers(0, 2**50))
def test_noise_is_an_error_or_a_valid_set(noise: bytes, count: int, size: int) -> None:
    try:
        found = decode_indices(np.frombuffer(noise, np.uint8), count, size)
    except FileError:
        return
    assert len(found) == count <= 8 * len(noise)
    assert (np.diff(found.astype(np.int64)) > 0).all()
    assert not count or found[-1] < size


@pytest.mark.parametrize("density", [1e-5, 1e-4, 1e-3, 0.01, 0.02, 0.05, 0.1, 0.3, 0.5, 0.9, 1.0])
def test_size_is_close_to_the_information_bound(density: float) -> None:
    size = 2_000_000
    count = round(size * density)
    rng = np.random.default_rng(0)
    indices = np.sort(rng.choice(size, count, replace=False))
    blob = encode_indices(indices, size)
    bound = 32 * count + log2_choose(size, count)
    assert 32 * count + 8 * blob.size <= 1.035 * bound
    np.testing.assert_array_equal(decode_indices(blob, count, size), indices)


@pytest.mark.parametrize("density", [1e-4, 3e-3, 0.02, 0.1, 0.3, 0.39, 0.9])
def test_no_other_width_makes_fewer_bytes(density: float) -> None:
    indices = np.flatnonzero(np.random.default_rng(0).random(1_000_000) < density)
    gaps = np.diff(indices, prepend=-1) - 1
    lengths = [gaps.size * (w + 1) + (gaps >> w).sum() for w in range(30)]
    assert encode_indices(indices, 1_000_000).size <= min(lengths) / 8 + 3


def test_clusters_cost_no_more_than_scattered_indices() -> None:
    size, count = 1_000_000, 10_000
    rng = np.random.default_rng(0)
    blob = encode_indices(np.arange(500_000, 500_000 + count), size)
    scattered = encode_indices(np.sort(rng.choice(size, count, replace=False)), size)
    assert blob.size <= scattered.size


def test_dense_sets_are_a_bitmap() -> None:
    assert encode_indices(np.arange(0, 800), 800).size == 101
    assert encode_indices(np.array([0, 1, 3]), 8).tolist() == [0, 0b1011]


@pytest.mark.parametrize(
    ("indices", "size"),
    [([1, 1], 5), ([2, 1], 5), ([-1, 2], 5), ([5], 5), ([0], 0), ([0], MAX_SIZE + 1)],
)
def test_what_is_no_index_set_is_not_encoded(indices: list[int], size: int) -> None:
    with pytest.raises(ValueError):
        encode_indices(np.array(indices), size)


@pytest.mark.parametrize(
    ("blob", "count", "size", "problem"),
    [
        ([0], 0, 8, "no indices are"),
        ([0, 1], 1, MAX_SIZE + 1, "2\\*\\*40"),
        ([], 1, 8, "fewer"),
        ([0, 1], 2**39, 2**40, "fewer"),
        ([0, 0b11], -1, 8, "fewer"),
        ([0, 0b11], 3, 8, "another number"),
        ([0, 0b11], 1, 8, "another number"),
        ([0, 0b11, 0], 2, 8, "cut or padded"),
        ([200, 1, 1], 1, 8, "beyond the end"),
        ([0, 0b10000], 1, 4, "beyond the end"),
        ([2, 0b11, 0b10], 1, 7, "beyond the end"),
        ([2, 0b00, 0b10], 1, 4, "beyond the end"),
        ([2, 0b100, 0b1], 1, 8, "bits after"),
        ([8, 0], 1, 2**20, "cut or padded"),
        ([10, 1, 0, 1], 1, 8, "beyond the end"),  # a valid index, but of a width nobody needs
        # 2**22 steps of 2**41 would wrap around to a negative index
        ([41] + [0] * 6 + [0] * 2**19 + [1], 1, MAX_SIZE, "beyond the end"),
    ],
)
def test_each_flaw_is_named(blob: list[int], count: int, size: int, problem: str) -> None:
    with pytest.raises(FileError, match=problem):
        decode_indices(np.array(blob, np.uint8), count, size)


def test_memory_follows_the_blob() -> None:
    blob = np.full(1_000_000, 255, np.uint8)
    blob[0] = 0
    tracemalloc.start()
    try:
        with pytest.raises(FileError):
            decode_indices(blob, 2, 2**40)
        assert tracemalloc.get_traced_memory()[1] < 10 * blob.size
    finally:
        tracemalloc.stop()
