"""CIFAR-10 and CIFAR-100 as their authors pickled them, without running what a pickle can run.

A pickle names the functions it wants called. This one may name those that rebuild a NumPy array,
and nothing else: a file that asks for more is refused before anything of it runs.
"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sigmatau.errors import FileError
from sigmatau.streams.cache import Parsed
from sigmatau.streams.split import image_ids

# Looked up here and never imported by name. The official files were written when the function
# that rebuilds an array lived in numpy.core; NumPy 2 writes numpy._core.
_rebuild = np.empty(0).__reduce__()[0]
_ARRAY_PARTS: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("numpy.core.multiarray", "_reconstruct"): _rebuild,
    ("numpy._core.multiarray", "_reconstruct"): _rebuild,
}


class _ArraysOnly(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ARRAY_PARTS:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return _ARRAY_PARTS[module, name]


def unpickle(path: Path) -> dict[str, Any]:
    """Return the dictionary a CIFAR file holds, its keys as text."""
    try:
        with path.open("rb") as file:
            content = _ArraysOnly(file, encoding="bytes").load()
    except FileNotFoundError:
        raise
    # A damaged pickle may raise nearly anything, from any step of rebuilding it.
    except Exception as error:
        raise FileError(
            f"{path} is not a CIFAR file: {error}. Delete it and fetch it again."
        ) from error
    if not isinstance(content, dict):
        raise FileError(f"{path} holds a {type(content).__name__}, not a CIFAR dictionary")
    return {k.decode() if isinstance(k, bytes) else str(k): v for k, v in content.items()}


def _images(path: Path, batch: dict[str, Any]) -> NDArray[np.uint8]:
    data = batch.get("data")
    if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.ndim != 2:
        raise FileError(f"{path}: `data` is not a table of bytes. Delete it and fetch it again.")
    if data.shape[1] != 3072 or len(data) == 0:
        raise FileError(f"{path}: `data` is {data.shape[0]} x {data.shape[1]}, not n x 3072")
    # A row is all red, then all green, then all blue, each line by line: NCHW as it stands.
    return data.reshape(-1, 3, 32, 32)


def _labels(path: Path, batch: dict[str, Any], key: str, count: int, top: int) -> NDArray[np.int64]:
    labels = batch.get(key)
    if not isinstance(labels, list) or len(labels) != count:
        raise FileError(f"{path}: `{key}` does not hold one label for each of {count} images")
    array = np.asarray(labels)
    if array.dtype.kind not in "iu" or array.min() < 0 or array.max() >= top:
        raise FileError(f"{path}: `{key}` holds labels outside 0 to {top - 1}")
    return array.astype(np.int64)


def _names(path: Path, key: str, count: int) -> list[str]:
    names = unpickle(path).get(key)
    if not isinstance(names, list) or len(names) != count:
        raise FileError(f"{path}: `{key}` does not hold {count} class names")
    return [n.decode() if isinstance(n, bytes) else str(n) for n in names]


def read_cifar100(folder: Path) -> Parsed:
    """Read `train`, `test` and `meta`."""
    arrays: dict[str, NDArray[Any]] = {}
    for part in ("train", "test"):
        path = folder / part
        batch = unpickle(path)
        x = _images(path, batch)
        arrays[f"{part}_x"] = x
        arrays[f"{part}_y"] = _labels(path, batch, "fine_labels", len(x), 100)
        arrays[f"{part}_coarse"] = _labels(path, batch, "coarse_labels", len(x), 20)
        arrays[f"{part}_id"] = image_ids(x)
    meta = folder / "meta"
    return Parsed(
        arrays,
        {
            "classes": _names(meta, "fine_label_names", 100),
            "coarse": _names(meta, "coarse_label_names", 20),
        },
    )


def read_cifar10(folder: Path) -> Parsed:
    """Read the training batches that are there, `test_batch` and `batches.meta`."""
    parts = {"train": sorted(folder.glob("data_batch_[1-5]")), "test": [folder / "test_batch"]}
    arrays: dict[str, NDArray[Any]] = {}
    for part, paths in parts.items():
        batches = [(path, unpickle(path)) for path in paths]
        x = np.concatenate([_images(path, batch) for path, batch in batches])
        y = [_labels(path, batch, "labels", len(batch["data"]), 10) for path, batch in batches]
        arrays |= {f"{part}_x": x, f"{part}_y": np.concatenate(y), f"{part}_id": image_ids(x)}
    return Parsed(arrays, {"classes": _names(folder / "batches.meta", "label_names", 10)})
