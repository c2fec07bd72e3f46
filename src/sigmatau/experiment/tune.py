"""Settings chosen on validation data: the best score that fits into a capacity.

Every trial is a cell whose scores are taken on validation data. Trials that go over the capacity
score below all others, the worse the further they go; those that fall behind are cut short. The
study is an SQLite file beside the cells, so a search that was stopped goes on.
"""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import yaml
from joblib import Parallel, delayed, parallel_config

from sigmatau.errors import ConfigError, FileError, MissingExtra, SigmatauError
from sigmatau.experiment.cell import Stopped, run_cell
from sigmatau.experiment.config import Cell, parse
from sigmatau.experiment.files import locked, make_folder, write_json
from sigmatau.experiment.grid import cell_folder, check
from sigmatau.files import put

try:
    import optuna
    from optuna.trial import Trial, TrialState
except ImportError as error:
    raise MissingExtra("optuna", "tune") from error

STARTUP = 5  # trials before any is cut short


@dataclass(frozen=True)
class Choice:
    """The values a setting may take: from `low` to `high`, or one of `values`."""

    low: float = 0
    high: float = 0
    values: tuple[Any, ...] = ()

    @classmethod
    def parse(cls, text: str) -> tuple[str, Choice]:
        """Read `l1=1e-5..1e-2` or `groups=[1, 2, 4]`."""
        key, _, range_ = text.partition("=")
        low, dots, high = range_.partition("..")
        given = [parse(t, text) for t in (low, high)] if dots else parse(range_, text)
        if dots and all(isinstance(v, (int, float)) for v in given) and given[0] < given[1]:
            return key, cls(*given)
        if not dots and isinstance(given, list) and given:
            return key, cls(values=tuple(given))
        raise ConfigError(f"--search takes key=low..high or key=[a, b], got {text!r}")

    def suggest(self, trial: Trial, key: str) -> Any:
        if self.values:
            return trial.suggest_categorical(key, self.values)
        wide = self.low > 0 and self.high / self.low >= 10
        if isinstance(self.low, int) and isinstance(self.high, int):
            return trial.suggest_int(key, self.low, self.high, log=wide)
        # Three digits: no result hangs on more, and a recipe can be read.
        return float(f"{trial.suggest_float(key, self.low, self.high, log=wide):.3g}")


@dataclass(frozen=True)
class Search:
    """What is searched: settings of a cell, for the best score within a capacity."""

    cell: Cell
    choices: Mapping[str, Choice]
    out: str
    capacity: float | None = None
    root: str | None = None

    def candidate(self, values: Mapping[str, Any]) -> Cell:
        given = self.cell.model_dump(exclude={"name", "label"})
        settings = {**self.cell.settings, **values}
        return Cell.of({**given, "settings": settings, "part": "val"})

    def objective(self, trial: Trial) -> float:
        """Run one trial; larger is better, and whatever does not fit is below zero."""
        cell = self.candidate({k: c.suggest(trial, k) for k, c in self.choices.items()})
        over: list[float] = []

        def told(learnt: int, score: float, capacity: float) -> None:
            trial.set_user_attr("score", score)
            trial.set_user_attr("capacity", capacity)
            trial.set_user_attr("tasks", learnt)
            if self.capacity is not None and capacity > self.capacity:
                over.append(capacity / learnt)
                raise Stopped
            trial.report(score, learnt)
            if trial.should_prune():
                raise Stopped

        trial.set_user_attr("cell", cell.id)
        try:
            result = run_cell(cell, cell_folder(self.out, cell), root=self.root, told=told)
        except Stopped:
            if over:
                return -over[0]
            raise optuna.TrialPruned from None
        if result is None:
            raise optuna.TrialPruned  # another trial is at the same values
        trial.set_user_attr("score", result["average_accuracy"])
        trial.set_user_attr("capacity", result["capacity"]["paper"])
        if self.capacity is not None and result["capacity"]["paper"] > self.capacity:
            return -float(result["capacity"]["paper"])
        return float(result["average_accuracy"])

    def combinations(self) -> list[dict[str, Any]]:
        """Return all there is to try, if that can be counted: lists are tried through."""
        if not all(choice.values for choice in self.choices.values()):
            return []
        lists = (choice.values for choice in self.choices.values())
        return [dict(zip(self.choices, values, strict=True)) for values in product(*lists)]

    def told(self) -> dict[str, Any]:
        """Return what is searched, for the log."""
        return {
            "cell": self.candidate({}).same_work(),
            "choices": {k: list(c.values) or [c.low, c.high] for k, c in self.choices.items()},
            "capacity": self.capacity,
        }

    def study(self, seed: int | None = None) -> optuna.Study:
        """Open the study; with the seed of what is drawn, to run trials."""
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        return optuna.create_study(
            storage=f"sqlite:///{Path(self.out) / 'study.db'}",
            study_name="tune",
            load_if_exists=True,
            direction="maximize",
            sampler=optuna.samplers.TPESampler(seed=seed),
            pruner=optuna.pruners.MedianPruner(STARTUP, n_warmup_steps=1),
        )


def tune(search: Search, trials: int, workers: int = 1) -> dict[str, Any]:
    """Search until there are `trials` trials, and return the best settings and what they reach."""
    out = make_folder(Path(search.out))
    check([search.candidate(_example(search.choices))], search.root)
    with locked(out / "lock") as mine:
        if not mine:
            raise FileError(
                f"another search is at work in {out}: wait for it, or give another --out"
            )
        study = search.study()
        _same_search(study, search)
        begun = study.get_trials(states=[TrialState.RUNNING])
        for trial in begun:
            study.tell(trial.number, state=TrialState.FAIL)  # whoever ran it is gone
        states = [TrialState.COMPLETE, TrialState.PRUNED]
        tried = [trial.params for trial in study.get_trials(states=states)]
        left = max(0, trials - len(tried))
        # What is known to be wanted is dealt out here: workers that look for it by themselves may
        # find the same. A trial that was cut off is wanted again; its cell goes on where it was.
        listed = search.combinations()
        wanted = [v for v in listed or [t.params for t in begun] if v not in tried][:left]
        drawn = 0 if listed else left - len(wanted)
        with parallel_config("loky", n_jobs=workers, inner_max_num_threads=search.cell.threads):
            seed = search.cell.seed + 1000 * len(tried)
            shares = [drawn // workers + (i < drawn % workers) for i in range(workers)]
            Parallel()(
                delayed(_work)(search, wanted[i::workers], share, seed + i)
                for i, share in enumerate(shares)
            )
        return _conclude(study, search, out)


def _work(search: Search, wanted: Sequence[dict[str, Any]], drawn: int, seed: int) -> None:
    """Try what is wanted, and so many trials that are drawn."""
    logging.getLogger("optuna").setLevel(logging.WARNING)
    study = search.study(seed)
    draws = study.sampler
    for values in wanted:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            study.sampler = optuna.samplers.PartialFixedSampler(values, draws)
        study.optimize(search.objective, n_trials=1, catch=(SigmatauError,))
    study.sampler = draws
    if drawn:
        study.optimize(search.objective, n_trials=drawn, catch=(SigmatauError,))


def _same_search(study: optuna.Study, search: Search) -> None:
    wanted = {
        "cell": search.candidate({}).same_work(),
        "choices": {k: repr(c) for k, c in search.choices.items()},
        "capacity": search.capacity,
    }
    there = study.user_attrs.get("search")
    if there is None:
        study.set_user_attr("search", wanted)
        return
    there = {**there, "cell": Cell.of(there["cell"]).same_work()}  # with what has come up since
    if there != yaml.safe_load(yaml.safe_dump(wanted)):
        raise ConfigError(f"{search.out} holds the search for something else: give another --out")


def _conclude(study: optuna.Study, search: Search, out: Path) -> dict[str, Any]:
    """Write the log and the best settings down."""
    log: list[dict[str, Any]] = [
        {
            "number": trial.number,
            "state": trial.state.name.lower(),
            "value": trial.value,
            "settings": trial.params,
            **{k: trial.user_attrs.get(k) for k in ("score", "capacity", "tasks", "cell")},
        }
        for trial in study.get_trials(deepcopy=False)
    ]
    write_json(out / "trials.json", {"search": search.told(), "trials": log})
    fitting = [t for t in log if t["state"] == "complete" and (t["value"] or 0) >= 0]
    if not fitting:
        raise SigmatauError(
            f"none of {len(log)} trials fits into a capacity of {search.capacity}: search wider, "
            f"or allow more ({out / 'trials.json'} lists them)"
        )
    best = max(fitting, key=lambda t: float(t["value"]))
    settings = {k: _short(v) for k, v in best["settings"].items()}
    found = {
        "method": search.cell.method,
        "settings": {**search.cell.settings, **settings},
        "validation": {k: best[k] for k in ("score", "capacity")},
        "trials": len(log),
    }
    put(out / "best.yaml", yaml.safe_dump(found, sort_keys=False))
    return found


def _short(value: Any) -> Any:
    return float(f"{value:.3g}") if isinstance(value, float) and math.isfinite(value) else value


def _example(choices: Mapping[str, Choice]) -> dict[str, Any]:
    """Return one value for each setting, to see that they exist."""
    return {k: c.values[0] if c.values else c.low for k, c in choices.items()}


def choices_of(texts: Sequence[str]) -> dict[str, Choice]:
    """Read all that is to be searched."""
    if not texts:
        raise ConfigError("nothing to search: give --search l1=1e-5..1e-2")
    return dict(Choice.parse(text) for text in texts)
