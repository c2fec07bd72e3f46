"""What importing the package costs."""

from __future__ import annotations

import subprocess
import sys

import pytest

import sigmatau


def test_importing_costs_little_more_than_torch() -> None:
    """Counted in modules: timing belongs to the benchmarks, and no test may fail on a slow day."""
    script = (
        "import sys, torch; before = set(sys.modules); import sigmatau; "
        "print(len([m for m in sys.modules if m not in before and not m.startswith('sigmatau')]))"
    )
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert int(out.stdout) < 5
    script = "import sys, sigmatau; print('torch' in sys.modules, sorted(dir(sigmatau)))"
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "False" in out.stdout
    assert "APDNet" in out.stdout
    with pytest.raises(AttributeError, match="no attribute 'APDNett'"):
        sigmatau.APDNett  # noqa: B018
