"""Your own data as a stream: a list of tensors, folders of pictures, or a Hugging Face dataset.

All three end in the same place: parts of labelled images that get split by seed where no split is
given, and from which a training image is dropped when a validation or test part has its copy.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sigmatau.data import Array, as_tensor
from sigmatau.errors import ConfigError, DataError
from sigmatau.streams.base import Metric, Pair, Stream, Task
from sigmatau.streams.split import image_ids, stratified, without

PARTS = ("train", "val", "test")
Arrays = tuple[Array, Array]
Given = Task | Arrays | tuple[Arrays, Arrays] | tuple[Arrays, Arrays, Arrays]


@dataclass
class _Draft:
    """A task in the making: some parts, or one `train` part that is still to be split."""

    name: str
    classes: tuple[str, ...]
    parts: dict[str, Pair]


def from_tensors(
    tasks: Sequence[Given] | Mapping[str, Given],
    *,
    name: str = "tensors",
    val: float = 0.1,
    test: float = 0.2,
    seed: int = 0,
    metric: Metric = "accuracy",
    orders: Mapping[str, Sequence[int]] | None = None,
) -> Stream:
    """Make a stream; a task is `(x, y)`, `(train, test)`, `(train, val, test)` or a Task.

    `x` is uint8 (then divided by 255) or floating, `y` whole numbers from 0. A bare `(x, y)` is
    split by `seed` into the shares `val`, `test` and the rest. A dictionary names the tasks.
    """
    if not isinstance(tasks, Mapping):
        tasks = {f"task {i}": given for i, given in enumerate(tasks)}
    drafts = [_draft(task, given) for task, given in tasks.items()]
    return _stream(name, drafts, val, test, seed, metric, orders)


def from_folder(
    path: str | Path,
    *,
    size: int | None = None,
    mode: str = "RGB",
    name: str | None = None,
    val: float = 0.1,
    test: float = 0.2,
    seed: int = 0,
    orders: Mapping[str, Sequence[int]] | None = None,
) -> Stream:
    """Make a stream of `path/TASK/CLASS/*.png` (or .jpg, .jpeg), or `path/TASK/PART/CLASS/*`.

    Without the parts `train`, `val`, `test` the images are split by `seed`. `size` scales them to
    size x size; `mode` is Pillow's: RGB for colour, L for grey.
    """
    top = Path(path)
    if not top.is_dir():
        raise DataError(f"{top} is not a folder; give one that holds TASK/CLASS/*.png")
    drafts = []
    for task in _folders(top):
        inner = _folders(task)
        parted = bool(inner) and {d.name for d in inner} <= set(PARTS)
        parts = {d.name: _folders(d) for d in inner} if parted else {"train": inner}
        titles = sorted({c.name for classes in parts.values() for c in classes})
        pairs = {
            part: _pictures(
                [(p, titles.index(c.name)) for c in classes for p in _files(c)], size, mode
            )
            for part, classes in parts.items()
        }
        drafts.append(_Draft(task.name, tuple(titles), pairs))
    return _stream(name or top.name, drafts, val, test, seed, "accuracy", orders)


def from_huggingface(
    dataset: Any,
    *,
    image: str = "image",
    label: str = "label",
    tasks: int | None = None,
    task_column: str | None = None,
    size: int | None = None,
    mode: str = "RGB",
    name: str = "huggingface",
    val: float = 0.1,
    test: float = 0.2,
    seed: int = 0,
    orders: Mapping[str, Sequence[int]] | None = None,
) -> Stream:
    """Make a stream of a `datasets.Dataset` or `DatasetDict` with a picture and a label column.

    Either `tasks` cuts the classes into that many equal runs, or `task_column` names the column
    that says which task a row belongs to. A DatasetDict's train, validation and test are kept.
    """
    if (tasks is None) == (task_column is None):
        raise ConfigError("give tasks= (how many runs of classes) or task_column=, one of the two")
    named = {"train": dataset} if hasattr(dataset, "features") else dict(dataset)
    aliases = {"validation": "val", "valid": "val"}
    splits = {aliases.get(key, key): rows for key, rows in named.items()}
    if unknown := set(splits) - set(PARTS):
        raise DataError(
            f"splits {sorted(unknown)} are none of train, validation and test; drop them"
        )
    for part, split in splits.items():
        if absent := {image, label, task_column} - {None, *split.features}:
            raise DataError(
                f"split {part!r} has the columns {sorted(split.features)} and not "
                f"{sorted(map(str, absent))}; name them with image=, label= and task_column="
            )
    titles = _titles(splits, label)
    if tasks is not None and not 1 <= tasks <= len(titles):
        raise ConfigError(f"tasks={tasks}, but {len(titles)} classes make 1 to {len(titles)} tasks")
    index = {title: i for i, title in enumerate(titles)}
    rows: dict[str, dict[str, list[tuple[Any, int]]]] = {}
    for part, split in splits.items():
        for row in split:
            c = index[row[label]] if row[label] in index else int(row[label])
            if not 0 <= c < len(titles):
                raise DataError(f"split {part!r} has a row labelled {c}; drop unlabelled rows")
            if task_column is not None:
                key = str(row[task_column])
            else:
                key = str(c * (tasks or 1) // len(titles))
            rows.setdefault(key, {}).setdefault(part, []).append((row[image], c))
    drafts = []
    for key in sorted(rows, key=lambda k: (len(k), k) if tasks else (0, k)):
        used = sorted({c for pairs in rows[key].values() for _, c in pairs})
        local = {c: i for i, c in enumerate(used)}
        pairs = {
            part: _pictures([(picture, local[c]) for picture, c in items], size, mode)
            for part, items in rows[key].items()
        }
        drafts.append(_Draft(key, tuple(str(titles[c]) for c in used), pairs))
    return _stream(name, drafts, val, test, seed, "accuracy", orders)


def _titles(splits: Mapping[str, Any], label: str) -> list[Any]:
    """Return the class names a dataset declares, or else the values its labels take."""
    for split in splits.values():
        if names := getattr(split.features[label], "names", None):
            return list(names)
    return sorted({value for split in splits.values() for value in split[label]})


def _draft(name: str, given: Given) -> _Draft:
    if isinstance(given, Task):
        return _Draft(given.name, given.classes, given.parts())
    items: list[Any] = list(given)
    bare = len(items) == 2 and isinstance(items[0], (Tensor, np.ndarray))
    if not bare and (len(items) not in (2, 3) or any(len(item) != 2 for item in items)):
        raise DataError(
            f"{name}: give (x, y), (train, test) or (train, val, test), of tensors or NumPy arrays"
        )
    keys = ("train",) if bare else ("train", "test") if len(items) == 2 else PARTS
    tensors = {
        key: _tensors(f"{name}, {key}", *item)
        for key, item in zip(keys, [items] if bare else items, strict=True)
    }
    top = max((int(y.max()) for _, y in tensors.values() if len(y)), default=0)
    return _Draft(name, tuple(map(str, range(top + 1))), tensors)


def _tensors(where: str, *given: Array) -> Pair:
    x, y = map(as_tensor, given)
    if not isinstance(x, Tensor) or not isinstance(y, Tensor):
        told = " and ".join(type(part).__name__ for part in given)
        raise DataError(f"{where}: got {told}; give tensors or NumPy arrays")
    if x.dtype != torch.uint8 and not x.is_floating_point():
        raise DataError(f"{where}: x is {x.dtype}; give uint8 pixels or floating numbers")
    if y.is_floating_point() or y.is_complex():
        raise DataError(f"{where}: y is {y.dtype}; give whole numbers from 0")
    if len(x) != len(y):
        raise DataError(f"{where}: {len(x)} inputs and {len(y)} labels; give one each")
    x = x.to(torch.float32).div(255) if x.dtype == torch.uint8 else x.to(torch.float32)
    if not bool(torch.isfinite(x).all()):
        raise DataError(f"{where}: x holds values that are not finite; clean it first")
    return x, y.to(torch.int64)


def _folders(path: Path) -> list[Path]:
    return sorted(d for d in path.iterdir() if d.is_dir() and not d.name.startswith("."))


def _files(path: Path) -> list[Path]:
    return sorted(f for f in path.iterdir() if f.suffix.lower() in {".png", ".jpg", ".jpeg"})


def _pictures(items: Sequence[tuple[Any, int]], size: int | None, mode: str) -> Pair:
    """Decode paths, Pillow images or arrays into one tensor of equal shapes."""
    from PIL import Image

    images: list[NDArray[np.uint8]] = []
    for source, _ in items:
        try:
            if isinstance(source, str | Path):
                with Image.open(source) as opened:
                    picture = opened.convert(mode)
            elif isinstance(source, Image.Image):
                picture = source.convert(mode)
            else:
                picture = Image.fromarray(np.asarray(source, dtype=np.uint8)).convert(mode)
        except (OSError, TypeError, ValueError) as error:
            raise DataError(f"{source} is not a picture that can be opened ({error})") from error
        if size is not None and picture.size != (size, size):
            picture = picture.resize((size, size), Image.Resampling.BILINEAR)
        images.append(np.array(picture))
        if images[0].shape != images[-1].shape:
            raise DataError(
                f"pictures of several sizes, {images[0].shape[:2]} and {images[-1].shape[:2]}; "
                "bring them to one with size="
            )
    if not images:
        raise DataError("a task has no pictures; folders are TASK/CLASS/*.png, *.jpg or *.jpeg")
    stacked = np.stack(images)
    nchw = stacked[:, None] if stacked.ndim == 3 else stacked.transpose(0, 3, 1, 2)
    x = torch.from_numpy(np.ascontiguousarray(nchw)).to(torch.float32).div_(255)
    return x, torch.tensor([label for _, label in items], dtype=torch.int64)


def ids_of(x: Tensor) -> NDArray[np.uint64]:
    """Return one hash for each row of a tensor."""
    return image_ids(np.ascontiguousarray(x.numpy()).view(np.uint8))


def _stream(
    name: str,
    drafts: Sequence[_Draft],
    val: float,
    test: float,
    seed: int,
    metric: Metric,
    orders: Mapping[str, Sequence[int]] | None,
) -> Stream:
    if not (0 <= val < 1 and 0 < test < 1 and val + test < 1):
        raise ConfigError(f"val={val} and test={test} must leave a share for training")
    if not drafts:
        raise DataError(f"stream {name!r} has no tasks")
    # Copies are told apart over the whole stream: one decision for each image, whatever the task.
    tested: dict[int, bool] = {}
    validated: dict[int, bool] = {}
    for draft in drafts:
        if "train" not in draft.parts or not len(draft.parts["train"][1]):
            raise DataError(f"task {draft.name!r} has no training images")
        if "test" not in draft.parts:
            _cut(draft, "test", test, seed, tested)
            if val and "val" not in draft.parts:
                _cut(draft, "val", val / (1 - test), seed, validated)
    dropped = _drop_copies(drafts)
    notes = [f"left out {dropped} images that a later part has too"] if dropped else []
    made = [
        Task(d.name, d.parts["train"], d.parts.get("val"), d.parts["test"], d.classes)
        for d in drafts
    ]
    shapes = {tuple(task.train[0].shape[1:]) for task in made}
    if len(shapes) > 1:
        raise DataError(f"tasks of several input shapes, {sorted(shapes)}; bring them to one")
    return Stream(
        name,
        [task.name for task in made],
        made.__getitem__,
        input_shape=shapes.pop(),
        orders=orders,
        metric=metric,
        seed=seed,
        notes=notes,
    )


def _cut(draft: _Draft, part: str, share: float, seed: int, side: dict[int, bool]) -> None:
    x, y = draft.parts["train"]
    counts = np.ceil(np.bincount(y.numpy(), minlength=len(draft.classes)) * share).astype(int)
    inside, outside = stratified(
        ids_of(x), y.numpy(), counts.tolist(), seed, draft.name, part, side=side
    )
    draft.parts[part] = (x[inside], y[inside])
    draft.parts["train"] = (x[outside], y[outside])


def _drop_copies(drafts: Iterable[_Draft]) -> int:
    """Drop what a more protected part has too: test before validation before training."""
    protected: list[NDArray[np.uint64]] = []
    dropped = 0
    for part in ("test", "val", "train"):
        own = [(draft, *draft.parts[part]) for draft in drafts if part in draft.parts]
        hashes = [ids_of(x) for _, x, _ in own]
        for (draft, x, y), ids in zip(own, hashes, strict=True):
            kept = without(ids, *protected)
            if len(kept) < len(ids):
                dropped += len(ids) - len(kept)
                draft.parts[part] = (x[kept], y[kept])
            if len(kept) == 0:
                raise DataError(
                    f"task {draft.name!r} is left without {part} images: copies of one image stay "
                    "on one side, so give it more different ones"
                )
        protected += hashes
    return dropped
