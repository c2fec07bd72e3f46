from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.decomposition import PCA

from sigmatau.errors import DataError
from sigmatau.report import drift, figures, static, tables
from sigmatau.report.fits import fits
from sigmatau.report.plot import Figure, Panel, Series, x_ticks
from sigmatau.report.results import read

from .made import TASKS, gallery, put, result, wander


def all_of(folder: Path, tasks: tuple[int, ...] = figures.TASKS) -> dict[str, Figure]:
    table = tables.table(read([folder]), "split-cifar100")
    return {figure.name: figure for figure in figures.all_figures(table, tasks)}


def test_every_figure_of_the_paper_is_drawn_from_the_gallery(tmp_path: Path) -> None:
    found = all_of(gallery(tmp_path))
    assert set(found) == {
        "efficiency",
        "order-disparity",
        "forgetting",
        "growth",
        "dropping",
        "drift",
    }


def test_a_figure_without_data_is_left_out(tmp_path: Path) -> None:
    put(tmp_path, {**result("apd1", "A"), "capacity_curve": []})
    assert set(all_of(tmp_path)) == {"efficiency", "forgetting"}


def test_disparity_strokes_run_from_the_worst_order_to_the_best(tmp_path: Path) -> None:
    runs = {order: result("apd1", order) for order in "ABC"}
    for run in runs.values():
        put(tmp_path, run)
    (panel,) = all_of(tmp_path)["order-disparity"].panels
    stroke = next(series for series in panel.series if series.kind == "span")
    for k, task in enumerate(TASKS):
        scores = [100 * run["final"][task] for run in runs.values()]
        assert (stroke.y[k], stroke.high[k]) == pytest.approx((min(scores), max(scores)))


def test_forgetting_follows_a_task_from_its_place_on(tmp_path: Path) -> None:
    put(tmp_path, result("finetune", "A", loss=0.01, spread=0))
    found = all_of(tmp_path, (1, 4, 10, 99))["forgetting"]
    assert [panel.title for panel in found.panels] == ["task 1", "task 4"]
    (series,) = found.panels[1].series
    assert list(series.x) == list(range(4, 11))
    assert np.diff([y for y in series.y if y is not None]) == pytest.approx([-1.0] * 6)


def test_scores_that_were_not_taken_end_a_curve(tmp_path: Path) -> None:
    run = result("apd1", "A")
    for row in run["accuracy_matrix"][1:]:
        row[0] = None
    put(tmp_path, run)
    (series,) = all_of(tmp_path, (1,))["forgetting"].panels[0].series
    assert list(series.x) == [1]


def test_growth_tells_a_logarithm_from_a_line(tmp_path: Path) -> None:
    steps = np.arange(1, 101)
    log, line = fits((100 + 30 * np.log(steps)).tolist()), fits((100 + 7 * steps).tolist())
    assert log is not None
    assert line is not None
    assert [f.kind for f in log] == ["logarithmic", "linear"]
    assert [f.kind for f in line] == ["linear", "logarithmic"]
    assert (log[0].start, log[0].slope, log[0].r2) == pytest.approx((100, 30, 1))
    assert log[0].formula == "100 + 30 ln t"
    assert log[1].r2 < 0.9
    assert fits([100.0] * 5) is None
    caption = all_of(gallery(tmp_path))["growth"].caption
    assert "apd2: 100 + 14 ln t (logarithmic R² 1.000" in caption
    assert "finetune does not grow" in caption


def test_dropping_says_whether_anything_else_moved(tmp_path: Path) -> None:
    scores = {"one": 0.5, "two": 0.6}
    drop = {"step": 2, "task": "one", "before": scores, "after": {"two": 0.6}}
    put(tmp_path / "still", result(drops=[drop]))
    put(tmp_path / "moved", result(drops=[{**drop, "after": {"two": 0.57}}]))
    put(tmp_path / "lost", result(drops=[{**drop, "after": {}}]))
    told = {name: all_of(tmp_path / name)["dropping"] for name in ("still", "moved", "lost")}
    assert "No other task moved at all." in told["still"].caption
    assert "3.00 points" in told["moved"].caption
    assert "100.00 points" in told["lost"].caption
    assert list(told["still"].panels[0].series[1].y) == [None, pytest.approx(60)]


def test_drift_is_measured_against_the_distance_between_tasks(tmp_path: Path) -> None:
    put(tmp_path, result("apd1"), wander(0.0))
    put(tmp_path, result("finetune"), wander(0.5))
    still, moving = all_of(tmp_path)["drift"].panels
    assert "moved 0%" in still.title
    assert "moved 0%" not in moving.title


def test_the_plane_is_that_of_principal_components(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    names = ["one", "two", "three"]
    steps = [
        {name: torch.randn(40, generator=generator) for name in names[: k + 1]} for k in range(3)
    ]
    made = drift.project(steps)
    rows = np.stack([w.numpy() for step in steps for w in step.values()]).astype(np.float64)
    pca = PCA(2).fit(rows)
    plane = np.array([[p["x"], p["y"]] for p in made["points"]])
    assert np.abs(plane) == pytest.approx(np.abs(pca.transform(rows)), abs=1e-9)
    assert made["explained"] == pytest.approx(pca.explained_variance_ratio_)
    assert [(p["task"], p["step"]) for p in made["points"]] == [
        (name, k + 1) for k in range(3) for name in names[: k + 1]
    ]
    path = drift.write(tmp_path, steps)
    assert json.loads(path.read_text()) == made


def test_a_plane_needs_vectors_of_one_size() -> None:
    with pytest.raises(DataError, match="at least two"):
        drift.project([{"one": torch.zeros(3)}])
    with pytest.raises(DataError, match="one size"):
        drift.project([{"one": torch.zeros(3)}, {"one": torch.zeros(4)}])
    same = drift.project([{"one": torch.ones(3)}, {"one": torch.ones(3)}])
    assert same["explained"] == [0.0, 0.0]


@pytest.mark.parametrize("low", [0.3, 1, 90, 100])
@pytest.mark.parametrize("ratio", [1, 1.1, 2, 10, 1000])
def test_a_logarithmic_axis_has_a_few_round_ticks(low: float, ratio: float) -> None:
    ticks = x_ticks(Panel("", [Series("", [low, low * ratio], [0, 0])], log_x=True))
    assert 1 <= len(ticks) <= 10
    assert all(0.89 * low <= tick <= 1.11 * low * ratio for tick in ticks)


@pytest.mark.parametrize("low", [0, 1, 6, 11])
@pytest.mark.parametrize("span", [0, 1, 2, 9, 10, 11, 19, 99, 1234])
def test_an_axis_of_counts_has_a_few_whole_ticks(low: int, span: int) -> None:
    panel = Panel("", [Series("", [low, low + span], [0, 0])], whole_x=True)
    ticks = x_ticks(panel)
    assert 1 <= len(ticks) <= 11
    assert all(low <= tick <= low + span for tick in ticks)
    assert all(text == str(int(tick)) for tick, text in ticks.items())
    assert not x_ticks(Panel("", panel.series))


def test_files_show_every_panel_and_are_the_same_each_time(tmp_path: Path) -> None:
    found = all_of(gallery(tmp_path))
    figure = found["order-disparity"]
    one = static.draw(figure)
    assert one == static.draw(figure)
    assert one["png"].startswith(b"\x89PNG")
    svg = one["svg"].decode()
    assert all(panel.title in svg for panel in figure.panels)
    assert all(series.name in svg for series in figure.legend())


def test_a_long_title_of_a_panel_is_broken_not_cut_off() -> None:
    line = Series("a", [0, 1], [0, 1], 0, "line")
    title = "a row with a long name, order A: a task with a long name too, at step 10"
    figure = Figure("f", "", "", [Panel(title, [line]), Panel("short", [line])])
    svg = static.draw(figure)["svg"].decode()
    assert title not in svg
    assert all(word in svg for word in title.split())
