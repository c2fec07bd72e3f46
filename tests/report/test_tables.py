from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sigmatau.report import languages, per_task, tables
from sigmatau.report.published import BENCHMARKS
from sigmatau.report.results import read
from sigmatau.report.tables import Line, Table

from .made import gallery, put, put_failed, result

TASKS = ("one", "two")


def made(folder: Path, stream: str = "split-cifar100") -> Table:
    return tables.table(read([folder]), stream)


def line(table: Table, label: str, source: str = "ours") -> Line:
    return next(x for x in table.lines if (x.label, x.source) == (label, source))


def beside(table: Table, label: str) -> Line:
    """Return the paper's line that stands under one of ours."""
    place = next(k for k, x in enumerate(table.lines) if (x.label, x.source) == (label, "ours"))
    assert table.lines[place + 1].source == "paper"
    return table.lines[place + 1]


def two_tasks(order: str, seed: int, one: float, two: float, **more: Any) -> dict[str, Any]:
    indices = (0, 1) if order == "A" else (1, 0)
    base = result("apd1", order, seed, tasks=TASKS, order_indices=indices, spread=0, **more)
    return {**base, "final": {"one": one, "two": two}, "average_accuracy": (one + two) / 2}


def test_a_line_of_ours_is_what_its_definition_says(tmp_path: Path) -> None:
    put(tmp_path, two_tasks("A", 0, 0.50, 0.60, seconds=100, capacity=1.2))
    put(tmp_path, two_tasks("A", 1, 0.54, 0.60, seconds=200, capacity=1.4))
    busy = {"seconds": 9000, "seconds_per_task": [100, 8900]}  # counts by what is usual
    put(tmp_path, two_tasks("B", 0, 0.60, 0.61, capacity=1.3) | busy)
    put(tmp_path, two_tasks("B", 1, 0.60, 0.61, capacity=1.3) | busy)
    put(tmp_path, result("finetune", tasks=TASKS, order_indices=(0, 1), seconds=50))
    values = line(made(tmp_path), "apd1").values
    assert values["accuracy"] == pytest.approx(np.mean([55, 57, 60.5, 60.5]))
    assert values["sd"] == pytest.approx(np.std([55, 57, 60.5, 60.5], ddof=1))
    # Task one: 52 in order A (mean over seeds) and 60 in B; task two: 60 and 61.
    assert values["aopd"] == pytest.approx((8 + 1) / 2)
    assert values["mopd"] == pytest.approx(8)
    assert values["capacity"] == pytest.approx(130)
    assert values["time"] == pytest.approx(4)
    assert line(made(tmp_path), "apd1").cells == "4/4"


def test_orders_are_compared_by_the_seeds_they_share(tmp_path: Path) -> None:
    put(tmp_path, two_tasks("A", 0, 0.50, 0.60))
    put(tmp_path, two_tasks("A", 1, 0.70, 0.80))  # an easy seed, which B does not have
    put(tmp_path, two_tasks("B", 0, 0.53, 0.61))
    values = line(made(tmp_path), "apd1").values
    assert (values["aopd"], values["mopd"]) == pytest.approx((2, 3))
    assert values["accuracy"] == pytest.approx(np.mean([55, 75, 57]))
    assert line(made(tmp_path), "apd1").cells == "3/4, 1 missing"


def test_orders_that_share_no_seed_are_compared_all_the_same(tmp_path: Path) -> None:
    put(tmp_path, two_tasks("A", 1, 0.50, 0.60))
    put(tmp_path, two_tasks("B", 0, 0.53, 0.61))
    assert line(made(tmp_path), "apd1").values["aopd"] == pytest.approx(2)


def test_times_are_compared_where_they_were_taken(tmp_path: Path) -> None:
    slow = {"machine": {"cpu": "a slow one"}}
    put(tmp_path, result("stl", seconds=100))
    put(tmp_path, result("stl", "B", seconds=1000, **slow))
    put(tmp_path, result("apd1", seconds=200))
    put(tmp_path, result("apd1", "B", seconds=2000, **slow))
    put(tmp_path, result("apd1", "C", seconds=7, machine={"cpu": "nobody else's"}))
    table = made(tmp_path)
    times = {row.group.label: row.ours["time"] for row in table.rows}
    assert times == {"stl": pytest.approx(1), "apd1": pytest.approx(2)}
    assert any("100.0 s a task on a slow one in 32-true" in note for note in table.notes)


def test_what_one_run_cannot_tell_is_left_empty(tmp_path: Path) -> None:
    put(tmp_path, result("apd1"))
    values = line(made(tmp_path), "apd1").values
    assert not {"sd", "aopd", "mopd", "time", "to_stl"} & set(values)


def test_the_distance_to_stl_is_to_that_of_the_same_source(tmp_path: Path) -> None:
    put(tmp_path, result("stl", score=0.7, spread=0))
    put(tmp_path, result("apd1", score=0.66, spread=0))
    table = made(tmp_path)
    assert line(table, "apd1").values["to_stl"] == pytest.approx(-4)
    assert line(table, "APD(1)", "paper").values["to_stl"] == pytest.approx(59.93 - 63.75)


def test_the_distance_to_stl_is_that_between_runs_of_a_seed(tmp_path: Path) -> None:
    for seed, score in enumerate((0.7, 0.8)):
        put(tmp_path, result("stl", seed=seed, score=score, spread=0))
    for order, seed, score in (("A", 0, 0.66), ("B", 0, 0.68), ("A", 1, 0.7), ("A", 2, 0.1)):
        put(tmp_path, result("apd1", order, seed, score=score, spread=0))
    put(tmp_path, result("l2t", seed=1, score=0.5, spread=0))
    put(tmp_path, result("ewc", seed=5, score=0.5, spread=0))
    table = made(tmp_path)
    told = {label: line(table, label).values["to_stl"] for label in ("stl", "apd1", "l2t", "ewc")}
    # Of apd1, seed 2 is left out; of ewc's seed there is no STL, so all of STL stands for it.
    expected = {"stl": 0, "apd1": np.mean([-4, -2, -10]), "l2t": -30, "ewc": -25}
    assert told == pytest.approx(expected)


def test_a_variant_is_told_from_the_stl_of_that_variant_and_else_from_the_first(
    tmp_path: Path,
) -> None:
    scores = {"STL": 0.7, "STL, short": 0.5, "A": 0.66, "A, short": 0.53, "A, wide": 0.69}
    for label, score in scores.items():
        method = "stl" if label.startswith("STL") else "apd1"
        put(tmp_path, result(method, label=label, score=score, spread=0))
    table = made(tmp_path)
    told = {label: line(table, label).values["to_stl"] for label in scores}
    expected = {"STL": 0, "STL, short": 0, "A": -4, "A, short": 3, "A, wide": -1}
    assert told == pytest.approx(expected)


@pytest.mark.parametrize(
    ("capacity", "name"), [(1.2, "APD(1)"), (1.35, "APD(1)"), (1.8, "APD(1), larger")]
)
def test_beside_ours_stands_the_papers_line_of_nearest_capacity(
    tmp_path: Path, capacity: float, name: str
) -> None:
    put(tmp_path, result("apd1", capacity=capacity))
    table = made(tmp_path)
    paper = beside(table, "apd1")
    assert paper.label == name
    gap = line(table, "ours - paper", "difference").values
    ours = line(table, "apd1").values
    assert gap["accuracy"] == pytest.approx(ours["accuracy"] - paper.values["accuracy"])
    absent = [x.label for x in table.lines if x.cells == "not run here"]
    assert name not in absent
    assert "DEN" in absent


def test_an_ablation_is_known_by_its_settings(tmp_path: Path) -> None:
    config = {"settings": {"mask": False, "sparse": True, "shared": "learnt"}}
    put(tmp_path, result("apd1", label="apd1 mask=False", config=config))
    assert beside(made(tmp_path), "apd1 mask=False").label == "APD(1) without mask"


def test_a_budget_repeats_a_line_of_the_paper_only_by_its_name(tmp_path: Path) -> None:
    config = {"settings": {"budget": 0.03}}
    put(tmp_path, result("apd1", label="APD(1), larger", config=config))
    put(tmp_path, result("apd1", label="a budget", config=config))
    put(tmp_path, result("apd1", label="part", config={"tasks": 4}))
    papers = {row.group.label: row.paper and row.paper.name for row in made(tmp_path).rows}
    assert papers == {"APD(1), larger": "APD(1), larger", "a budget": None, "part": None}


def test_where_the_paper_tells_orders_apart_so_do_we(tmp_path: Path) -> None:
    tasks = ("svhn", "cifar10", "cifar100")
    for order, indices in (("down", (0, 1, 2)), ("up", (2, 1, 0))):
        given = {"stream": "hetero3", "tasks": tasks, "order_indices": indices}
        put(tmp_path, result("l2t", order, **given))
    table = made(tmp_path, "hetero3")
    assert beside(table, "l2t, order down").label == "L2T, down"
    assert beside(table, "l2t, order up").label == "L2T, up"
    tasks_of = per_task.task_table(table)
    assert tasks_of is not None
    told = {x.label: x.scores for x in tasks_of.lines if x.source == "paper"}
    assert told["L2T, up"] == {"svhn": 88.4, "cifar10": 35.8, "cifar100": 12.2}


def test_failed_cells_are_counted_in_the_line(tmp_path: Path) -> None:
    put(tmp_path, result("ewc", "A"))
    put_failed(tmp_path, "ewc", "B", 0, "boom")
    put_failed(tmp_path, "gem", "A", 0, "boom")
    table = made(tmp_path)
    assert line(table, "ewc").cells == "1/2, 1 failed"
    assert line(table, "gem").values == {}


def test_the_reader_is_told_what_was_reduced_or_mixed(tmp_path: Path) -> None:
    put(tmp_path, result("apd1", "A", config={"rows": {"train": 500}, "settings": {"l1": 1e-4}}))
    put(tmp_path, result("apd1", "B", config={"rows": {"train": 500}, "settings": {"l1": 2e-4}}))
    notes = " ".join(made(tmp_path).notes)
    assert "scrambled" in notes
    assert 'Reduced from the full protocol, rows {"train": 500}: apd1.' in notes
    assert "apd1 averages runs of different settings.l1: 0.0001, 0.0002." in notes


def test_all_languages_say_the_same(tmp_path: Path) -> None:
    put(tmp_path, result("stl", score=0.7))
    put(tmp_path, result("apd1", label="apd1 l1=1e-4 & 50 %_|x"))
    table = made(tmp_path)
    rows = list(csv.DictReader(io.StringIO(languages.to_csv(table))))
    assert [row["method"] for row in rows] == [x.label for x in table.lines]
    assert float(rows[0]["accuracy"]) == table.lines[0].values["accuracy"]
    markdown = languages.to_markdown(table).splitlines()
    body = [text for text in markdown if text.startswith("|")]
    assert len(body) == len(table.lines) + 2
    assert len({text.replace("\\|", "").count("|") for text in body}) == 1
    assert "**ours**" in body[2]
    latex = languages.to_latex(table)
    assert r"apd1 l1=1e-4 \& 50 \%\_|x" in latex
    assert "P\\&C" in latex
    ends = [text for text in latex.splitlines() if text.endswith(r"\\")]
    assert len({text.replace(r"\&", "").count("&") for text in ends}) == 1


def test_a_stream_the_paper_does_not_know_gets_a_table_too(tmp_path: Path) -> None:
    put(tmp_path, result("apd1", stream="digits"))
    table = made(tmp_path, "digits")
    assert [x.source for x in table.lines] == ["ours"]
    assert "paper" not in languages.to_markdown(table)


def test_scores_by_task_are_means_over_seeds(tmp_path: Path) -> None:
    put(tmp_path, two_tasks("A", 0, 0.50, 0.60))
    put(tmp_path, two_tasks("A", 1, 0.54, 0.60))
    table = per_task.task_table(made(tmp_path))
    assert table is not None
    assert table.lines[0].scores == pytest.approx({"one": 52, "two": 60})
    assert "| apd1 | A | ours | 52.00 | 60.00 |" in per_task.to_markdown(table)


def test_every_published_method_ranks_its_rows_in_the_papers_order(tmp_path: Path) -> None:
    table = made(gallery(tmp_path))
    ours = [x.label for x in table.lines if x.source == "ours"]
    assert ours == ["stl", "ewc", "pgn", "apd1", "apd2", "finetune"]


def test_published_figures_are_in_percent() -> None:
    rows = [row for benchmark in BENCHMARKS.values() for row in benchmark.rows]
    assert all(10 < row.accuracy < 100 and row.capacity >= 100 for row in rows)
    assert all(row.mopd > row.aopd for row in rows if row.aopd and row.mopd)
    names = [[row.name for row in benchmark.rows] for benchmark in BENCHMARKS.values()]
    assert all(len(set(found)) == len(found) for found in names)


def test_the_reader_is_told_of_streams_learnt_in_part(tmp_path: Path) -> None:
    put(tmp_path, result("apd1", tasks=TASKS))
    put(tmp_path, result("stl"))
    notes = " ".join(made(tmp_path).notes)
    assert "Learnt 2 of the paper's 10 tasks: apd1." in notes
