"""What a method has learnt so far, and how the list of its tasks is written and read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Generic, TypeVar, cast

import torch
from torch import Tensor

from sigmatau.core.container import Record
from sigmatau.training import Epoch

S = TypeVar("S")


@dataclass(frozen=True)
class TaskInfo:
    """What a method remembers of a task besides its weights."""

    outputs: int | None
    labels: bool
    growth: float


@dataclass(frozen=True)
class Report:
    """What learning a task came to. `growth` is what it added, as a fraction of the base net."""

    task: str
    epochs: tuple[Epoch, ...]
    selected: int
    score: float | None
    growth: float
    seconds: float


@dataclass(frozen=True)
class Memory(Generic[S]):
    """All that a method has learnt, replaced as a whole so that it is never half of two things."""

    state: S
    infos: Mapping[str, TaskInfo] = field(default_factory=dict)


def listed(infos: Mapping[str, TaskInfo], own: Mapping[str, Any]) -> Record:
    """Return the record that lists the tasks, beside whatever else of a method grows with them."""
    tasks = [[name, *asdict(info).values()] for name, info in infos.items()]
    text = json.dumps({"tasks": tasks, "own": own}).encode()
    return {"json": torch.frombuffer(bytearray(text), dtype=torch.uint8)}


def relisted(record: Record) -> tuple[dict[str, TaskInfo], Mapping[str, Any]]:
    """Return what `listed` was made from."""
    about = json.loads(cast(Tensor, record["json"]).numpy().tobytes())
    return {name: TaskInfo(*values) for name, *values in about["tasks"]}, about["own"]
