"""Who goes where: seeded permutations and splits in which no image stands on two sides.

The numbers come from raw PCG64 output, sorted, because NumPy promises those bits for ever and
does not promise its shuffles. Images are told apart by a 64-bit hash of their bytes; copies of
one image always travel together.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Sequence
from hashlib import blake2b
from math import prod

import numpy as np
from numpy.typing import NDArray

from sigmatau.errors import ConfigError

Ints = NDArray[np.int64]
Ids = NDArray[np.uint64]


def raw(seed: int, *key: str | int) -> np.random.PCG64:
    """Return the generator of raw 64-bit numbers that belongs to `seed` and `key`."""
    if seed < 0:
        raise ConfigError(f"a seed must not be negative, but this one is {seed}")
    words = [zlib.crc32(part.encode()) if isinstance(part, str) else part for part in key]
    return np.random.PCG64(np.random.SeedSequence([seed, *words]))


def permutation(size: int, seed: int, *key: str | int) -> Ints:
    """Return the numbers below `size` in an order that is the same on every machine."""
    order = np.argsort(raw(seed, *key).random_raw(size), kind="stable")
    return np.asarray(order, dtype=np.int64)


def uniform(size: int, seed: int, *key: str | int) -> NDArray[np.float64]:
    """Return `size` numbers in [0, 1), the same on every machine."""
    bits = np.asarray(raw(seed, *key).random_raw(size), dtype=np.uint64)
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def drawn_orders(size: int, key: str) -> dict[str, list[int]]:
    """Return the orders B to E of a benchmark whose paper gives none: drawn once, for good."""
    return {name: permutation(size, n, key, "order").tolist() for n, name in enumerate("BCDE", 1)}


def image_ids(images: NDArray[np.uint8]) -> Ids:
    """Return one 64-bit hash for each image (the first axis counts them)."""
    flat = np.ascontiguousarray(images).reshape(len(images), prod(images.shape[1:]))
    digests = b"".join(blake2b(row.data, digest_size=8).digest() for row in flat)
    return np.frombuffer(digests, dtype="<u8").astype(np.uint64)


def without(pool: Ids, *others: Ids) -> Ints:
    """Return the positions in `pool` of the images that none of `others` holds."""
    if not others:
        return np.arange(len(pool), dtype=np.int64)
    return np.flatnonzero(~np.isin(pool, np.concatenate(others)))


def stratified(
    ids: Ids,
    labels: NDArray[np.integer],
    counts: Sequence[int],
    seed: int,
    *key: str | int,
    side: dict[int, bool] | None = None,
) -> tuple[Ints, Ints]:
    """Take `counts[c]` images of each class c; return the positions taken, and the others.

    A hash is decided once for all classes, so copies never part. Where the last copies do not
    fit, a place stays empty rather than be filled by half a group. `side` carries decisions
    from one call to the next where several sets are split alike.
    """
    side = {} if side is None else side
    for c, count in enumerate(counts):
        own = ids[labels == c].tolist()
        copies = Counter(own)
        left = count - sum(side.get(h, False) for h in own)
        for position in permutation(len(own), seed, *key, c).tolist():
            h = own[position]
            if h not in side:
                side[h] = copies[h] <= left
                left -= copies[h] * side[h]
    inside = np.fromiter((side.get(h, False) for h in ids.tolist()), dtype=bool, count=len(ids))
    return np.flatnonzero(inside), np.flatnonzero(~inside)
