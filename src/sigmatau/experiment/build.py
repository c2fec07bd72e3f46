"""From a cell's words to its objects: the stream's tasks, the network and the method."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sigmatau import backbones, streams
from sigmatau.errors import ConfigError
from sigmatau.experiment.config import Cell, network, settings_of
from sigmatau.methods import Method, registry
from sigmatau.scoring import Metric, accuracy_of
from sigmatau.streams.base import Pair, Stream, Task
from sigmatau.streams.split import permutation


@lru_cache(maxsize=2)  # cells of one grid follow each other on the same data
def _stream(name: str, root: Path | None, seed: int, options: str) -> Stream:
    return streams.get(name, root=root, seed=seed, **json.loads(options))


@lru_cache(maxsize=4)
def _classes(name: str, root: Path | None, seed: int, options: str) -> int:
    return len(_stream(name, root, seed, options)[0].classes)


def auroc_of(outputs: Tensor, labels: Tensor) -> float:
    """Return the area under the ROC curve of the second class against the first."""
    from sklearn.metrics import roc_auc_score

    scores = (outputs[:, 1] - outputs[:, 0]).cpu().numpy()
    return float(roc_auc_score(labels.cpu().numpy(), scores))


class Plan:
    """A cell's stream in its order, the network it starts from, and the method to be taught."""

    def __init__(self, cell: Cell, root: Path | None = None) -> None:
        if cell.accelerator == "cuda" and not torch.cuda.is_available():
            raise ConfigError(
                "PyTorch finds no GPU here: install a build of it for CUDA and see that "
                "`nvidia-smi` lists one, or leave out accelerator"
            )
        key = (cell.stream, root, cell.seed, json.dumps(cell.options, sort_keys=True))
        self.cell = cell
        self.stream = _stream(*key)
        self.indices = self.stream.order(cell.order)[: cell.tasks]
        self.names = [self.stream.task_names[i] for i in self.indices]
        self.metric: Metric = {"accuracy": accuracy_of, "auroc": auroc_of}[self.stream.metric]
        self.drops = self._drops()
        self.ends = {"input_shape": list(self.stream.input_shape), "outputs": _classes(*key)}
        self.network = {**self.ends, **network(cell.stream, cell.backbone)}

    def task(self, place: int) -> Task:
        """Build the task at a place of the order, with no more rows than the cell allows."""
        index = self.indices[place]
        task = self.stream[index]
        if self.cell.part == "val":
            task = self._without_test(task, index)
        parts = {name: self._limited(pair, name, index) for name, pair in task.parts().items()}
        return Task(task.name, parts["train"], parts.get("val"), parts["test"], task.classes)

    def backbone(self) -> nn.Module:
        """Build the network; cells of the same seed start from the same one."""
        return self._built(self.network).to(self.cell.accelerator)

    def base(self) -> nn.Module | None:
        """Build the network that capacity is a share of, if it is not the cell's own."""
        if self.cell.base is None:
            return None
        return self._built({**self.ends, **network(self.cell.stream, self.cell.base)})

    def _built(self, options: dict[str, Any]) -> nn.Module:
        options = dict(options)
        name, shape = str(options.pop("name")), tuple(options.pop("input_shape"))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.cell.seed)
            try:
                return backbones.create(name, shape, **options)
            except (TypeError, ValueError) as error:
                raise ConfigError(f"backbone {name!r} with {options}: {error}") from None

    def method(self) -> Method[Any]:
        """Build the method, with nothing learnt yet."""
        arguments = settings_of(self.cell)
        return registry.entry(self.cell.method).cls(self.backbone(), **arguments)

    def resolved(self, method: Method[Any]) -> dict[str, Any]:
        """Return every setting there is, defaults included."""
        return {
            **self.cell.same_work(),
            "order_indices": list(self.indices),
            "backbone": self.network,
            "head": method.layout.head,
            "keep": list(method.keep),
            "settings": method.settings.model_dump(mode="json"),
        }

    def _without_test(self, task: Task, index: int) -> Task:
        """Put validation data in the place of test data; without any, a tenth of the training's."""
        if task.val is not None:
            return Task(task.name, task.train, task.val, task.val, task.classes)
        x, y = task.train
        order = torch.from_numpy(permutation(len(x), self.cell.seed, "held out", index))
        held, rest = order[: len(x) // 10].sort().values, order[len(x) // 10 :].sort().values
        return Task(task.name, (x[rest], y[rest]), None, (x[held], y[held]), task.classes)

    def _limited(self, pair: Pair, part: str, index: int) -> Pair:
        most = self.cell.rows.get(part)  # type: ignore[call-overload]
        x, y = pair
        if most is None or len(x) <= most:
            return pair
        chosen = permutation(len(x), self.cell.seed, "rows", part, index)[:most]
        rows = torch.from_numpy(chosen).sort().values
        return x[rows], y[rows]

    def _drops(self) -> dict[int, list[str]]:
        drops: dict[int, list[str]] = {}
        for learnt, places in self.cell.drops.items():
            if not all(1 <= place <= learnt <= len(self.names) for place in places):
                raise ConfigError(
                    f"drops after {learnt} tasks: places go from 1 to {learnt}, and there are "
                    f"{len(self.names)} tasks"
                )
            drops[learnt] = [self.names[place - 1] for place in places]
        if drops and not registry.entry(self.cell.method).cls.can_forget:
            raise ConfigError(f"{self.cell.method} cannot forget a task: leave out drops")
        return drops
