"""MNIST-Variation: rotated digits on natural backgrounds, each digit against the other nine.

Every image is an MNIST digit turned by a random angle, its ink laid over a 28x28 patch of a
photograph. One set of 10,000/2,000/3,000 images serves all ten tasks, which differ in what counts
as positive; the metric is the area under the ROC curve. Photographs come from CIFAR-100 or
CIFAR-10 (training ones behind training and validation digits, test ones behind test digits).
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from sigmatau.errors import ConfigError
from sigmatau.streams.base import Pair, Stream, Task
from sigmatau.streams.benchmarks.split_cifar100 import ORDERS  # the paper uses them for both
from sigmatau.streams.images import pair
from sigmatau.streams.registry import register
from sigmatau.streams.sets import SETS, load
from sigmatau.streams.split import permutation, uniform, without

TRAIN, VAL, TEST = 10_000, 2_000, 3_000
KEY = "mnist-variation"


@register("mnist-variation", needs=("mnist", "cifar100"))
def mnist_variation(
    *, root: Path, seed: int = 0, background: Literal["auto", "natural", "noise"] = "auto"
) -> Stream:
    """Rotated MNIST on natural (or noise) backgrounds, ten one-against-rest tasks, AUROC."""
    if background not in ("auto", "natural", "noise"):
        raise ConfigError(f"background is 'auto', 'natural' or 'noise', not {background!r}")
    data = load("mnist", root)
    kept = without(data["train_id"], data["test_id"])
    chosen = kept[permutation(len(kept), seed, KEY, "train")[: TRAIN + VAL]]
    rows = {"train": chosen[:TRAIN], "val": chosen[TRAIN:]}
    rows["test"] = permutation(len(data["test_y"]), seed, KEY, "test")[:TEST]

    photographs = None
    if background != "noise":
        there = [s for s in ("cifar100", "cifar10") if not SETS[s].missing(root)]
        if there or background == "natural":
            photographs = (there or ["cifar100"])[0]
    photos = load(photographs, root) if photographs else None

    @cache  # all ten tasks show the same pictures
    def pictures(part: str) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        source, own = "test" if part == "test" else "train", rows[part]
        digits = turned(data[f"{source}_x"][own, 0], uniform(len(own), seed, KEY, part, "angle"))
        if photos is None:
            behind = noise(len(own), seed, part)
        else:
            behind = patches(photos[f"{source}_x"], len(own), seed, part)
        return over(digits, behind).reshape(-1, 784), data[f"{source}_y"][own]

    def build(i: int) -> Task:
        def against_rest(part: str) -> Pair:
            x, y = pictures(part)
            return pair(x, y == i)

        parts = (against_rest("train"), against_rest("val"), against_rest("test"))
        return Task(f"digit {i}", *parts, classes=("rest", str(i)))

    return Stream(
        KEY,
        [f"digit {i}" for i in range(10)],
        build,
        input_shape=(784,),
        orders=ORDERS,
        metric="auroc",
        seed=seed,
        notes=[f"backgrounds: {f'patches of {photographs}' if photographs else 'noise'}"],
    )


def turned(digits: NDArray[np.uint8], angles: NDArray[np.float64]) -> NDArray[np.uint8]:
    """Turn each image about its centre by a share of the full circle."""
    from PIL import Image

    bilinear = Image.Resampling.BILINEAR
    out = np.empty_like(digits)
    for i, (digit, angle) in enumerate(zip(digits, angles, strict=True)):
        out[i] = np.asarray(Image.fromarray(digit).rotate(360 * angle, bilinear))
    return out


def patches(photographs: NDArray[np.uint8], count: int, seed: int, part: str) -> NDArray[np.uint8]:
    """Return grey 28x28 pieces of random 32x32 photographs, at random places."""
    which = (uniform(count, seed, KEY, part, "photograph") * len(photographs)).astype(np.int64)
    corner = (uniform(2 * count, seed, KEY, part, "corner") * 5).astype(np.int64).reshape(2, -1, 1)
    red, green, blue = photographs[which].astype(np.uint16).transpose(1, 0, 2, 3)
    # The usual weights, in whole 256ths: 255 x 256 just fits 16 bits.
    grey = ((77 * red + 150 * green + 29 * blue) >> 8).astype(np.uint8)
    down, across = corner + np.arange(28)
    rows = np.arange(count)[:, None, None]
    return np.asarray(grey[rows, down[:, :, None], across[:, None, :]])


def noise(count: int, seed: int, part: str) -> NDArray[np.uint8]:
    """Return 28x28 images of uniform noise."""
    values = uniform(count * 784, seed, KEY, part, "noise")
    return (values * 256).astype(np.uint8).reshape(-1, 28, 28)


def over(ink: NDArray[np.uint8], behind: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Lay white ink over a background: full ink hides it, none shows it."""
    a = ink.astype(np.uint32)
    return ((a * 255 + (255 - a) * behind + 127) // 255).astype(np.uint8)
