"""A table of a network's parts: what is shared by all tasks, and what each task keeps."""

from __future__ import annotations

from math import prod
from typing import Any

from sigmatau.methods.base import Method


def summarise(net: Method[Any]) -> str:
    """Return one line per parameter and buffer, and one per task."""
    layout = net.layout
    kinds = {w.name: "decomposed" for w in layout.weights}
    kinds |= dict.fromkeys(layout.own, "own, per task")
    kinds |= dict.fromkeys(layout.head_parameters, "head, per task")
    kinds |= dict.fromkeys(layout.fixed, "frozen, shared")
    rows = [(n, _shape(s), f"{prod(s):,}", kinds[n]) for n, s in layout.shapes.items()]
    rows += [
        (n, _shape(s), f"{prod(s):,}", "buffer, per task if it changes")
        for n, s in layout.buffers.items()
    ]
    head = ("parameter", "shape", "numbers", "what becomes of it")
    lines = [f"{type(net).__name__} ({net.name}) on {layout.size:,} numbers", ""]
    lines += _table([head, *rows])
    if net.tasks:
        told = [
            (task, str(info.outputs or "-"), f"{info.growth:.2%}")
            for task, info in net.infos.items()
        ]
        lines += ["", *_table([("task", "outputs", "added when learnt"), *told])]
        lines += ["", f"capacity: {net.capacity()}"]
    return "\n".join(lines)


def _shape(shape: tuple[int, ...]) -> str:
    return "x".join(str(n) for n in shape) or "1"


def _table(rows: list[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return [
        "  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
