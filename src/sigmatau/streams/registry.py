"""Every benchmark by name: a file in `benchmarks/` is one, and is imported when first asked for.

The file name is the benchmark's name with underscores for dashes, so listing costs no import.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sigmatau.errors import ConfigError, nearest
from sigmatau.streams import benchmarks
from sigmatau.streams.base import Stream

Maker = Callable[..., Stream]


@dataclass(frozen=True)
class Entry:
    """A registered stream: how to make it, and the official image sets it reads."""

    make: Maker
    needs: tuple[str, ...]


_entries: dict[str, Entry] = {}


def register(name: str, needs: Sequence[str] = ()) -> Callable[[Maker], Maker]:
    """Make the decorated `(*, root, seed, ...) -> Stream` known as `name`.

    `needs` names the image sets that `sigmatau data fetch` brings for it.
    """

    def add(make: Maker) -> Maker:
        if name in _entries or (name in _files() and make.__module__ != _files()[name]):
            raise ConfigError(f"there is a stream {name!r} already; register under another name")
        _entries[name] = Entry(make, tuple(needs))
        return make

    return add


def names() -> tuple[str, ...]:
    """Return the name of every stream."""
    return tuple(sorted({*_files(), *_entries}))


def entry(name: str) -> Entry:
    """Return how the stream `name` is made."""
    if name not in _entries:
        if name not in _files():
            raise ConfigError(f"there is no stream {name!r}: {nearest(name, names())}")
        importlib.import_module(_files()[name])
    return _entries[name]


def get(name: str, *, root: str | Path | None = None, seed: int = 0, **options: Any) -> Stream:
    """Return the stream `name`, read from the data folder `root`, split by `seed`.

    `root` defaults to the folder in SIGMATAU_DATA, or else the user's cache folder.
    """
    from sigmatau.streams.sets import data_root

    make = entry(name).make
    known = set(inspect.signature(make).parameters) - {"root", "seed"}
    for option in options:
        if option not in known:
            raise ConfigError(f"{name!r} has no option {option!r}: {nearest(option, known)}")
    return make(root=data_root(root), seed=seed, **options)


def _files() -> dict[str, str]:
    found = pkgutil.iter_modules(benchmarks.__path__)
    return {m.name.replace("_", "-"): f"{benchmarks.__name__}.{m.name}" for m in found}
