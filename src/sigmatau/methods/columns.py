"""Columns: units that a task adds to every layer, reading its own and older units, then frozen.

Unit j of layer l in column t reads layer l-1 of column t and of the columns it is linked to, so a
column's weight is `[U_(t:i) for linked i, W_t]`: the lateral connections U and its own W side by
side, convolutions beside convolutions. No older unit ever reads a newer one, hence earlier tasks
stay as they are, to the bit. Progressive networks and RCL differ only in how wide a column is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, cast

import torch
from torch import Tensor, nn

from sigmatau.core.container import Container, RawRecord, Record
from sigmatau.data import Batches
from sigmatau.errors import BackboneError, FileError, TaskError
from sigmatau.methods.base import Method
from sigmatau.methods.chain import Chain, Part, part, read_chain
from sigmatau.methods.known import Known
from sigmatau.methods.shared import dense
from sigmatau.training import Trainee

_NEW = ""  # no task has this name


@dataclass(frozen=True)
class Column:
    """A learnt column: units a layer, the tasks whose columns it reads, and its numbers."""

    widths: tuple[int, ...]
    links: tuple[str, ...]
    tensors: Mapping[str, Tensor]


@dataclass(frozen=True)
class ColumnState:
    """The columns by task, in the order they came."""

    columns: Mapping[str, Column] = field(default_factory=dict)


class ColumnNet(nn.Module):
    """The layers of one column, each over the units of all the columns that it reads."""

    def __init__(
        self,
        chain: Chain,
        widths: Sequence[int],
        linked: Sequence[Sequence[int]],
        outputs: int,
        generator: torch.Generator | None,
    ) -> None:
        super().__init__()
        self.widths = tuple(widths)
        self.layers, self.tails = nn.ModuleList(), nn.ModuleList()
        for i, (stage, units) in enumerate(zip(chain.stages, (*widths, outputs), strict=True)):
            below = sum(w[i - 1] for w in (*linked, widths)) if i else stage.layer.weight.shape[1]
            # A layer without units has no numbers, and is passed over.
            self.layers.append(stage.drawn(units, below, generator) if units else nn.Identity())
            self.tails.append(stage.follow(units) if units else nn.Identity())

    @torch.no_grad()
    def take(self, chain: Chain) -> None:
        """Start from the backbone's own numbers in all layers but the head."""
        for i, stage in enumerate(chain.stages[:-1]):
            self.layers[i].load_state_dict(stage.layer.state_dict())
            for mine, (_, theirs) in zip(self._tail(i), stage.tail, strict=True):
                mine.load_state_dict(theirs.state_dict())

    @torch.no_grad()
    def quieten(self, chain: Chain) -> None:
        """Start with lateral connections of zero, and with its own drawn as if it were alone."""
        for width, stage, layer in zip(self.widths, chain.stages[1:], self.layers[1:], strict=True):
            weight = cast(Tensor, layer.weight)
            lateral = weight.shape[1] - width * stage.fan
            weight[:, lateral:] *= (weight.shape[1] / (width * stage.fan)) ** 0.5
            weight[:, :lateral] = 0

    def forward(self, layer: int, feeds: Sequence[Tensor]) -> Tensor | None:
        if isinstance(self.layers[layer], nn.Identity):
            return None
        out: Tensor = self.tails[layer](self.layers[layer](torch.cat(tuple(feeds), 1)))
        return out

    def part(self, chain: Chain, layer: int) -> Part | None:
        """Return the numbers of one of its layers."""
        if isinstance(self.layers[layer], nn.Identity):
            return None
        return part(chain.stages[layer], self.layers[layer], list(self._tail(layer)))

    def _tail(self, layer: int) -> nn.Sequential:
        return cast(nn.Sequential, self.tails[layer])


class Columns(nn.Module):
    """A task's column upon the older ones that it reads, directly or through others."""

    def __init__(
        self, chain: Chain, nets: Sequence[ColumnNet], links: Sequence[Sequence[int]]
    ) -> None:
        super().__init__()
        self.chain, self.links = chain, [tuple(link) for link in links]
        self.start, self.nets = chain.start(), nn.ModuleList(nets)
        self.known = Known()
        for net in list(nets)[:-1]:
            net.requires_grad_(False)

    @property
    def newest(self) -> ColumnNet:
        return cast(ColumnNet, self.nets[-1])

    def train(self, mode: bool = True) -> Columns:
        super().train(False)  # frozen columns do not even update their normalisation
        self.newest.train(mode)
        self.training = mode
        return self

    def forward(self, x: Tensor) -> Tensor:
        x, *beside = self.known(x, self.frozen)
        h = self.newest(0, [self.start(x)])
        for layer in range(1, len(self.chain.stages)):
            own = [] if h is None else [h]
            h = self.newest(layer, [*beside[layer - 1 : layer], *own])
        return cast(Tensor, h)

    def frozen(self, x: Tensor) -> list[Tensor]:
        """Return what the newest column reads of the others, by layer from the second on."""
        others = list(self.nets)[:-1]
        if not others:
            return []
        x = self.start(x)
        below: list[Tensor | None] = []
        read = []
        for layer in range(len(self.chain.stages) - 1):
            feeds = [self._feeds(x, below, layer, i) for i in range(len(others))]
            below = [net(layer, feed) for net, feed in zip(others, feeds, strict=True)]
            linked = [h for i in self.links[-1] if (h := below[i]) is not None]
            read.append(torch.cat(linked, 1))
        return read

    def _feeds(self, x: Tensor, below: list[Tensor | None], layer: int, i: int) -> list[Tensor]:
        if layer == 0:
            return [x]
        return [h for j in (*self.links[i], i) if (h := below[j]) is not None]

    @torch.no_grad()
    def plain(self) -> nn.Sequential:
        """Return the same function as one chain, with zeros where no connection is."""
        parts = []
        spans: list[range] = []
        for layer in range(len(self.chain.stages)):
            head = layer == len(self.chain.stages) - 1
            nets = [(len(self.nets) - 1, self.newest)] if head else list(enumerate(self.nets))
            found = [(i, cast(ColumnNet, net).part(self.chain, layer)) for i, net in nets]
            held = [(i, p) for i, p in found if p is not None]
            total = spans[-1].stop if layer else held[0][1].weight.shape[1]
            rows = []
            for i, p in held:
                row = p.weight.new_zeros(p.units, total, p.weight.shape[2])
                read = [spans[j] for j in (*self.links[i], i)] if layer else [range(total)]
                row[:, [unit for span in read for unit in span]] = p.weight
                rows.append(row)
            spans = []
            for _, p_ in found:
                start = spans[-1].stop if spans else 0
                spans.append(range(start, start + (p_.units if p_ is not None else 0)))
            parts.append(_joined(rows, [p for _, p in held]))
        return self.chain.assemble(parts).train(self.training)


def _joined(rows: Sequence[Tensor], parts: Sequence[Part]) -> Part:
    bias = [p.bias for p in parts if p.bias is not None]
    norms = [
        {n: torch.cat([h[n] for h in held]) if t.ndim else t for n, t in held[0].items()}
        for held in zip(*(p.norms for p in parts), strict=True)
    ]
    return Part(torch.cat(list(rows)), torch.cat(bias) if bias else None, tuple(norms))


class ColumnTrainee(Trainee):
    """Columns in training, of which only the newest changes. `links` are the tasks it reads."""

    module: Columns
    links: tuple[str, ...] = ()

    def fed(self, data: Batches, scoring: bool = False) -> Batches:
        return self.module.known.fed(data, self.module.frozen)

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        yield from self.module.newest.state_dict(keep_vars=True).items()


class ColumnMethod(Method[ColumnState]):
    """A column of units per task; a method says how wide it is and what it reads."""

    @cached_property
    def chain(self) -> Chain:
        return read_chain(self._backbone, self.layout.head, self.name)

    def _fresh(self) -> ColumnState:
        if self.chain and self.layout.head is None:
            raise BackboneError(f"{self.name} gives every task its own head: do not pass head=None")
        return ColumnState()

    def _grown(
        self,
        state: ColumnState,
        widths: Sequence[int],
        links: Sequence[str],
        outputs: int,
        generator: torch.Generator,
    ) -> Columns:
        """Return a new column, drawn, upon the frozen ones that it reads."""
        linked = [state.columns[name].widths for name in links]
        net = ColumnNet(self.chain, widths, linked, outputs, generator)
        if not state.columns and net.widths == self.chain.widths:
            net.take(self.chain)
        column = Column(net.widths, tuple(links), net.state_dict())
        return self._stacked({**state.columns, _NEW: column}, _NEW).train()

    def _stacked(self, columns: Mapping[str, Column], name: str) -> Columns:
        """Return a column upon those that it reads, directly or through others."""
        needed = _closure(columns, [name])
        place = {name: i for i, name in enumerate(needed)}
        nets = [self._net(columns, columns[name]) for name in needed]
        links = [[place[n] for n in columns[name].links] for name in needed]
        return Columns(self.chain, nets, links)

    def _net(self, columns: Mapping[str, Column], column: Column) -> ColumnNet:
        linked = [columns[name].widths for name in column.links]
        outputs = column.tensors[f"layers.{len(column.widths)}.weight"].shape[0]
        net = ColumnNet(self.chain, column.widths, linked, outputs, None)
        net.load_state_dict(column.tensors)
        return net

    def _keep(
        self, state: ColumnState, task: str, trainee: Trainee, train: Batches
    ) -> tuple[ColumnState, float]:
        assert isinstance(trainee, ColumnTrainee)
        net = trainee.module.newest
        numbers = {n: t.detach().clone() for n, t in net.state_dict().items()}
        head = f"layers.{len(net.widths)}."
        added = sum(t.numel() for n, t in numbers.items() if not n.startswith(head))
        growth = added / self.layout.size if state.columns else 0.0
        column = Column(net.widths, trainee.links, numbers)
        return ColumnState({**state.columns, task: column}), growth

    def _compose(self, state: ColumnState, task: str, module: nn.Module) -> nn.Module:
        return self._stacked(state.columns, task)

    def export(self, task: str) -> nn.Module:
        """Return one plain chain that computes what the task's columns do, free of this library."""
        with self._lock:
            return cast(Columns, self._network(task)).plain()

    def _drop(self, state: ColumnState, task: str) -> ColumnState:
        raise TaskError(
            f"{self.name} cannot forget a single task: later tasks read its units. Methods "
            "whose tasks do not build upon each other can, such as apd1"
        )

    def _records(self, state: ColumnState) -> tuple[dict[str, Record | RawRecord], dict[str, Any]]:
        records: dict[str, Record | RawRecord] = {
            f"column/{task}": dict(column.tensors) for task, column in state.columns.items()
        }
        plans = {task: [list(c.widths), list(c.links)] for task, c in state.columns.items()}
        return records, {"columns": plans}

    def _restore(
        self, source: Container, meta: Mapping[str, Any], tasks: Sequence[str]
    ) -> ColumnState:
        columns: dict[str, Column] = {}
        for task in tasks:
            try:
                widths, links = meta["columns"][task]
                tensors = dense(source, f"column/{task}")
                column = Column(tuple(map(int, widths)), tuple(map(str, links)), tensors)
                held = [
                    len(tensors[f"layers.{i}.weight"]) if w else 0 for i, w in enumerate(widths)
                ]
                if held != list(widths):  # before room is made for as many units as they say
                    raise ValueError(f"{held} units instead of {widths}")
                self._net(columns, column)
            except (KeyError, TypeError, ValueError, RuntimeError) as error:
                raise FileError(
                    f"{source.path}: the column of task {task!r} does not fit ({error}): restore "
                    "the file from a copy"
                ) from error
            columns[task] = column
        return ColumnState(columns)


def _closure(columns: Mapping[str, Column], names: Sequence[str]) -> list[str]:
    """Return the columns that these read, and they themselves, oldest first."""
    needed, open_ = set(names), list(names)
    while open_:
        new = [name for name in columns[open_.pop()].links if name not in needed]
        needed.update(new)
        open_ += new
    return [name for name in columns if name in needed]
