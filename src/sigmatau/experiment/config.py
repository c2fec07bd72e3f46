"""What to run: a cell is one stream, method, order and seed; a recipe is a grid of cells.

Both are typed and mirror each other: the keys of a recipe's file are the arguments of `Recipe`, and
what `--set` takes are the fields of `Cell`. Everything left out has a default that `resolve` shows.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import Field, field_validator, model_validator

from sigmatau.config import Settings
from sigmatau.errors import ConfigError, nearest
from sigmatau.experiment import defaults

Order = str | list[int]
Part = Literal["train", "val", "test"]


class _Loader(yaml.SafeLoader):
    """YAML in which 6e-4 is a number, as it is everywhere else."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"),
    list("-+0123456789."),
)


class Common(Settings):
    """What a cell and a recipe have in common."""

    stream: str = Field(description="name of the stream, as `sigmatau data list` has it")
    options: dict[str, Any] = Field({}, description="options of the stream, such as val")
    tasks: int | None = Field(None, ge=1, description="learn only the first so many of the order")
    rows: dict[Part, int] = Field({}, description="at most so many rows of a task's train/val/test")
    backbone: dict[str, Any] = Field({}, description="its name and options; others as by default")
    base: dict[str, Any] | None = Field(
        None, description="the backbone that capacity is a share of, if it is not the same one"
    )
    settings: dict[str, Any] = Field({}, description="settings of the method")
    evaluate: Literal["all", "last"] = Field(
        "all", description="score all tasks so far after each task, or only after the last"
    )
    part: Literal["test", "val"] = Field(
        "test", description="what scores are taken on; val, or held-out training rows, for tuning"
    )
    drops: dict[int, list[int]] = Field(
        {}, description="after so many tasks, forget those at these places (from 1) of the order"
    )
    trace: bool = Field(False, description="keep the weights of all tasks after each task")
    accelerator: Literal["cpu", "cuda"] = Field(
        "cpu", description="what networks are trained on; cuda is a GPU"
    )
    devices: int = Field(1, ge=1, description="processes that share the work of each batch")
    precision: Literal["32-true", "bf16-mixed", "auto"] = Field(
        "32-true",
        description="of the loss and its gradient (weights and steps stay in 32 bits); auto: "
        "bf16-mixed where the processor has instructions for it",
    )
    threads: int = Field(1, ge=1, description="threads of one cell; the result may depend on it")
    checkpoint_seconds: float = Field(
        5.0, ge=0, description="an epoch's end is saved if the last was so long ago"
    )

    @field_validator("backbone", "base", mode="before")
    @classmethod
    def _by_name(cls, backbone: Any) -> Any:
        return {"name": backbone} if isinstance(backbone, str) else backbone

    @field_validator("rows")
    @classmethod
    def _some(cls, rows: dict[Part, int]) -> dict[Part, int]:
        if any(n < 2 for n in rows.values()):
            raise ValueError("a part of a task needs at least 2 rows")
        return rows

    @field_validator("settings")
    @classmethod
    def _no_seed(cls, settings: dict[str, Any]) -> dict[str, Any]:
        if "seed" in settings:
            raise ValueError("the seed is not a setting of the method: give --seed, or seeds")
        return settings


class Cell(Common):
    """One training from the first task to the last."""

    method: str = Field(description="name of the method")
    order: Order = Field("A", description="a named order, random:SEED, or a list of indices")
    seed: int = Field(0, ge=0, description="of the split, the initial network and the method")
    name: str = Field("", description="names the folder, with order and seed")
    label: str = Field("", description="row of the tables")

    @model_validator(mode="before")
    @classmethod
    def _named(cls, given: dict[str, Any]) -> dict[str, Any]:
        # Named by what was asked for, so that the same wish finds the same folder.
        told = {"name": ".".join, "label": " ".join}
        parts = [str(given.get("method", "")), *_told(given.get("settings") or {})]
        return {**given, **{k: given.get(k) or join(parts) for k, join in told.items()}}

    @model_validator(mode="after")
    def _one_gpu(self) -> Cell:
        if self.accelerator == "cuda" and self.devices > 1:
            raise ValueError("a cell has one GPU: leave out devices, or accelerator")
        return self

    @property
    def id(self) -> str:
        order = self.order if isinstance(self.order, str) else ".".join(map(str, self.order))
        return re.sub(r"[^\w.=+-]+", "_", f"{self.name}-{order}-{self.seed}")[:200]

    @property
    def parallel(self) -> bool:
        """Whether it is learnt through Lightning Fabric."""
        return self.devices > 1 or self.precision != "32-true"

    @property
    def cores(self) -> int:
        """How many cores it keeps busy."""
        return max(self.devices, self.threads)

    @property
    def threads_each(self) -> int:
        """How many threads each of its processes has."""
        return max(1, self.threads // self.devices)

    def same_work(self) -> dict[str, Any]:
        """Return what the result depends on, as a file would hold it."""
        return self.model_dump(
            mode="json", exclude={"name", "label", "threads", "checkpoint_seconds"}
        )


class Row(Settings):
    """A method in a recipe; `vary` makes one row of each combination of its values.

    A label may name settings, as in "budget of {budget}"; varied ones that it does not name follow
    it. The capacity of a row with a `backbone` of its own is told in networks of the recipe.
    """

    method: str
    label: str | None = None
    settings: dict[str, Any] = Field({})
    vary: dict[str, list[Any]] = Field({})
    backbone: dict[str, Any] | None = None
    orders: list[Order] | None = None
    seeds: list[int] | None = None


class Recipe(Common):
    """Methods x orders x seeds x settings on one stream."""

    title: str = Field("", description="what it shows, such as a table of the paper")
    methods: list[Row] = Field(min_length=1, description="names, or rows with settings")
    orders: list[Order] = Field(["A"], min_length=1)
    seeds: list[int] = Field([0], min_length=1)

    @field_validator("methods", mode="before")
    @classmethod
    def _rows(cls, rows: Any) -> Any:
        if not isinstance(rows, list):
            raise ValueError("methods is a list of names, or of rows with `method:`")
        return [{"method": r} if isinstance(r, str) else _checked(Row, r) for r in rows]

    def cells(self, only: Collection[str] = ()) -> list[Cell]:
        """Return every cell, orders and seeds outermost so that a part is a table already.

        With `only`, those of these methods or labels, a row's own label or a varied one's.
        """
        common = {k: getattr(self, k) for k in Common.model_fields}
        found: dict[str, Cell] = {}
        wanted = [(r, v) for r in self.methods for v in _combinations(r.vary)]
        seeds = list(dict.fromkeys(s for r in self.methods for s in r.seeds or self.seeds))
        orders = [*self.orders, *(o for r in self.methods for o in r.orders or [])]
        keys = list({str(o): o for o in orders}.values())
        for seed, order, (row, varied) in itertools.product(seeds, keys, wanted):
            if seed not in (row.seeds or self.seeds) or order not in (row.orders or self.orders):
                continue
            own = {**row.settings, **varied}
            label = row.label and _labelled(row.label, own, varied)
            own_net = {} if row.backbone is None else row.backbone
            base = self.backbone if self.base is None and own_net else self.base
            name = ".".join([row.method, *_told(own), *_told(own_net)])
            cell = Cell.of(
                {
                    **common,
                    "method": row.method,
                    "order": order,
                    "seed": seed,
                    "name": name,
                    "label": label or " ".join([row.method, *_told(own), *_told(own_net)]),
                    "settings": {**self.settings, **own},
                    "backbone": {**self.backbone, **own_net},
                    "base": base,
                }
            )
            if cell.id in found:
                raise ConfigError(
                    f"two rows of the recipe are {cell.id}: let their settings differ"
                )
            if not only or {row.method, row.label, cell.label, cell.name} & set(only):
                found[cell.id] = cell
        return list(found.values())

    @classmethod
    def read(cls, path: str | Path) -> Recipe:
        """Read a recipe from a YAML file."""
        try:
            text = Path(path).read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"cannot read the recipe {path}: {error}") from error
        given = parse(text, str(path))
        if not isinstance(given, dict):
            raise ConfigError(f"{path} is no recipe: it needs at least `stream:` and `methods:`")
        try:
            return cls.of(given)
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from None


def parse(text: str, where: str) -> Any:
    """Parse YAML."""
    try:
        return yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        raise ConfigError(f"{where} is not YAML: {error}") from None


def assign(pairs: Iterable[str]) -> dict[str, Any]:
    """Turn `key=value` into fields of a cell.

    A key is a setting of the method, unless it is a field of the cell (`tasks=3`), or one of its
    parts (`backbone.widths=[8,8]`, `options.val=50`, `rows.train=500`).
    """
    fields: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals or not key:
            raise ConfigError(f"--set takes key=value, got {pair!r}")
        value = parse(text, f"--set {pair}")
        part, _, rest = key.partition(".")
        if rest and part not in Common.model_fields:
            raise ConfigError(f"no {part!r} to set; {nearest(part, Common.model_fields)}")
        if rest:
            fields.setdefault(part, {})[rest] = value
        elif key in Common.model_fields:
            fields[key] = value
        else:
            fields.setdefault("settings", {})[key] = value
    return fields


def network(stream: str, backbone: Mapping[str, Any]) -> dict[str, Any]:
    """Return the name and all options of a network: those given, and what is usual there."""
    usual = defaults.of(stream).backbone
    if backbone.get("name", usual["name"]) != usual["name"]:
        return dict(backbone)
    return {**usual, **backbone}


def settings_of(cell: Cell) -> dict[str, Any]:
    """Return the arguments of the method: the stream's, the published ones, and those given."""
    from sigmatau.methods import registry

    chosen = registry.entry(cell.method).settings(cell.stream, cell.settings)
    return {**defaults.of(cell.stream).training, **chosen, "seed": cell.seed}


def _combinations(vary: Mapping[str, list[Any]]) -> list[dict[str, Any]]:
    return [dict(zip(vary, values, strict=True)) for values in itertools.product(*vary.values())]


def _labelled(label: str, own: Mapping[str, Any], varied: Mapping[str, Any]) -> str:
    named = re.findall(r"{(\w+)}", label)
    for key in named:
        if key not in own:
            raise ConfigError(f"the label {label!r} names {key!r}; {nearest(key, own)}")
        label = label.replace(f"{{{key}}}", _short(own[key]))
    return " ".join([label, *_told({k: v for k, v in varied.items() if k not in named})])


def _told(settings: Mapping[str, Any]) -> list[str]:
    return [f"{key}={_short(value)}" for key, value in settings.items()]


def _short(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return "+".join(map(_short, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def _checked(cls: type[Settings], given: Any) -> Any:
    """Refuse unknown keys of a nested part with the nearest match."""
    for key in given if isinstance(given, dict) else ():
        if key not in cls.model_fields:
            raise ConfigError(f"unknown key {key!r}; {nearest(str(key), cls.model_fields)}")
    return given
