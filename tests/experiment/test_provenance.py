"""What a result says of where it was made."""

from __future__ import annotations

import platform
from pathlib import Path

import sigmatau
from sigmatau.experiment import provenance


def test_processors_of_one_name_are_told_apart(tmp_path: Path) -> None:
    told = []
    for model in (1, 17):
        about = tmp_path / f"cpuinfo-{model}"
        one = f"processor\t: 0\ncpu family\t: 25\nmodel\t\t: {model}\nmodel name\t: AMD EPYC\n"
        about.write_text(one + "\n" + one.replace("AMD", "another"))
        told.append(provenance.processor(about))
    assert told == ["AMD EPYC (family 25, model 1)", "AMD EPYC (family 25, model 17)"]


def test_a_processor_that_says_little_has_a_name_all_the_same(tmp_path: Path) -> None:
    about = tmp_path / "cpuinfo"
    about.write_text("processor\t: 0\nFeatures\t: fp asimd\n")
    usual = platform.processor() or platform.machine()
    assert provenance.processor(about) == usual
    assert provenance.processor(tmp_path / "nowhere") == usual


def test_the_version_is_that_of_the_package() -> None:
    assert provenance.versions()["sigmatau"] == sigmatau.__version__
    assert {"cpu", "cores", "threads"} == provenance.machine().keys()
