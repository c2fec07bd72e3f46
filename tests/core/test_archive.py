"""Files whose records are whole but do not fit the network: refused when read, in one way."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
import torch

import sigmatau
from sigmatau.core import container
from sigmatau.core.container import Container, Record
from sigmatau.core.sparse import Sparse
from sigmatau.errors import FileError

from ..conftest import blobs, small_conv

IMAGE = (1, 6, 6)


def spoilt(path, spoil: Callable[[dict[str, Record], dict], None]) -> sigmatau.APDNet:
    """Return a network opened from a file whose records were changed before it was written."""
    net = sigmatau.APDNet(
        small_conv(), epochs=1, batch_size=20, consolidate_every=2, groups=1, beta=9.0
    )
    for name in ("a", "b"):
        net.learn(name, blobs(ord(name), shape=IMAGE))
    net.save(path)
    with Container.open(path) as file:
        records = {name: file.read(name) for name in file.names}
        meta = dict(file.meta)
    about = json.loads(bytes(records["about"]["json"].numpy()))
    spoil(records, about)
    text = bytearray(json.dumps(about).encode())
    records["about"] = {"json": torch.frombuffer(text, dtype=torch.uint8)}
    container.write(path, records, meta)
    return sigmatau.load(path, small_conv())


def changed(record: str, name: str, item: object) -> Callable[[dict[str, Record], dict], None]:
    def spoil(records: dict[str, Record], _: dict) -> None:
        if item is None:
            del records[record][name]
        else:
            records[record][name] = item

    return spoil


WRONG = {
    "shared of another shape": changed("shared", "0.weight", torch.zeros(4, 1, 3, 4)),
    "shared of another type": changed("shared", "0.weight", torch.zeros(4, 1, 3, 3).double()),
    "shared weight missing": changed("shared", "5.weight", None),
    "shared that is sparse": changed("shared", "0.weight", Sparse.empty((4, 1, 3, 3))),
    "a delta that is dense": changed("task/b", "delta/0.weight", torch.zeros(4, 1, 3, 3)),
    "a delta of another shape": changed("task/b", "delta/0.weight", Sparse.empty((4, 1, 9, 3))),
    "a delta missing": changed("task/b", "delta/0.weight", None),
    "a mask of another length": changed("task/b", "mask/0.weight", torch.ones(5)),
    "a mask of no weight": changed("task/b", "mask/9.weight", torch.ones(4)),
    "a bias missing": changed("task/b", "own/0.bias", None),
    "a buffer of another shape": changed("task/b", "buffer/1.running_mean", torch.ones(9)),
    "a buffer of nobody": changed("task/b", "buffer/x", torch.ones(4)),
    "a head of another width": changed("task/b", "head/7.bias", torch.ones(2)),
    "a head of scalars": changed("task/b", "head/7.bias", torch.ones(())),
    "something unknown": changed("task/b", "gamma/0.weight", torch.ones(4)),
    "too many groups": changed("task/b", "groups", torch.zeros(7, dtype=torch.int16)),
    "groups that are sparse": changed("task/b", "groups", Sparse.empty((2,))),
    "a group of another shape": changed("group/0", "0.weight", Sparse.empty((2, 2))),
    "a group of nobody": changed("group/0", "x.weight", Sparse.empty((2, 2))),
}


@pytest.mark.parametrize("what", WRONG)
def test_parts_that_do_not_fit_are_refused_when_read(what: str, tmp_path) -> None:
    net = spoilt(tmp_path / "net.st", WRONG[what])
    with pytest.raises(FileError, match=r"net\.st"):
        net.predict("b", blobs(1, shape=IMAGE)[0])


@pytest.mark.parametrize(
    "spoil",
    [
        lambda r, a: a.pop("tasks"),
        lambda r, a: a["own"].pop("groups"),
        lambda r, a: a["own"].update(group_count="two"),
        lambda r, a: a.update(tasks=[["a"]]),
        lambda r, a: a.update(tasks=3),
        lambda r, a: a["tasks"].append(["ghost", 3, True, 0.0]),
        lambda r, a: a["own"].update(groups=[77]),
    ],
)
def test_a_list_of_tasks_that_is_not_true_is_refused(spoil, tmp_path) -> None:
    net = spoilt(tmp_path / "net.st", spoil)

    def use_all() -> None:
        for task in net.tasks:
            net.predict(task, blobs(1, shape=IMAGE)[0])
        for group in net._memory.state.groups.values():
            group()

    with pytest.raises(FileError, match=r"net\.st"):
        use_all()


def test_metadata_of_nonsense_is_refused(tmp_path) -> None:
    path = tmp_path / "net.st"
    net = sigmatau.APDNet(small_conv(), epochs=1)
    net.learn("a", blobs(1, shape=IMAGE))
    net.save(path)
    with Container.open(path) as file:
        records = {name: file.read(name) for name in file.names}
        meta = dict(file.meta)
    for change in ({"settings": {"epochs": -3}}, {"settings": {"x": 1}}, {"head": 5}, {"keep": 4}):
        container.write(path, records, {**meta, **change})
        with pytest.raises(FileError, match=r"net\.st"):
            sigmatau.load(path, small_conv())
    container.write(path, records, {**meta, "method": "alchemy"})
    with pytest.raises(FileError, match="'alchemy'"):
        sigmatau.load(path, small_conv())
