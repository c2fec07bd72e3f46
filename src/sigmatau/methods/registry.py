"""Methods by name. A method is one file in this folder; being there is all it takes."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from typing import Any, TypeVar

from torch import nn

from sigmatau.errors import ConfigError, nearest
from sigmatau.methods.base import Method

M = TypeVar("M", bound=type[Method[Any]])


@dataclass(frozen=True)
class Entry:
    """A name, the class behind it and the settings that make it what it is called."""

    name: str
    cls: type[Method[Any]]
    preset: Mapping[str, Any] = field(default_factory=dict)

    @property
    def defaults(self) -> dict[str, Any]:
        """Return every setting with the value it has if nothing is given."""
        fields = self.cls.Settings.model_fields.items()
        usual = {key: field.get_default(call_default_factory=True) for key, field in fields}
        return {**usual, **self.preset}

    def settings(self, stream: str | None, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the settings published for a stream, the name's own, and those given."""
        published = self.cls.published.get(stream, {}) if stream is not None else {}
        replaced = {old for new, old in self.cls.replaces.items() if new in given}
        kept = {key: value for key, value in published.items() if key not in replaced}
        return {**kept, **self.preset, **given}


_ENTRIES: dict[str, Entry] = {}


def register(name: str, **preset: Any) -> Callable[[M], M]:
    """Give a class a name, with the settings that the name stands for."""

    def add(cls: M) -> M:
        if name in _ENTRIES:
            raise ConfigError(f"method {name!r} is registered twice")
        _ENTRIES[name] = Entry(name, cls, preset)
        return cls

    return add


@cache
def _discover() -> None:
    import sigmatau.methods as folder

    for module in pkgutil.iter_modules(folder.__path__):
        import_module(f"sigmatau.methods.{module.name}")


def names() -> list[str]:
    """Return the names of all methods."""
    _discover()
    return sorted(_ENTRIES)


def entry(name: str) -> Entry:
    """Return what is registered under a name."""
    _discover()
    if name not in _ENTRIES:
        raise ConfigError(f"no method {name!r}; {nearest(name, _ENTRIES)}")
    return _ENTRIES[name]


def create(
    name: str, backbone: nn.Module, *, stream: str | None = None, **settings: Any
) -> Method[Any]:
    """Build a method by name; `stream` takes the settings published for that benchmark."""
    found = entry(name)
    return found.cls(backbone, **found.settings(stream, settings))


def by_class(name: str) -> type[Method[Any]] | None:
    """Return the class that writes `name` into its files."""
    _discover()
    return next((e.cls for e in _ENTRIES.values() if e.cls.name == name), None)
