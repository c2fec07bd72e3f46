"""See and count a task: a contact sheet of its images, and checks of what every stream promises."""

from __future__ import annotations

from dataclasses import dataclass
from io import BytesIO
from math import isqrt
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from sigmatau.streams.base import Stream, Task
from sigmatau.streams.cache import write_whole
from sigmatau.streams.own import ids_of

COLUMNS, CELL, TITLE = 12, 48, 150


@dataclass(frozen=True)
class Check:
    """One promise, whether it holds, and what was seen."""

    what: str
    holds: bool
    seen: str


def picture(x: Tensor, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """Return one input as an HxWx3 picture; a vector becomes a square where it can."""
    if len(shape) == 1:
        side = isqrt(shape[0])
        shape = (1, side, side) if side * side == shape[0] else (1, 1, shape[0])
    pixels = x.reshape(shape).clamp(0, 1).mul(255).round().byte().permute(1, 2, 0).numpy()
    grey = pixels if pixels.shape[2] in (1, 3) else pixels[:, :, :1]
    return np.broadcast_to(grey, (*grey.shape[:2], 3))


def contact_sheet(task: Task, path: Path, classes: int = 20) -> None:
    """Write a PNG with a row a class: its name, then its first training images."""
    from PIL import Image, ImageDraw

    x, y = task.train
    shown = range(min(classes, len(task.classes)))
    sheet = Image.new("RGB", (TITLE + COLUMNS * CELL, len(shown) * CELL), "white")
    draw = ImageDraw.Draw(sheet)
    for c in shown:
        draw.text((6, c * CELL + CELL // 2 - 6), task.classes[c][-24:], fill="black")
        for column, row in enumerate((y == c).nonzero()[:COLUMNS, 0].tolist()):
            cell = Image.fromarray(np.ascontiguousarray(picture(x[row], tuple(x.shape[1:]))))
            cell = cell.resize((CELL - 2, CELL - 2), Image.Resampling.NEAREST)
            sheet.paste(cell, (TITLE + column * CELL + 1, c * CELL + 1))
    buffer = BytesIO()
    sheet.save(buffer, "PNG")
    write_whole(path, buffer.getbuffer())


class Checker:
    """Watches tasks go by and says at the end whether the stream keeps its promises."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.ids: dict[str, list[NDArray[np.uint64]]] = {"train": [], "val": [], "test": []}
        self.low, self.high = float("inf"), float("-inf")
        self.misshapen: list[str] = []
        self.absent: list[str] = []

    def see(self, task: Task) -> None:
        """Take note of one task."""
        for part, (x, y) in task.parts().items():
            self.ids[part].append(ids_of(x))
            self.low, self.high = min(self.low, float(x.min())), max(self.high, float(x.max()))
            if tuple(x.shape[1:]) != self.stream.input_shape:
                self.misshapen.append(f"{task.name} {part}")
            counts = np.bincount(y.numpy(), minlength=len(task.classes))
            self.absent += [
                f"{task.name} {part} {task.classes[c]}" for c in np.flatnonzero(counts == 0)
            ]

    def result(self) -> list[Check]:
        """Return what held of everything seen."""
        sides = {part: np.concatenate(ids) for part, ids in self.ids.items() if ids}
        shared = {
            f"{a}/{b}": int(np.isin(sides[a], sides[b]).sum())
            for a, b in (("train", "val"), ("train", "test"), ("val", "test"))
            if a in sides and b in sides
        }
        inside = self.low >= 0 and self.high <= 1
        shape = "x".join(map(str, self.stream.input_shape))
        return [
            Check(
                "no image on two sides",
                not any(shared.values()),
                ", ".join(f"{k} {n}" for k, n in shared.items()),
            ),
            Check("values in [0, 1]", inside, f"{self.low:.3g} to {self.high:.3g}"),
            Check("every class in every part", not self.absent, _few(self.absent)),
            Check(f"inputs of {shape}", not self.misshapen, _few(self.misshapen)),
        ]


def _few(names: list[str]) -> str:
    return "all" if not names else f"not: {', '.join(names[:3])}{' ...' if names[3:] else ''}"
