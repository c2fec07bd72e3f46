"""`REPRODUCED.md`: every recipe's rows beside the paper's, from the result files and nothing else.

The same results give the same bytes. Cells that are under way count as not run, so that a document
made while a grid runs is the one that a checkout of its finished cells makes.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from sigmatau.errors import FileError
from sigmatau.experiment.config import Recipe
from sigmatau.files import put
from sigmatau.report import bars, beside, chosen, static, tables
from sigmatau.report.figures import all_figures
from sigmatau.report.plot import Figure
from sigmatau.report.published import BENCHMARKS, PAPER
from sigmatau.report.results import Run, read
from sigmatau.report.tables import Group, Table

# Tables of the paper first, then its figures; others follow by name.
FIRST = [*bars.NEEDED, "ablation", "forgetting", "dropping", "drift", "efficiency"]
APART = ("bench", "figures", "tuning")  # folders of `results/` that are no recipe's
NOTES = "NOTES.md"

Values = Mapping[str, float]


@dataclass(frozen=True)
class Part:
    """One recipe: what it asks for, what came out, what was written about it by hand."""

    name: str
    recipe: Recipe | None
    listed: bool
    table: Table
    notes: str
    warnings: tuple[str, ...]

    @property
    def runs(self) -> list[Run]:
        return [run for group in self.table.groups for run in group.runs]

    @property
    def figures(self) -> dict[str, Figure]:
        return {f"{self.name}-{f.name}.svg": f for f in all_figures(self.table)}


@dataclass(frozen=True)
class Document:
    """The text, the pictures that it shows by their file's name, and what went wrong."""

    text: str
    figures: Mapping[str, Figure]
    warnings: tuple[str, ...]
    beside: str


def write(
    results: Path, out: Path, recipes: Path | None = None, methods: Path | None = None
) -> Document:
    """Write the document, its pictures into `results/figures`, and the figures of `methods`."""
    made = document(results, out, recipes)
    told = beside.put_into(methods.read_text(), made.beside, methods) if methods else ""
    drawn = {name: static.draw(figure, ("svg",))["svg"] for name, figure in made.figures.items()}
    for name, picture in drawn.items():
        put(results / "figures" / name, picture)
    put(out, made.text)
    if methods is not None:
        put(methods, told)
    return made


def document(results: Path, out: Path, recipes: Path | None = None) -> Document:
    """Return the document as it stands at `out`; recipes lie beside the results by default."""
    parts = _parts(results, recipes or results.parent / "recipes")
    by_name = {part.name: part.table for part in parts}
    notes = {part.name: part.notes for part in parts}
    judged = bars.findings(by_name, bars.BARS) + bars.promises(by_name)
    rivals = bars.baselines(by_name, notes)
    aims = bars.findings(by_name, bars.AIMS)
    base = Path(os.path.relpath(results, out.parent)).as_posix()
    known = {part.name: part.recipe for part in parts if part.recipe is not None}
    text = [
        _head(parts, base),
        _bars("What was to be reached", judged),
        _bars("Baselines beside the paper's", rivals),
        _bars("Aims beyond the paper", aims),
        *(_section(part, base) for part in parts),
        _tuning(results / "tuning", base, known),
    ]
    figures = {name: figure for part in parts for name, figure in part.figures.items()}
    warnings = [f"{part.name}: {told}" for part in parts for told in part.warnings]
    behind = {(p.name, row.group.label): cells(row.group) for p in parts for row in p.table.rows}
    short = beside.figures(by_name, behind)
    return Document("\n".join(filter(None, text)), figures, tuple(warnings), short)


def _parts(results: Path, recipes: Path) -> list[Part]:
    if not results.is_dir():
        raise FileError(f"{results} is no folder: give the one with a folder for each recipe in it")
    known = {path.stem: path for path in sorted(recipes.glob("*.yaml"))}
    names = known.keys() | {p.name for p in results.iterdir() if p.is_dir()}
    names -= set(APART)
    if not names:
        raise FileError(f"neither {results} nor {recipes} holds anything: run a recipe first")
    found: dict[str, Part] = {}
    for name in sorted(names, key=lambda n: (FIRST.index(n) if n in FIRST else len(FIRST), n)):
        found[name] = _part(results / name, known.get(name), found)
    return list(found.values())


def _part(folder: Path, path: Path | None, others: Mapping[str, Part]) -> Part:
    own = folder / "recipe.yaml"
    recipe = Recipe.read(path or own) if path or own.exists() else None
    results = read([folder], recipe)
    streams = results.streams()
    if len(streams) > 1:
        raise FileError(
            f"{folder} holds cells of {' and '.join(streams)}: keep one recipe in a folder"
        )
    table = tables.table(results, streams[0])
    reference = _reference(others.get(streams[0]))
    if reference is not None and _alike(reference, table):
        told = f"STL is that of `{streams[0]}`: none is among these rows."
        table = tables.table(results, streams[0], reference)
        table = replace(table, notes=(*table.notes, told))
    text = folder / NOTES
    try:
        written = text.read_text().strip() if text.exists() else ""
    except (OSError, UnicodeDecodeError) as error:
        raise FileError(f"{text} cannot be read: {error}") from error
    warnings = [*results.notes, *(f"{r.id}: {_reason(r)}" for r in results.runs if r.trace)]
    return Part(folder.name, recipe, path is not None, table, written, tuple(warnings))


def _reason(run: Run) -> str:
    """Return what went wrong: the first line about a damaged file, else the last of a trace."""
    lines = run.trace.strip().splitlines()
    return lines[0 if "unusable" in lines[0] else -1]


def _reference(part: Part | None) -> Group | None:
    """Return STL of the recipe that a stream's table is made by."""
    rows = part.table.groups if part else ()
    return next((g for g in rows if g.method == "stl" and g.done), None)


def _alike(reference: Group, table: Table) -> bool:
    """Return whether STL run elsewhere learnt the tasks of this table, which has none itself."""
    tasks = {frozenset(run.done.final) for g in (*table.groups, reference) for run in g.done}
    return len(tasks) == 1 and not any(g.method == "stl" and g.done for g in table.groups)


def _head(parts: Sequence[Part], base: str) -> str:
    runs = [run for part in parts for run in part.runs]
    done = [run for run in runs if run.state == "done"]
    return f"""# Reproduced: the paper's tables and figures, run here

Made by `sigmatau reproduced {base}` from the result files, never by hand.
{len(done)} of {len(runs)} cells that the recipes ask for are finished. Each section names the one
command that runs what is missing. {_machines(done)}

- **paper** is {PAPER}; **ours** was measured here: mean and (standard deviation) over cells.
  Accuracies are in %, differences in points.
- **to STL** is the distance to single-task learning of the same source, ours over the seeds that
  both have: what to compare where protocols differ.
- **AOPD, MOPD**: how much a task's accuracy depends on the order, mean and maximum over tasks, by
  the seeds that all orders have. More orders can only raise MOPD and tend to raise AOPD; the paper
  has five.
- **cells**: how many orders x seeds stand behind ours, of how many cells the recipe asks for.
- **capacity**, in % of one network, the recipe's also for a row with a larger one of its own:
  *paper* counts nonzero numbers over the weights with all heads so far, *strict* every number and
  index over a network with one head, *bytes* the files. As *paper* divides by all heads, even STL
  has a little less than 100 % a task.
- **time**: of a task, at the median, relative to the plain training that is named below the table.
"""


def _machines(runs: Iterable[Run]) -> str:
    """Return what finished cells were made with and on."""
    seen = Counter(
        f"sigmatau {r.done.versions.get('sigmatau', '?')} and "
        f"torch {r.done.versions.get('torch', '?')} on {r.done.processor} "
        f"({r.done.machine.get('cores', '?')} cores), threads a cell: "
        f"{r.done.machine.get('threads', '?')}"
        for r in runs
    )
    return "".join(f"{n} were run with {told}. " for told, n in sorted(seen.items())).strip()


def _bars(title: str, found: Sequence[bars.Finding]) -> str:
    counts = Counter(finding.verdict for finding in found)
    told = ", ".join(f"{counts[v]} {v}" for v in ("kept", "missed", "not enough cells yet"))
    rows = [[f.recipe, f.row, f.bar, f.value, _verdict(f), f.why] for f in found]
    head = ["recipe", "row", "bar", "ours", "verdict", ""]
    return f"## {title}\n\n{told}.\n\n{_grid(head, rows, numbers=(3,))}" if found else ""


def _verdict(finding: bars.Finding) -> str:
    return f"**{finding.verdict}**" if finding.verdict in ("kept", "missed") else finding.verdict


def _section(part: Part, base: str) -> str:
    states = [run.state for run in part.runs]
    title = part.recipe.title if part.recipe and part.recipe.title else part.name
    if part.listed:
        command = f"sigmatau grid recipes/{part.name}.yaml --out {base}/{part.name}"
    else:
        command = f"sigmatau grid {base}/{part.name}/recipe.yaml --out {base}/{part.name}"
    lines = [
        f"## {part.name}: {title}",
        f"`{command}`" if part.recipe else "No recipe is kept beside these cells.",
        f"{states.count('done')} of {len(states)} cells are finished.",
        _reached(part),
        _cost(part),
        "\n".join(f"- {note}" for note in part.table.notes),
        "\n".join(f"- Not shown above: {told}" for told in part.warnings),
        part.notes,
        *(
            f"![{figure.title}]({base}/figures/{name})\n\n*{figure.caption}*"
            for name, figure in part.figures.items()
        ),
        _settings(part),
    ]
    return "\n\n".join(line.rstrip() for line in lines if line) + "\n"


def _reached(part: Part) -> str:
    """Return the table of accuracies, with every row of the recipe and of the paper's table."""
    titles = ["row", "paper", "ours (sd)", "difference", "to STL, paper", "to STL, ours"]
    titles += ["AOPD, paper", "AOPD, ours", "MOPD, paper", "MOPD, ours", "cells"]
    rows = [
        [
            label,
            _text(theirs, "accuracy"),
            _with_sd(ours),
            _gap(ours, theirs, "accuracy"),
            _text(theirs, "to_stl", "+"),
            _text(ours, "to_stl", "+"),
            _text(theirs, "aopd"),
            _text(ours, "aopd"),
            _text(theirs, "mopd"),
            _text(ours, "mopd"),
            count,
        ]
        for label, ours, theirs, count in _rows(part)
    ]
    return _grid(titles, rows, numbers=range(1, len(titles) - 1))


def _cost(part: Part) -> str:
    """Return the table of capacity, forgetting and time, with the same rows."""
    titles = ["row", "capacity, paper's", "ours: paper", "strict", "bytes"]
    titles += ["forgetting, paper's", "forgetting, ours", "worst, paper's", "worst, ours", "time"]
    rows = [
        [
            label,
            _text(theirs, "capacity", digits=1),
            *(_text(ours, key, digits=1) for key in ("capacity", "strict", "bytes")),
            _text(theirs, "forgetting_average"),
            _text(ours, "forgetting_average"),
            _text(theirs, "forgetting_worst"),
            _text(ours, "forgetting_worst"),
            _text(ours, "time"),
        ]
        for label, ours, theirs, _ in _rows(part)
    ]
    told = any(any(row[1:]) for row in rows)
    return _grid(titles, rows, numbers=range(1, len(titles))) if told else ""


def _rows(part: Part) -> list[tuple[str, Values, Values, str]]:
    """Return label, ours, the paper's and cells of each row, the paper's own ones last."""
    rows = [(r.group.label, r.ours, r.theirs, cells(r.group)) for r in part.table.rows]
    if part.name in bars.NEEDED:
        # The paper's ablations have a recipe of their own.
        special = {row.name for row in BENCHMARKS[part.table.stream].rows if row.when}
        rows += [
            (line.label, {}, line.values, "not in the recipe")
            for line in part.table.lines
            if line.cells == "not run here" and line.label not in special
        ]
    return rows


def cells(group: Group) -> str:
    """Return how many orders and seeds stand behind a row, of how many cells."""
    done = group.done
    failed = sum(run.state == "failed" for run in group.runs)
    told = f", {failed} failed" if failed else ""
    if not done:
        return "not run yet" + told
    orders, seeds = ({r.key.order for r in done}, {r.key.seed for r in done})
    whole = len(done) == len(orders) * len(seeds)
    count = "" if whole else f"{len(done)} in "
    return f"{count}{len(orders)} x {len(seeds)}, of {len(group.runs)}{told}"


def _with_sd(ours: Values) -> str:
    sd = _text(ours, "sd")
    return _text(ours, "accuracy") + (f" ({sd})" if sd else "")


def _gap(ours: Values, theirs: Values, key: str) -> str:
    both = key in ours and key in theirs
    return _text({key: ours[key] - theirs[key]}, key, "+") if both else ""


def _text(values: Values, key: str, sign: str = "", digits: int = 2) -> str:
    # Adding 0 makes -0.00 read 0.00.
    return f"{round(values[key], digits) + 0.0:{sign}.{digits}f}" if key in values else ""


def _settings(part: Part) -> str:
    common, own = chosen.settings_of(part.table.groups)
    waiting = {g.label for g in part.table.groups if not g.done}
    rows = [[n, told or "nothing else", "asked for" if n in waiting else ""] for n, told in own]
    return (
        "<details><summary>Settings of every row</summary>\n\n"
        + (f"In common: {common}.\n\n" if common else "")
        + _grid(["row", "settings", "not run yet"], rows)
        + "\n</details>"
    )


def _tuning(folder: Path, base: str, recipes: Mapping[str, Recipe]) -> str:
    found = chosen.studies(folder)
    rows = [
        [
            f"[{s.name}]({base}/tuning/{s.name}/trials.json)",
            *(s.method, s.searched, s.trials, s.chosen, s.score, s.capacity),
            "; ".join(chosen.users(s, recipes)) or "no row",
        ]
        for s in found
    ]
    head = ["search", "method", "tried", "trials", "chosen", "validation", "capacity", "used by"]
    body = _grid(head, rows, numbers=(5, 6)) if rows else "No search was made yet.\n"
    return (
        "## Searches for settings\n\n"
        "By `sigmatau tune`, on validation data: test data has no part in them. Each link is the\n"
        "log of all trials; `best.yaml` beside it is the choice. Rows that no search is named for\n"
        "have the settings of their recipe and their method, as listed with them.\n\n" + body
    )


def _grid(head: Sequence[str], rows: Sequence[Sequence[str]], numbers: Iterable[int] = ()) -> str:
    """Return a Markdown table without the columns that are empty."""
    kept = [k for k in range(len(head)) if k == 0 or any(row[k] for row in rows)]
    right = set(numbers)
    rule = ["---:" if k in right else "---" for k in range(len(head))]
    cells = [[row[k].replace("|", "\\|") for k in kept] for row in (head, rule, *rows)]
    return "\n".join(f"| {' | '.join(row)} |" for row in cells) + "\n"
