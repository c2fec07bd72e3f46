"""Every error sigmatau raises on purpose: one family, each message saying what to do next."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class SigmatauError(Exception):
    """Base of all errors raised on purpose."""


class DataError(SigmatauError, ValueError):
    """Data that cannot be learnt from: empty, misshapen, out of range or not finite."""


class TaskError(SigmatauError, KeyError):
    """A task that is not there, or is there already."""

    def __str__(self) -> str:  # KeyError shows the repr of its message; people read this one
        return str(self.args[0]) if self.args else ""


class BackboneError(SigmatauError, ValueError):
    """A network that the method cannot work with."""


class ConfigError(SigmatauError, ValueError):
    """Settings that contradict each other or make no sense."""


class TrainingError(SigmatauError, RuntimeError):
    """Training that went wrong, such as a loss that is no longer a number."""


class FileError(SigmatauError, OSError):
    """A file that is damaged, hostile, of another version or of another network."""


class MissingExtra(SigmatauError, ImportError):
    """An optional dependency that is not installed."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f"this needs {package}: pip install 'sigmatau[{extra}]'")


def nearest(word: str, known: Iterable[str]) -> str:
    """Return a hint such as `did you mean 'apd1'?`, or the list of what is known."""
    names = sorted(known)
    close = difflib.get_close_matches(word, names, n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else f"known: {', '.join(names) or 'none'}"
