"""From parsed bytes to tensors: the one place where pixels become float32 in [0, 1]."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from sigmatau.streams.base import Pair


def pair(x: NDArray[np.uint8], y: NDArray[Any], rows: NDArray[np.int64] | None = None) -> Pair:
    """Return images (or the named `rows` of them) as floats with their labels."""
    # Both branches copy: a task must not keep a view into the read-only mapped file.
    pixels = np.array(x) if rows is None else np.ascontiguousarray(x[rows])
    labels = np.array(y if rows is None else y[rows], dtype=np.int64)
    return torch.from_numpy(pixels).to(torch.float32).div_(255), torch.from_numpy(labels)
