"""Does a curve grow like a logarithm, like a line, or in between? Least-squares fits that tell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np


@dataclass(frozen=True)
class Fit:
    """A fitted curve; `r2` is the share of the variance that it explains."""

    kind: Literal["logarithmic", "linear"]
    start: float
    slope: float
    r2: float
    values: tuple[float, ...]

    @property
    def formula(self) -> str:
        sign = "-" if self.slope < 0 else "+"
        return f"{round(self.start, 6) + 0.0:.4g} {sign} {abs(self.slope):.4g} {_TERM[self.kind]}"


_TERM = {"logarithmic": "ln t", "linear": "t"}


def fits(curve: Sequence[float]) -> tuple[Fit, Fit] | None:
    """Fit `a + b ln t` and `a + b t` for t = 1, 2, ..., the better first; None for a constant."""
    y = np.asarray(curve, dtype=np.float64)
    t = np.arange(1, len(y) + 1, dtype=np.float64)
    total = float(((y - y.mean()) ** 2).sum())
    if total <= 1e-12 * max(1.0, float((y**2).sum())):
        return None
    log, line = _fit("logarithmic", np.log(t), y, total), _fit("linear", t, y, total)
    return (log, line) if log.r2 >= line.r2 else (line, log)


def exponent(curve: Sequence[float]) -> float | None:
    """Fit `y_1 + c (t - 1)^p` and return p: 1 is a line, less flattens; None if it hardly grows."""
    rise = np.asarray(curve[1:], dtype=np.float64) - curve[0]
    t = np.arange(1, len(curve), dtype=np.float64)
    grown = rise > 0
    if grown.sum() < 3:
        return None
    return float(np.polyfit(np.log(t[grown]), np.log(rise[grown]), 1)[0])


def _fit(
    kind: Literal["logarithmic", "linear"],
    x: np.typing.NDArray[np.float64],
    y: np.typing.NDArray[np.float64],
    total: float,
) -> Fit:
    slope, start = np.polyfit(x, y, 1)
    values = start + slope * x
    r2 = 1 - float(((y - values) ** 2).sum()) / total
    return Fit(kind, float(start), float(slope), r2, tuple(values.tolist()))
