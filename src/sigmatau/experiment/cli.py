"""`sigmatau run`, `grid`, `status` and `tune`: one cell, a recipe of cells, how far they are.

`methods` shows what there is to choose from.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from sigmatau.experiment.engines import Engine

app = typer.Typer()
Root = Annotated[
    Path | None,
    typer.Option(
        "--root", help="Data folder (default: SIGMATAU_DATA, or the user's cache folder)."
    ),
]
Pairs = Annotated[
    list[str] | None,
    typer.Option("--set", help="key=value: a setting of the method, or backbone.KEY, rows.train"),
]
Threads = Annotated[int, typer.Option(min=1, help="Threads of one cell.")]
Devices = Annotated[
    int | None,
    typer.Option(min=1, help="Processes that share each batch of a cell.", show_default="1"),
]
Accelerator = Annotated[
    str | None, typer.Option(help="What to train on: cpu, or cuda, a GPU.", show_default="cpu")
]
Precision = Annotated[
    str | None, typer.Option(help="Of losses and their gradients: 32-true, bf16-mixed, or auto.")
]
Track = Annotated[
    list[str] | None, typer.Option("--track", help="tensorboard or mlflow, beside the files.")
]
Show = Annotated[bool, typer.Option("--show", help="Print all settings, and run nothing.")]


@app.command()
def run(
    stream: Annotated[str, typer.Argument(help="A stream; `sigmatau data list` has them.")],
    method: Annotated[str, typer.Argument(help="A method; `sigmatau methods` has them.")],
    order: Annotated[str, typer.Option(help="A named order, random:SEED, or 2,0,1.")] = "A",
    seed: Annotated[int, typer.Option(min=0, help="Of the split, the network, the method.")] = 0,
    out: Annotated[
        Path | None, typer.Option(help="Results folder.", show_default="results/STREAM")
    ] = None,
    pairs: Pairs = None,
    threads: Threads = 1,
    accelerator: Accelerator = None,
    devices: Devices = None,
    precision: Precision = None,
    track: Track = None,
    root: Root = None,
    show: Show = False,
) -> None:
    """Run one cell: a stream learnt by a method in an order, from a seed."""
    from sigmatau.errors import SigmatauError
    from sigmatau.experiment.cell import finished
    from sigmatau.experiment.config import Cell, assign
    from sigmatau.experiment.engines import Job, run_job
    from sigmatau.experiment.grid import cell_folder, check
    from sigmatau.experiment.trackers import known

    fields = {"threads": threads, **assign(pairs or ()), **_shared(accelerator, devices, precision)}
    given = {"stream": stream, "method": method, "order": _order(order), "seed": seed}
    cell = Cell.of({**fields, **given})
    if show:
        _show(cell, root)
        return
    folder = cell_folder(out or Path("results") / stream, cell)
    if finished(cell, folder) is None:
        check([cell], root)
    known(track or ())
    where = None if root is None else str(root)
    result = run_job(Job(cell, str(folder), where, tuple(track or ())))
    if result is None:
        raise SigmatauError(f"another process is at {folder}: wait for it, or give another --out")
    _print_result(result)
    typer.echo(f"written to {folder}")


@app.command()
def grid(
    recipe: Annotated[Path, typer.Argument(help="A recipe: methods x orders x seeds.")],
    out: Annotated[
        Path | None, typer.Option(help="Results folder.", show_default="results/RECIPE")
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(min=1, help="Cells side by side.", show_default="cores, 1 on a GPU"),
    ] = None,
    threads: Threads = 1,
    accelerator: Accelerator = None,
    devices: Devices = None,
    precision: Precision = None,
    engine: Annotated[str, typer.Option(help="local, or ray.")] = "local",
    address: Annotated[str | None, typer.Option(help="Of the Ray cluster.")] = None,
    order: Annotated[list[str] | None, typer.Option(help="Only these orders.")] = None,
    seed: Annotated[list[int] | None, typer.Option(help="Only these seeds.")] = None,
    method: Annotated[list[str] | None, typer.Option(help="Only these methods or labels.")] = None,
    pairs: Pairs = None,
    reuse: Annotated[
        list[Path] | None,
        typer.Option(help="Results folders whose finished cells are taken over, not run again."),
    ] = None,
    track: Track = None,
    root: Root = None,
    show: Show = False,
) -> None:
    """Run all cells of a recipe. Finished ones stay; killed ones go on where they were."""
    from sigmatau.errors import ConfigError
    from sigmatau.experiment.config import Recipe, assign
    from sigmatau.experiment.grid import run_grid
    from sigmatau.experiment.status import following

    wanted = Recipe.read(recipe)
    fields = {**assign(pairs or ()), **_shared(accelerator, devices, precision)}
    if fields:
        given = wanted.model_dump(exclude_unset=True)
        for key, value in fields.items():
            given[key] = {**given.get(key, {}), **value} if isinstance(value, dict) else value
        wanted = Recipe.of(given)
    cells = [
        cell.model_copy(update={"threads": threads})
        for cell in wanted.cells(only=method or ())
        if (not order or cell.order in [_order(o) for o in order])
        and (not seed or cell.seed in seed)
    ]
    if not cells:
        raise ConfigError("no cell of the recipe is left: check --order, --seed and --method")
    if show:
        for cell in cells:
            _show(cell, root)
        return
    folder = out or Path("results") / recipe.stem
    if any(cell.accelerator == "cuda" for cell in cells):
        if engine == "ray":
            raise ConfigError("cells on a GPU run on this machine alone: leave out --engine ray")
        workers = workers or 1
    chosen = _engine(engine, workers, max(cell.cores for cell in cells), address)
    with following(folder, cells, chosen.workers) as told:
        summary = run_grid(
            wanted,
            folder,
            chosen,
            cells=cells,
            root=root,
            trackers=track or (),
            reuse=reuse or (),
            told=told,
        )
    for outcome in summary.failed:
        typer.secho(f"{outcome.id} failed: {outcome.told}", fg="red", err=True)
    typer.echo(f"{summary}; written to {folder}")
    if summary.failed:
        raise typer.Exit(1)


@app.command()
def methods(
    name: Annotated[str | None, typer.Argument(help="A method, to see its settings.")] = None,
) -> None:
    """List the methods, or show the settings of one."""
    from rich.console import Console

    from sigmatau.experiment.manual import show_methods, show_settings
    from sigmatau.methods.registry import entry

    out = Console()
    show_methods(out) if name is None else show_settings(entry(name), out)


@app.command()
def status(
    folder: Annotated[Path, typer.Argument(help="A results folder.")],
    watch: Annotated[bool, typer.Option("--watch", help="Go on until all is done.")] = False,
) -> None:
    """Show how far a grid is, from any terminal."""
    from sigmatau.experiment.status import show_status

    show_status(folder, watch)


@app.command()
def tune(
    stream: Annotated[str, typer.Argument(help="A stream.")],
    method: Annotated[str, typer.Argument(help="A method; `sigmatau methods` has them.")],
    search: Annotated[
        list[str] | None,
        typer.Option(help="What to search: l1=1e-5..1e-2, or groups=[1, 2, 4]."),
    ] = None,
    capacity: Annotated[
        float | None, typer.Option(help="Most capacity (paper): 1.35 for 135 %.")
    ] = None,
    trials: Annotated[int, typer.Option(min=1, help="Trials in all.")] = 30,
    workers: Annotated[int, typer.Option(min=1, help="Trials side by side.")] = 1,
    order: Annotated[str, typer.Option(help="A named order, random:SEED, or 2,0,1.")] = "A",
    seed: Annotated[int, typer.Option(min=0)] = 0,
    out: Annotated[
        Path | None, typer.Option(help="Folder.", show_default="tuning/STREAM-METHOD")
    ] = None,
    pairs: Pairs = None,
    threads: Threads = 1,
    accelerator: Accelerator = None,
    precision: Precision = None,
    root: Root = None,
) -> None:
    """Find settings on validation data for a capacity. Stopped, it goes on when called again."""
    import yaml

    from sigmatau.experiment.config import Cell, assign
    from sigmatau.experiment.tune import Search, choices_of
    from sigmatau.experiment.tune import tune as find

    fields = {"threads": threads, **assign(pairs or ()), **_shared(accelerator, None, precision)}
    given = {"stream": stream, "method": method, "order": _order(order), "seed": seed}
    folder = str((out or Path("tuning") / f"{stream}-{method}").absolute())
    choices = choices_of(search or ())
    cell = Cell.of({**fields, **given})
    found = find(
        Search(cell, choices, folder, capacity, None if root is None else str(root.absolute())),
        trials,
        workers,
    )
    typer.echo(yaml.safe_dump(found, sort_keys=False), nl=False)
    typer.echo(f"the study's log is in {folder}")


def _shared(accelerator: str | None, devices: int | None, precision: str | None) -> dict[str, Any]:
    """Return those that were given: a recipe may have its own."""
    given = {"accelerator": accelerator, "devices": devices, "precision": precision}
    return {key: value for key, value in given.items() if value is not None}


def _engine(name: str, workers: int | None, threads: int, address: str | None) -> Engine:
    from sigmatau.errors import ConfigError, nearest
    from sigmatau.experiment.engines.local import Local

    if name == "local":
        if address is not None:
            raise ConfigError("--address is the address of a Ray cluster: add --engine ray")
        return Local(workers, threads)
    if name == "ray":
        from sigmatau.experiment.engines.ray import Ray

        return Ray(address, threads, workers)
    raise ConfigError(f"no engine {name!r}; {nearest(name, ('local', 'ray'))}")


def _order(text: str) -> str | list[int]:
    parts = text.split(",")
    return [int(p) for p in parts] if all(p.strip().isdecimal() for p in parts) else text


def _show(cell: Any, root: Path | None) -> None:
    """Print everything a cell would be run with, as YAML."""
    import yaml

    from sigmatau.experiment.build import Plan

    plan = Plan(cell, root)
    typer.echo(f"# {cell.id}")
    typer.echo(yaml.safe_dump(plan.resolved(plan.method()), sort_keys=False))


def _print_result(result: dict[str, Any]) -> None:
    capacity, forgetting = result["capacity"], result["forgetting"]
    typer.echo(
        f"{result['label']} on {result['stream']}, order {result['order']}, seed {result['seed']}: "
        f"average {result['metric']} {result['average_accuracy']:.4f}"
    )
    typer.echo(f"forgetting {forgetting['average']:.4f} average, {forgetting['worst']:.4f} worst")
    told = ", ".join(f"{capacity[k]:.1%} {k}" for k in ("paper", "strict", "bytes"))
    typer.echo(f"capacity {told}; {result['steps']:,} steps in {result['seconds']:.1f} s")
