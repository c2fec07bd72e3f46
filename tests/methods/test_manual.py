"""The manual has a section for every method, and none for a method that is not there."""

from __future__ import annotations

import re
from pathlib import Path

from sigmatau import methods

MANUAL = Path(__file__).resolve().parents[2] / "docs" / "methods.md"


def test_every_method_has_its_section() -> None:
    titles = re.findall(r"^## `?([a-z0-9-]+)`?", MANUAL.read_text(), flags=re.MULTILINE)
    assert set(methods.names()) <= set(titles)
