"""What a user can choose from: the methods, and the settings of each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

from sigmatau.methods import registry
from sigmatau.methods.registry import Entry


def show_methods(out: Console) -> None:
    """Print every method, what it is and whether it can forget a task."""
    table = Table(
        "method", "what it is", "can forget", caption="settings of one: sigmatau methods NAME"
    )
    for name in registry.names():
        entry = registry.entry(name)
        preset = f" ({_pairs(entry.preset)})" if entry.preset else ""
        table.add_row(name, _about(entry) + preset, "yes" if entry.cls.can_forget else "no")
    out.print(table)


def show_settings(entry: Entry, out: Console) -> None:
    """Print the settings of a method, and those published for a stream."""
    table = Table("setting", "default", "what it is", title=f"{entry.name}: {_about(entry)}")
    for key, field in entry.cls.Settings.model_fields.items():
        table.add_row(key, _value(entry.defaults[key]), field.description or "")
    out.print(table)
    lines = [
        f"published for {stream}: {_pairs(settings)}"
        for stream, settings in entry.cls.published.items()
    ]
    lines.append(
        "Give settings as `--set KEY=VALUE`; "
        f"`sigmatau run STREAM {entry.name} --show` prints all that a run takes."
    )
    out.print("\n".join(lines), highlight=False, markup=False, soft_wrap=True)


def _about(entry: Entry) -> str:
    return (entry.cls.__doc__ or "").strip().partition("\n")[0]


def _pairs(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{key}={_value(value)}" for key, value in settings.items())


def _value(value: Any) -> str:
    """Write a value as `--set` reads it."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return f"{value:g}" if isinstance(value, float) else str(value)
