from __future__ import annotations

import json
import multiprocessing
import os
import signal
import time
from pathlib import Path

import pytest
import yaml

from sigmatau.errors import ConfigError, FileError, SigmatauError
from sigmatau.experiment.files import locked
from sigmatau.experiment.tune import Choice, Search, choices_of, tune
from tests.experiment.conftest import tiny


def search(out: Path, capacity: float | None = 2.0, **fields: object) -> Search:
    cell = tiny("apd1", settings={"epochs": 3, "lr": 0.01}, **fields)
    return Search(cell, choices_of(["l1=1e-5..1e-1"]), str(out), capacity)


def log(out: Path) -> list[dict[str, object]]:
    found: list[dict[str, object]] = json.loads((out / "trials.json").read_text())["trials"]
    return found


def test_what_is_found_fits_and_is_the_best_that_does(tmp_path: Path) -> None:
    found = tune(search(tmp_path), 12)
    trials = log(tmp_path)
    assert len(trials) == 12
    fitting = [t for t in trials if t["state"] == "complete" and t["capacity"] <= 2.0]
    assert len(fitting) < 12, "the capacity must rule some out, else nothing is tested"
    assert found["validation"]["capacity"] <= 2.0
    assert found["validation"]["score"] == max(t["score"] for t in fitting)
    assert yaml.safe_load((tmp_path / "best.yaml").read_text()) == found
    assert tune(search(tmp_path), 12) == found  # nothing is left to do
    assert not list(tmp_path.glob("cells/*/*.st"))  # of trials that were cut short neither


def test_a_list_is_tried_through_each_value_once(tmp_path: Path) -> None:
    values = [1e-4, 1e-3, 1e-2]
    cell = tiny("apd1", settings={"epochs": 1})
    listed = Search(cell, choices_of([f"l1={values}"]), str(tmp_path))
    tune(listed, 10)
    assert sorted(t["settings"]["l1"] for t in log(tmp_path)) == values
    told = json.loads((tmp_path / "trials.json").read_text())["search"]
    assert told["choices"] == {"l1": values}
    assert told["cell"]["part"] == "val"


@pytest.mark.parametrize("trials", [2, 10])
def test_two_workers_never_try_the_same_of_a_list(tmp_path: Path, trials: int) -> None:
    cell = tiny("apd1", settings={"epochs": 1})
    listed = Search(cell, choices_of(["l1=[1e-4, 1e-3]", "l2=[1, 10]"]), str(tmp_path))
    tune(listed, trials, workers=2)
    tried = [tuple(t["settings"].values()) for t in log(tmp_path)]
    assert len(tried) == len(set(tried)) == min(trials, 4)
    assert all(t["state"] == "complete" for t in log(tmp_path))


@pytest.mark.parametrize("before", [0, 2])
def test_a_list_goes_on_after_a_trial_that_was_killed(tmp_path: Path, before: int) -> None:
    cell = tiny("apd1", settings={"epochs": 1})
    listed = Search(cell, choices_of(["l1=[1e-4, 1e-3, 1e-2]"]), str(tmp_path))
    if before:
        tune(listed, before)
    killed = listed.study(seed=0).ask()
    value = listed.choices["l1"].suggest(killed, "l1")
    tune(listed, 10)
    trials = log(tmp_path)
    assert [t["settings"]["l1"] for t in trials if t["state"] == "fail"] == [value]
    done = sorted(t["settings"]["l1"] for t in trials if t["state"] == "complete")
    assert done == [1e-4, 1e-3, 1e-2]


def test_scores_are_of_validation_data(tmp_path: Path) -> None:
    tune(search(tmp_path, None), 1)
    (path,) = tmp_path.glob("cells/*/config.json")
    assert json.loads(path.read_text())["cell"]["part"] == "val"


def test_a_search_from_before_a_field_came_up_is_the_same(tmp_path: Path) -> None:
    tune(search(tmp_path, None), 1)
    study = search(tmp_path, None).study()
    told = study.user_attrs["search"]
    del told["cell"]["devices"], told["cell"]["precision"]
    study.set_user_attr("search", told)
    tune(search(tmp_path, None), 1)
    with pytest.raises(ConfigError, match="the search for something else"):
        tune(search(tmp_path, None, precision="bf16-mixed"), 1)


def test_two_workers_share_the_trials(tmp_path: Path) -> None:
    tune(search(tmp_path), 7, workers=2)
    assert len(log(tmp_path)) == 7


def test_a_killed_search_goes_on(tmp_path: Path) -> None:
    process = multiprocessing.get_context("fork").Process(
        target=tune, args=(search(tmp_path), 1000)
    )
    process.start()
    while len(list(tmp_path.glob("cells/*/result.json"))) < 2:
        time.sleep(0.01)
        assert process.is_alive()
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    finished = set(tmp_path.glob("cells/*/result.json"))
    tune(search(tmp_path), 6)
    trials = log(tmp_path)
    assert finished <= set(tmp_path.glob("cells/*/result.json"))
    assert not [t for t in trials if t["state"] == "running"]
    assert len([t for t in trials if t["state"] in ("complete", "pruned")]) >= 6


def test_another_search_in_the_folder_is_refused(tmp_path: Path) -> None:
    tune(search(tmp_path, capacity=9.0), 1)
    with pytest.raises(ConfigError, match="something else"):
        tune(search(tmp_path, capacity=3.0), 1)
    with locked(tmp_path / "lock"), pytest.raises(FileError, match="another search"):
        tune(search(tmp_path, capacity=9.0), 2)


def test_nothing_fits(tmp_path: Path) -> None:
    with pytest.raises(SigmatauError, match="none of 2 trials fits"):
        tune(search(tmp_path, capacity=0.5), 2)


def test_choices() -> None:
    assert Choice.parse("l1=1e-5..1e-2") == ("l1", Choice(1e-5, 1e-2))
    assert Choice.parse("groups=[1, 2]") == ("groups", Choice(values=(1, 2)))
    for bad in ("l1", "l1=3", "l1=3..1", "l1=a..b", "l1=[]"):
        with pytest.raises(ConfigError, match="--search takes"):
            Choice.parse(bad)
    with pytest.raises(ConfigError, match="did you mean 'l1'"):
        tune(Search(tiny(), choices_of(["l11=1..2"]), "unused"), 1)
