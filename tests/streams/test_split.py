import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sigmatau.errors import ConfigError
from sigmatau.streams.split import image_ids, permutation, stratified, uniform, without


def test_the_numbers_are_the_same_on_every_machine():
    assert permutation(10, 0, "a key").tolist() == [8, 5, 3, 6, 7, 9, 2, 1, 4, 0]
    assert permutation(10, 1, "a key").tolist() != permutation(10, 0, "a key").tolist()
    assert permutation(10, 0, "a key", 1).tolist() != permutation(10, 0, "a key").tolist()
    assert uniform(2, 0, "a key").tolist() == [0.9553726711094354, 0.8582987099877507]


def test_a_negative_seed_is_refused():
    with pytest.raises(ConfigError, match="negative"):
        permutation(3, -1)


def test_uniform_numbers_fill_the_unit_interval():
    numbers = uniform(10_000, 3)
    assert 0 <= numbers.min() < 0.01
    assert 0.99 < numbers.max() < 1
    assert abs(numbers.mean() - 0.5) < 0.02


def test_ids_tell_images_apart_by_their_bytes():
    images = np.zeros((3, 2, 2), np.uint8)
    images[1, 1, 1] = 1
    ids = image_ids(images)
    assert ids[0] == ids[2] != ids[1]


def test_without_finds_what_others_do_not_have():
    a, b = np.array([1, 2, 3, 2], np.uint64), np.array([2], np.uint64)
    assert without(a, b).tolist() == [0, 2]
    assert without(a).tolist() == [0, 1, 2, 3]


@given(
    ids=st.lists(st.integers(0, 12), min_size=1, max_size=40),
    classes=st.integers(1, 3),
    count=st.integers(0, 8),
    seed=st.integers(0, 5),
)
def test_copies_never_part_and_counts_are_never_exceeded(ids, classes, count, seed):
    hashes = np.array(ids, np.uint64)
    labels = np.arange(len(ids)) % classes
    inside, outside = stratified(hashes, labels, [count] * classes, seed)
    assert sorted([*inside, *outside]) == list(range(len(ids)))
    assert not set(hashes[inside]) & set(hashes[outside])
    if classes == 1:
        assert len(inside) <= count


@given(size=st.integers(1, 60), count=st.integers(0, 60), seed=st.integers(0, 3))
def test_images_without_copies_are_split_to_the_exact_count(size, count, seed):
    hashes = np.arange(size, dtype=np.uint64)
    inside, _ = stratified(hashes, np.zeros(size, int), [count], seed)
    assert len(inside) == min(size, count)


def test_decisions_can_be_carried_from_one_set_to_the_next():
    side: dict[int, bool] = {}
    ids = np.arange(10, dtype=np.uint64)
    first, _ = stratified(ids, np.zeros(10, int), [5], 0, "one", side=side)
    second, _ = stratified(ids, np.zeros(10, int), [5], 0, "two", side=side)
    assert first.tolist() == second.tolist()
