"""A file that is damaged or hostile: what is right comes out, or one clear error does."""

import json
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save, save_file

from sigmatau.core import container
from sigmatau.core.container import MAX_HEADER, Container, RawRecord, Record, unpack, write
from sigmatau.core.sparse import Sparse
from sigmatau.errors import FileError

from .records import example, outcome, read_all, same

# ---- damage


def test_every_flipped_byte_is_found(path: Path) -> None:
    write(path, example(), {"v": 1})
    whole = path.read_bytes()
    assert not outcome(path, example())
    for at in range(len(whole)):
        for mask in (0x01, 0x80, 0xFF):
            path.write_bytes(whole[:at] + bytes([whole[at] ^ mask]) + whole[at + 1 :])
            assert outcome(path, example()), f"byte {at} ^ {mask}"


def test_every_truncation_and_extension_is_found(path: Path) -> None:
    write(path, example(), {"v": 1})
    whole = path.read_bytes()
    for end in range(len(whole)):
        path.write_bytes(whole[:end])
        with pytest.raises(FileError):
            Container.open(path)
    path.write_bytes(whole + b"\0")
    with pytest.raises(FileError):
        Container.open(path)


def test_damage_in_one_record_leaves_the_others(path: Path) -> None:
    write(path, example(), {})
    with path.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\xee")
    with Container.open(path) as file:
        assert same(file.read("shared"), example()["shared"])
        with pytest.raises(FileError, match=r"birds.*checksum.*restore"):
            file.read("birds/2024 äöü")


def test_file_cut_while_open(path: Path) -> None:
    write(path, example(), {})
    with Container.open(path) as file:
        os.truncate(path, path.stat().st_size - 50)
        with pytest.raises(FileError, match="cut off"):
            file.read("birds/2024 äöü")


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=300))
def test_random_bytes_are_an_error(path: Path, noise: bytes) -> None:
    framed = struct.pack("<Q", len(noise)) + noise
    for data in (noise, framed, forged(noise), forged(record_of(noise))):
        path.write_bytes(data)
        with pytest.raises(FileError):
            read_all(path)


# ---- hostile files, all with the right checksums


def forged(record: bytes) -> bytes:
    """A file with one record of any bytes."""
    raw = RawRecord(len(record), container._digest(record), lambda: record)
    return container._header({"r": raw}, {}) + record


def record_of(layout: bytes | object, index: bytes = b"", **more: torch.Tensor) -> bytes:
    text = layout if isinstance(layout, bytes) else json.dumps(layout).encode()
    parts = {"layout": text, "index": index}
    packed = {n: torch.from_numpy(np.frombuffer(bytearray(b), np.uint8)) for n, b in parts.items()}
    return save(packed | more)


ONES = torch.ones(2)


HOSTILE: dict[str, bytes] = {
    "empty": b"",
    "no layout": save({"index": torch.zeros(0, dtype=torch.uint8)}),
    "layout of another type": save({"layout": ONES.bfloat16(), "index": ONES.byte()}),
    "layout is a list": record_of([]),
    "layout is deep": record_of(b"[" * 100_000),
    "layout key twice": record_of(b'{"float32":[["x",[2]]],"float32":[["x",[2]]]}', float32=ONES),
    "layout too long": record_of(b"{}" + b" " * MAX_HEADER),
    "no such numbers": record_of({"float32": [["x", [2]]]}),
    "numbers of another type": record_of({"int64": [["x", [2]]]}, int64=ONES),
    "numbers in two dimensions": record_of(
        {"float32": [["x", [4], 1, 2]]}, b"\0\1", float32=torch.ones(1, 2)
    ),
    "number of no tensor": record_of({"float32": [["x", [1]]]}, float32=ONES),
    "unlisted numbers": record_of({}, float32=ONES),
    "unlisted index": record_of({}, b"\0\1"),
    "huge dense": record_of({"float32": [["x", [2**40]]]}, float32=ONES),
    "huger dense": record_of({"float32": [["x", [2**62]]]}, float32=ONES),
    "huge and empty": record_of({"float32": [["x", [0, 2**40, 2**40]], ["y", [2]]]}, float32=ONES),
    "many dimensions": record_of({"float32": [["x", [1] * 100_000]]}, float32=ONES),
    "negative": record_of({"float32": [["x", [-1, -2]]]}, float32=ONES),
    "fraction": record_of({"float32": [["x", [2.0]]]}, float32=ONES),
    "truth": record_of({"float32": [["x", [True, 4], 2, 2]]}, b"\0\3", float32=ONES),
    "name is a number": record_of({"float32": [[1, [2]]]}, float32=ONES),
    "name twice": record_of({"float32": [["x", [1]], ["x", [1]]]}, float32=ONES),
    "huge sparse": record_of({"float32": [["x", [2**41], 2, 2]]}, b"\0\3", float32=ONES),
    "more values than there are": record_of(
        {"float32": [["x", [2**40], 2**39, 2]]}, b"\0\3", float32=ONES
    ),
    "more index than there is": record_of({"float32": [["x", [9], 2, 9]]}, b"\0\3", float32=ONES),
    "index beyond the end": record_of({"float32": [["x", [4], 2, 2]]}, b"\0\x21", float32=ONES),
    "index cut": record_of({"float32": [["x", [4], 2, 1]]}, b"\0", float32=ONES),
    "row too short": record_of({"float32": [["x", [4], 2]]}, b"\0\3", float32=ONES),
    "index of another type": save(
        {"layout": torch.tensor(list(b'{"float32":[["x",[4],2,2]]}')).byte(), "index": ONES + 1}
        | {"float32": ONES}
    ),
}


@pytest.mark.parametrize("record", HOSTILE.values(), ids=HOSTILE)
def test_hostile_record(path: Path, record: bytes) -> None:
    path.write_bytes(forged(record))
    with Container.open(path) as file, pytest.raises(FileError, match=f"{path}.*restore"):
        file.read("r")
    with pytest.raises(FileError, match="restore"):
        unpack(record)


def test_the_forger_can_also_forge_a_good_record(path: Path) -> None:
    """Else the hostile ones might fail for being badly forged."""
    path.write_bytes(forged(record_of({"float32": [["x", [4], 2, 2]]}, b"\0\3", float32=ONES)))
    tau = read_all(path)[1]["r"]["x"]
    assert isinstance(tau, Sparse)
    assert tau.dense().tolist() == [1, 1, 0, 0]


def test_large_sparse_shapes_are_not_allocated(path: Path) -> None:
    tau = Sparse(torch.tensor([5, 2**40 - 1]), ONES, (2**20, 2**20))
    write(path, {"r": {"x": tau}}, {})
    assert same(read_all(path)[1]["r"], {"x": tau})


def header(
    content: object = None, listed: object = None, edit: tuple[str, str] = ("", ""), **change: Any
) -> bytes:
    """A file of no records, with any part of its header replaced."""
    lists = json.dumps([[], [], []] if listed is None else listed).encode()
    good = {"list": len(lists), "digest": container._digest(lists), "records": 0, "meta": {}}
    text = json.dumps(good | content if isinstance(content, dict) else content or good)
    text = text.replace(*edit)
    about = {"sigmatau": "1", "checksum": container._digest(text.encode()), "content": text}
    parts = {"__metadata__": about | change.pop("about", {})} | container._entries(len(lists), 0)
    whole = json.dumps(parts | change).encode()
    return struct.pack("<Q", len(whole)) + whole + lists


BAD_HEADERS: dict[str, bytes] = {
    "length beyond the file": struct.pack("<Q", 2**63) + b"{}",
    "length over the limit": struct.pack("<Q", MAX_HEADER + 8) + b" " * (MAX_HEADER + 8),
    "deep": struct.pack("<Q", 100_000) + b"[" * 100_000,
    "utf-16": struct.pack("<Q", 4) + "{}".encode("utf-16-le"),
    "no object": struct.pack("<Q", 2) + b"[]",
    "twice": header(edit=("{}", '{}, "meta": {}')),
    "nan": header(edit=("{}", '{"x": NaN}')),
    "overflowing float": header(edit=("{}", '{"x": 1e999}')),
    "huge number": header(edit=("{}", '{"x": ' + "9" * 10_000 + "}")),
    "meta is a list": header({"meta": []}),
    "no meta": header(edit=("meta", "moot")),
    "negative list": header({"list": -1}),
    "infinite list": header({"list": 2**70}),
    "records that are not there": header({"records": 5}),
    "list digest": header({"digest": "0" * 32}),
    "list digest is a number": header({"digest": 7}),
    "surrogate": header(about={"content": "\ud800"}),
    "metadata is a list": header(__metadata__=[]),
    "version is a list": header(about={"sigmatau": []}),
    "version is a word": header(about={"sigmatau": "one"}),
    "a third tensor": header(more={"dtype": "U8", "shape": [0], "data_offsets": [0, 0]}),
    "lists of other lengths": header(listed=[["a"], [], []]),
    "no digest": header(listed=[["a"], [0], []]),
    "names twice": header(listed=[["a", "a"], [0, 0], ["", ""]]),
    "name is a number": header(listed=[[1], [0], [""]]),
    "size is negative": header(listed=[["a"], [-1], [""]]),
    "size beyond the file": header(listed=[["a"], [2**40], [container._digest(b"")]]),
    "list of lists": header(listed=[[["a"]], [0], [""]]),
    "list is no list": header(listed=7),
}


@pytest.mark.parametrize("data", BAD_HEADERS.values(), ids=BAD_HEADERS)
def test_hostile_header(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    with pytest.raises(FileError, match="restore"):
        read_all(path)


def test_length_is_refused_before_it_is_read(path: Path, reads: list[int]) -> None:
    for name in ("length beyond the file", "length over the limit"):
        path.write_bytes(BAD_HEADERS[name])
        with pytest.raises(FileError, match="cut off"):
            Container.open(path)
    assert reads == [8, 8]


@pytest.mark.parametrize("length", [1, 10_000_000_000])
def test_records_must_fill_the_file(path: Path, reads: list[int], length: int) -> None:
    path.write_bytes(header(listed=[["a"], [length], [container._digest(b"")]]))
    with Container.open(path) as file, pytest.raises(FileError, match="fill the file"):
        file.read("a")
    assert max(reads) < 1000


def test_names_must_be_unique(path: Path) -> None:
    path.write_bytes(BAD_HEADERS["names twice"])
    with Container.open(path) as file, pytest.raises(FileError, match="unique"):
        _ = file.names


def test_the_forger_can_also_forge_a_good_header(path: Path) -> None:
    path.write_bytes(header())
    assert read_all(path) == ({}, {})


def test_future_version(path: Path) -> None:
    path.write_bytes(header(about={"sigmatau": "3", "checksum": "of another kind"}))
    with pytest.raises(FileError, match=r"format 3.*format 1.*upgrade sigmatau"):
        Container.open(path)


def test_other_safetensors_file(path: Path) -> None:
    save_file({"x": ONES}, path)
    with pytest.raises(FileError, match="not written by sigmatau"):
        Container.open(path)


def make_pipe(path: Path) -> None:
    os.mkfifo(path)


@pytest.mark.parametrize("make", [Path.mkdir, make_pipe, lambda p: None, lambda p: p.touch()])
def test_what_is_no_file(path: Path, make: Callable[[Path], None]) -> None:
    make(path)
    with pytest.raises(FileError, match=path.name):
        Container.open(path)


def test_path_with_a_null() -> None:
    with pytest.raises(FileError, match="check the path"):
        Container.open("a\0b")


def test_unknown_record(path: Path) -> None:
    write(path, example(), {})
    with Container.open(path) as file, pytest.raises(FileError, match="no record 'x'"):
        file.read("x")


def test_record_larger_than_memory(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(path, example(), {})

    def exhausted(data: bytes) -> Record:
        raise MemoryError

    monkeypatch.setattr(container, "load", exhausted)
    with Container.open(path) as file, pytest.raises(FileError, match="memory"):
        file.read("shared")
