"""The methods: one file each, one base class, one registry."""

from __future__ import annotations

from os import PathLike
from typing import Any

from torch import nn

from sigmatau.core.container import Container
from sigmatau.errors import FileError
from sigmatau.methods.base import Method
from sigmatau.methods.registry import by_class, create, entry, names, register

__all__ = ["Method", "create", "entry", "load", "names", "register"]


def load(path: str | PathLike[str], backbone: nn.Module) -> Method[Any]:
    """Open a saved network of any method; `backbone` gives the structure, the file the weights.

    Only the header is read; a task is read when it is first used.
    """
    source = Container.open(path)
    name = str(source.meta.get("method"))
    cls = by_class(name)
    if cls is None:
        raise FileError(f"{path} holds a network of method {name!r}, not known here: upgrade")
    return cls.open(source, backbone)
