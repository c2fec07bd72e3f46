"""SVHN's cropped digits from MATLAB files, in which the image axis comes last and zero is 10."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sigmatau.errors import FileError
from sigmatau.streams.cache import Parsed
from sigmatau.streams.split import image_ids


def read_mat(path: Path) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return the images (NCHW) and digits of one file."""
    from scipy.io import loadmat

    try:
        content = loadmat(path, variable_names=["X", "y"])
        x, y = content["X"], content["y"].ravel()
    except FileNotFoundError:
        raise
    # A damaged MATLAB file may raise nearly anything while it is taken apart.
    except Exception as error:
        raise FileError(
            f"{path} is not an SVHN file ({error!r}). Delete it and fetch it again."
        ) from error
    if x.ndim != 4 or x.shape[:3] != (32, 32, 3) or x.dtype != np.uint8 or len(y) != x.shape[3]:
        raise FileError(f"{path}: X is {x.shape} {x.dtype} and y {y.shape}; expected 32x32x3xn")
    if not np.isin(y, np.arange(1, 11)).all():
        raise FileError(f"{path}: labels outside 1 to 10; the official files call zero ten")
    return np.ascontiguousarray(x.transpose(3, 2, 0, 1)), y.astype(np.int64) % 10


def read_svhn(folder: Path) -> Parsed:
    """Read `train_32x32.mat` and `test_32x32.mat`."""
    arrays: dict[str, NDArray[Any]] = {}
    for part in ("train", "test"):
        x, y = read_mat(folder / f"{part}_32x32.mat")
        arrays |= {f"{part}_x": x, f"{part}_y": y, f"{part}_id": image_ids(x)}
    return Parsed(arrays, {"classes": list("0123456789")})
