"""Every benchmark runs, on sizes so small that its figures mean nothing. No timing is asserted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from benchmarks import (
    _document,
    _past,
    batches,
    consolidation,
    ending,
    gradient,
    importing,
    many,
    memory,
    methods,
    runner,
    scale,
    serving,
    steps,
    subnormal,
)
from benchmarks.__main__ import names
from benchmarks._document import Bar, Section, Table, fill, keep, kept, machines
from benchmarks._measure import alternate, in_fresh_process, over
from torch import nn

from sigmatau import APDNet, backbones
from sigmatau import methods as registry


def tiny(outputs: int = 10) -> nn.Module:
    return backbones.lenet((3, 8, 8), outputs, (2, 3, 8, 6))


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the networks of all benchmarks tiny."""
    for case in _past.CASES:
        monkeypatch.setitem(_past.CASES, case, (tiny, (3, 8, 8), 4))


def whole(section: Section) -> None:
    """Check that a section can be read, and kept."""
    json.dumps({"bars": [[b.what, b.value] for b in section.bars], **section.numbers})
    assert section.tables
    for table in section.tables:
        assert table.rows
        assert {len(row) for row in table.rows} == {len(table.columns)}
    for value in (*section.numbers.values(), *(bar.value for bar in section.bars)):
        assert value == value, "a figure is not a number"


def test_steps(small: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(steps.KINDS, "budget = 3 %", {"budget": 0.3})
    section = steps.main((1, 3), rounds=2)
    whole(section)
    # A bar for the worst and one for flatness, by kind and network.
    assert len(section.bars) == 2 * len(steps.KINDS) * len(_past.CASES)


def test_gradient(small: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gradient, "in_fresh_process", lambda _, *given: gradient.peak(*given) or 1)
    whole(gradient.main(tasks=2, rounds=1))


def test_ending_and_consolidation(small: None) -> None:
    whole(ending.main(tasks=3, rows=12, rounds=1))
    whole(consolidation.main(tasks=4, groups=2, rows=12, rounds=1))


def test_subnormal(small: None) -> None:
    whole(subnormal.main(rows=50, epochs=10))


def test_serving(small: None) -> None:
    whole(serving.main(few=2, many=4, rounds=1))


def test_many(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(many, "DOCS", tmp_path)
    section = many.main(tasks=20, window=10, epochs=1)
    whole(section)
    assert (tmp_path / section.figure).read_text().startswith("<?xml")


@pytest.mark.parametrize("name", registry.names())
def test_every_method_is_measured_and_its_needs_are_named(name: str) -> None:
    assert name in methods.NEEDS
    times, held = methods.measure(name, (1, 2), rounds=1, widths=(8, 8))
    assert set(times) == {"plain", "1", "2"}
    assert all(training > 0 and stored > 0 for training, stored in held.values())


def test_memory() -> None:
    found = memory.learn(None, {"l1": 4e-4}, 32)
    assert found["process"] > found["learning"]
    assert found["deltas"] == 0


def test_deltas_that_two_states_share_count_once() -> None:
    state = _past.with_past(APDNet(tiny()), 2)._memory.state
    assert memory.deltas(state, state) == memory.deltas(state) > 0


def test_scale() -> None:
    section = scale.main(rounds=1, tasks=2, width=16)
    whole(section)
    assert any("breaks first" in table.title for table in section.tables)
    assert scale.shown(7200, "s") == "2.0 h"
    assert scale.shown(2.5e9, "B") == "2.5 GB"


def test_batches_and_importing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert batches.measure(20, (3,), 4, rounds=1)["floor"] > 0
    monkeypatch.setattr(importing, "SIDES", {"torch": "import json", "sigmatau": "import math"})
    whole(importing.main(rounds=1))


def test_runner() -> None:
    whole(runner.main(1))


def test_past_tasks_have_the_stated_density_and_can_be_used() -> None:
    net = _past.with_past(APDNet(backbones.mlp((50,), 10, (40,))), 3)
    part = net._memory.state.tasks["1"]()
    assert part.deltas["fc1.weight"].nnz == round(0.03 * 2000)
    assert net.predict("1", torch.rand(2, 50)).shape == (2, 10)


def test_sides_take_turns_and_ratios_are_taken_within_a_round() -> None:
    calls: list[str] = []
    sides = {name: (lambda name=name: calls.append(name)) for name in "ab"}
    times = alternate(sides, rounds=2, warm=1)
    assert sorted(calls[:2]) == sorted(calls[2:4]) == ["a", "b"]
    assert calls[:2] != calls[2:4]
    assert [len(found) for found in times.values()] == [2, 2]
    assert over({"a": [1.0, 9.0, 2.0], "b": [1.0, 3.0, 2.0]}, "a", "b") == 1.0


def test_a_fresh_process_returns_what_the_function_does() -> None:
    assert in_fresh_process("scale.shown", 60, "s") == "1.0 min"


def test_only_what_stands_between_markers_is_replaced() -> None:
    table = Table("", ["a"], [["1"]])
    section = Section([table], [Bar("speed", 2.0, 1.0)], machine="one machine")
    text = "before\n<!-- bench x -->\nold\n<!-- end -->\nafter\n<!-- bench bars -->\n<!-- end -->\n"
    text += "<!-- bench y -->\n<!-- end -->\n"
    filled = fill(text, {"x": section, "elsewhere": section})
    assert filled.startswith("before\n<!-- bench x -->\n\n| a |")
    assert "old" not in filled
    assert "after" in filled
    assert "Not measured yet." in filled
    assert filled.count("**missed**") == 2  # in its section and among all bars
    assert fill(filled, {"x": section}) == filled


def test_a_section_is_kept_and_comes_back(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(_document, "RESULTS", tmp_path)
    section = Section([Table("t", ["a"], [["1"]])], [Bar("b", 1.0, 2.0)], {"n": 3.0})
    keep("x", section)
    again = kept("x")
    assert str(again) == str(section)
    assert again.numbers == section.numbers
    assert "torch" in machines({"x": again})
    assert kept("y") == Section()


def test_every_benchmark_has_a_place_in_a_document() -> None:
    texts = "".join((_document.DOCS / name).read_text() for name in ("performance.md", "scale.md"))
    for name in set(names()) - {"budget"}:  # has a page of its own
        assert f"<!-- bench {name} -->" in texts
