"""An APD state as records of a file, and back: each task and each group is one record.

Nothing is read but what is asked for. What comes out of a file is compared with the network it is
meant for before it is used, since a file may be damaged or made to harm.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from sigmatau.core.container import Container, RawRecord, Record
from sigmatau.core.layout import Layout
from sigmatau.core.sparse import Sparse
from sigmatau.core.state import APDState, Group, Lazy, TaskPart
from sigmatau.errors import FileError

SHARED, TASK, GROUP, IMPORTANCE = "shared", "task/", "group/", "beside/importance"


class FromFile(Lazy[Any]):
    """A part that is still in the file it came from, and can be saved again without reading it."""

    def __init__(self, source: Container, name: str, parse: Callable[[Record], Any]) -> None:
        super().__init__(fetch=lambda: parse(source.read(name)))
        self._source, self._name = source, name

    def raw(self) -> RawRecord:
        return self._source.raw(self._name)


class Tasks(Mapping[str, FromFile]):
    """The tasks of a file, each made when asked for: a thousand objects take longer than a read."""

    def __init__(
        self, source: Container, names: Sequence[str], parse: Callable[[Record], TaskPart]
    ) -> None:
        self._source, self._parse = source, parse
        self._made: dict[str, FromFile | None] = dict.fromkeys(names)

    def __getitem__(self, name: str) -> FromFile:
        part = self._made[name]
        if part is None:
            part = self._made[name] = FromFile(self._source, TASK + name, self._parse)
        return part

    def __iter__(self) -> Iterator[str]:
        return iter(self._made)

    def __len__(self) -> int:
        return len(self._made)


def to_records(state: APDState) -> tuple[dict[str, Record | RawRecord], dict[str, Any]]:
    """Return the records of a state, and what else must be known."""
    out: dict[str, Record | RawRecord] = {}
    if state.tasks:
        out[SHARED] = _record(state.shared, dict)
    for name, task in state.tasks.items():
        out[TASK + name] = _record(task, _from_task)
    for g, group in state.groups.items():
        out[f"{GROUP}{g}"] = _record(group, dict)
    if state.importance is not None:
        out[IMPORTANCE] = _record(state.importance, dict)
    about: dict[str, Any] = {"groups": sorted(state.groups), "group_count": state.group_count}
    return out, about | {"importance": state.importance is not None}


def from_records(
    source: Container,
    meta: Mapping[str, Any],
    layout: Layout,
    tasks: Sequence[str],
    fresh: APDState,
) -> APDState:
    """Return the state in a file, reading nothing yet."""
    path = source.path
    groups, count = meta.get("groups"), meta.get("group_count")
    if not isinstance(count, int) or not isinstance(groups, list):
        raise FileError(f"{path} does not say which groups it holds: restore it from a copy")
    if not tasks:
        return fresh
    weights = {w.name: w.shape for w in layout.weights}

    def shared(record: Record) -> dict[str, Tensor]:
        _expect(path, SHARED, record, weights, layout)
        return {name: item for name, item in record.items() if isinstance(item, Tensor)}

    def group(record: Record) -> Group:
        present = {n: weights[n] for n in record if n in weights}
        _expect(path, "a group", record, present, layout, sparse=True)
        return {name: part for name, part in record.items() if isinstance(part, Sparse)}

    def task(record: Record) -> TaskPart:
        return _to_task(path, record, layout)

    return APDState(
        FromFile(source, SHARED, shared),
        Tasks(source, tasks, task),
        {g: FromFile(source, f"{GROUP}{g}", group) for g in groups},
        count,
        FromFile(source, IMPORTANCE, shared) if meta.get("importance") else None,
        fresh.linked,
    )


def _record(part: Lazy[Any], build: Callable[[Any], Record]) -> Record | RawRecord:
    if isinstance(part, FromFile) and not part.loaded:
        return part.raw()
    return build(part())


def _from_task(task: TaskPart) -> Record:
    record: Record = {}
    parts: dict[str, Mapping[str, Tensor | Sparse]] = {
        "delta": task.deltas,
        "mask": task.masks,
        "own": task.own,
        "head": task.head,
        "buffer": task.buffers,
    }
    for kind, tensors in parts.items():
        record |= {f"{kind}/{name}": tensor for name, tensor in tensors.items()}
    if task.groups:
        # By weight in the order of the deltas, -1 for none; 16 bits are enough for group numbers.
        numbers = [task.groups.get(name, -1) for name in task.deltas]
        record["groups"] = torch.tensor(numbers, dtype=torch.int16)
    return record


def _to_task(path: str, record: Record, layout: Layout) -> TaskPart:
    parts: dict[str, dict[str, Any]] = {k: {} for k in ("delta", "mask", "own", "head", "buffer")}
    for name, item in record.items():
        kind, _, rest = name.partition("/")
        if name != "groups" and kind not in parts:
            raise FileError(f"{path} holds {name!r}, which this version does not know: upgrade")
        if name != "groups":
            parts[kind][rest] = item
    shapes = layout.shapes
    weights = {w.name: w for w in layout.weights}
    deltas = {n: w.shape for n, w in weights.items()}
    _expect(path, "a delta", parts["delta"], deltas, layout, sparse=True)
    masked = {n: (weights[n].channels,) for n in parts["mask"] if n in weights}
    _expect(path, "a mask", parts["mask"], masked, layout)
    _expect(path, "own parameters", parts["own"], {n: shapes[n] for n in layout.own}, layout)
    buffers = {n: layout.buffers[n] for n in parts["buffer"] if n in layout.buffers}
    _expect(path, "buffers", parts["buffer"], buffers, layout)
    outputs = next((t.shape[0] for t in parts["head"].values() if t.shape), 0)
    heads = {n: (outputs, *shapes[n][1:]) for n in layout.head_parameters}
    _expect(path, "a head", parts["head"], heads, layout)
    numbers = record.get("groups")
    chosen: dict[str, int] = {}
    if isinstance(numbers, Tensor) and numbers.shape == (len(weights),):
        chosen = {n: int(g) for n, g in zip(weights, numbers.tolist(), strict=True) if g >= 0}
    elif numbers is not None:
        raise FileError(f"{path} numbers its groups in a way that does not fit the network")
    return TaskPart(
        {name: parts["delta"][name] for name in weights},
        parts["mask"],
        parts["own"],
        parts["head"],
        parts["buffer"],
        chosen,
    )


def _expect(
    path: str,
    what: str,
    found: Mapping[str, Any],
    wanted: Mapping[str, tuple[int, ...]],
    layout: Layout,
    sparse: bool = False,
) -> None:
    """Refuse parts that are not of the network: other names, shapes or types."""
    if found.keys() != wanted.keys():
        odd = sorted(found.keys() ^ wanted.keys())[0]
        raise FileError(f"{path}: {what} does not fit the network at {odd!r}")
    for name, item in found.items():
        if isinstance(item, Sparse) != sparse or tuple(item.shape) != wanted[name]:
            raise FileError(f"{path}: {what} has another shape than the network at {name!r}")
        if (item.values if sparse else item).dtype != layout.dtypes[name]:
            raise FileError(f"{path}: {what} has another type than the network at {name!r}")
