"""The file: what goes in comes out."""

import errno
import json
import os
import resource
import signal
import threading
import time
from collections.abc import Iterator
from math import lgamma, log
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load

from sigmatau.core.container import MAX_HEADER, Container, RawRecord, Record, pack, size, write
from sigmatau.core.sparse import Sparse
from sigmatau.errors import FileError

from .records import example, outcome, read_all, same, sparse

DTYPES = [
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
    *(torch.uint16, torch.uint32, torch.uint64, torch.complex64),
]


# ---- round trips


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor | Sparse:
    shape = draw(st.lists(st.integers(0, 5), max_size=4))
    dtype = draw(st.sampled_from(DTYPES))
    entries = torch.Size(shape).numel()
    if draw(st.booleans()):
        indices = draw(st.sets(st.integers(0, entries - 1))) if entries else set()
        index = torch.tensor(sorted(indices), dtype=torch.int32)
        return Sparse(index, noise(draw, len(index), dtype), tuple(shape))
    return noise(draw, entries, dtype).view(shape)


def noise(draw: st.DrawFn, count: int, dtype: torch.dtype) -> torch.Tensor:
    width = torch.empty(0, dtype=dtype).element_size()
    data = draw(st.binary(min_size=count * width, max_size=count * width))
    top = 1 if dtype == torch.bool else 255  # every bit pattern, nan included
    return torch.tensor([byte & top for byte in data], dtype=torch.uint8).view(dtype)


JSONS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.dictionaries(st.text(), st.dictionaries(st.text(), tensors(), max_size=4), max_size=4),
    st.dictionaries(st.text(), JSONS, max_size=3),
)
def test_round_trip(
    path: Path, records: dict[str, dict[str, torch.Tensor | Sparse]], meta: dict[str, Any]
) -> None:
    assert write(path, records, meta) == path.stat().st_size == size(records, meta)
    with Container.open(path) as file:
        assert file.meta == meta
        assert file.names == list(records)
        for name, record in records.items():
            assert same(file.read(name), record)


@pytest.mark.parametrize("name", ["", "__metadata__", "list", "a/b\\c\0", "\ud800", "layout"])
def test_any_text_is_a_name(path: Path, name: str) -> None:
    write(path, {name: {name: torch.ones(2)}}, {name: name})
    meta, records = read_all(path)
    assert meta == {name: name}
    assert records[name][name].tolist() == [1, 1]


def test_tensors_that_are_views_or_carry_gradients(path: Path) -> None:
    base = torch.arange(6.0).view(2, 3).requires_grad_()
    nothing = torch.from_numpy(np.empty(0, np.float32))  # torch gives this one a stride of 0
    record = {"t": base.t(), "base": base, "row": base[0].expand(2, 3), "nothing": nothing}
    write(path, {"r": record}, {})
    record = read_all(path)[1]["r"]
    assert record["nothing"].shape == (0,)
    assert torch.equal(record["t"], base.t())
    assert torch.equal(record["row"], base[0].expand(2, 3))


def test_sparse_tensors_of_mixed_types_keep_their_own_indices(path: Path) -> None:
    def one(at: int, dtype: torch.dtype) -> Sparse:
        return Sparse(torch.tensor([at], dtype=torch.int32), torch.ones(1, dtype=dtype), (9,))

    kinds = [torch.float32, torch.float64, torch.float32, torch.float16, torch.float64]
    record: Record = {f"{i}": one(i, dtype) for i, dtype in enumerate(kinds)}
    write(path, {"r": record}, {})
    assert same(read_all(path)[1]["r"], record)


def test_the_same_content_makes_the_same_bytes(path: Path, tmp_path: Path) -> None:
    write(path, example(), {"b": 1, "a": 2})
    write(tmp_path / "again", example(), {"b": 1, "a": 2})
    assert path.read_bytes() == (tmp_path / "again").read_bytes()


def test_raw_records_pass_through(path: Path, tmp_path: Path) -> None:
    write(path, example(), {"v": 1})
    with Container.open(path) as file:
        raw = {name: file.raw(name) for name in file.names}
        assert size(raw, {"v": 1}) == path.stat().st_size
        write(tmp_path / "copy", raw, {"v": 1})
        write(path, raw, {"v": 2})  # onto the very file they come from
    assert (tmp_path / "copy").read_bytes() != path.read_bytes()
    write(path, raw_of(tmp_path / "copy"), {"v": 1})
    assert (tmp_path / "copy").read_bytes() == path.read_bytes()


def raw_of(path: Path) -> dict[str, RawRecord]:
    file = Container.open(path)  # each raw record keeps it open
    return {name: file.raw(name) for name in file.names}


def test_official_reader_opens_it(path: Path) -> None:
    for records in ({}, example()):
        write(path, records, {"v": 1})
        with safe_open(path, "pt") as file:
            assert sorted(file.keys()) == ["list", "records"]
            assert file.metadata()["sigmatau"] == "1"
            names, sizes, _ = json.loads(bytes(file.get_tensor("list").tolist()))
            assert names == list(records)
            whole = bytes(file.get_tensor("records").tolist())
    assert load(whole[: sizes[0]])["int64"].tolist() == [7]


# ---- size and laziness


def bound(record: Record) -> float:
    """Bytes of information: values at 32 bits, and log2 of the number of index sets."""
    bits = 0.0
    for item in record.values():
        if isinstance(item, Sparse):
            n, k = item.size, item.nnz
            bits += 32 * k + (lgamma(n + 1) - lgamma(k + 1) - lgamma(n - k + 1)) / log(2)
        else:
            bits += 32 * item.numel()
    return bits / 8


@pytest.mark.parametrize("density", [1e-5, 1e-4, 1e-3, 0.01, 0.1, 0.5, 1.0])
def test_file_is_close_to_the_information_bound(density: float) -> None:
    shapes = {f"layer{i}.weight": (64 * 2**i, 32 * 2**i, 3, 3) for i in range(4)}
    shared: Record = {name: torch.ones(shape) for name, shape in shapes.items()}
    task: Record = {n: sparse(s, density, seed) for seed, (n, s) in enumerate(shapes.items())}
    tasks: dict[str, Record | RawRecord] = {f"task {i}": pack(task) for i in range(100)}
    alone = size(tasks, {}) / (100 * bound(task))
    whole = size(tasks | {"shared": shared}, {}) / (100 * bound(task) + bound(shared))
    print(f"density {density}: whole file {whole:.4f} of the bound, tasks alone {alone:.4f}")
    assert whole <= 1.035
    # Names and checksums cost some 500 bytes a task, which a task of few numbers cannot hide.
    assert density < 1e-3 or alone <= 1.1


def test_a_small_network_stays_within_the_bound_too() -> None:
    task: Record = {"fc1": sparse((100, 784), 0.01), "fc2": sparse((100, 100), 0.01, 1)}
    task |= {"mask1": torch.ones(100), "mask2": torch.ones(100), "head": torch.ones(10, 100)}
    assert size({f"task {i}": pack(task) for i in range(100)}, {}) <= 1.15 * 100 * bound(task)


def test_opening_reads_the_header_alone(path: Path, reads: list[int]) -> None:
    record = pack({"w": torch.randn(1000)})
    cost = []
    for count in (10, 1000):
        write(path, {f"task {i}": record for i in range(count)}, {"v": 1})
        times = []
        for _ in range(20):
            start = time.perf_counter()
            Container.open(path).close()
            times.append(time.perf_counter() - start)
        print(f"{count} records open in {min(times) * 1e6:.0f} us")
        reads.clear()
        with Container.open(path) as file:
            cost.append(sum(reads))
            file.read("task 7")
            reads.clear()
            file.read("task 3")
            assert reads == [record.size]
    assert cost[1] <= cost[0] + 16  # longer numbers, and padding


# ---- writing whole or not at all


@pytest.fixture
def old(path: Path) -> Iterator[Path]:
    """A file that must still be there, alone and unchanged, after a write that failed."""
    write(path, example(), {"v": "old"})
    before = path.read_bytes()
    yield path
    assert path.read_bytes() == before
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def failing(error: BaseException) -> RawRecord:
    def read() -> bytes:
        raise error

    return RawRecord(10, "0" * 32, read)


def test_interrupted_write_leaves_the_old_file(old: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        write(old, {"a": {"x": torch.ones(9999)}, "b": failing(KeyboardInterrupt())}, {})


def test_killed_write_leaves_the_old_file(path: Path) -> None:
    write(path, example(), {"v": 1})
    child = os.fork()
    if not child:
        kill = RawRecord(10, "0" * 32, lambda: os.kill(os.getpid(), signal.SIGKILL) or b"")
        write(path, {"a": {"x": torch.ones(9999)}, "b": kill}, {})
        os._exit(0)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    assert not outcome(path, example())


def test_disk_full_leaves_the_old_file(old: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    try:
        with pytest.raises(FileError, match=r"untouched.* 40[0-9],[0-9]+ bytes free"):
            write(old, {"a": {"x": torch.ones(100_000)}}, {})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_failed_sync_leaves_the_old_file(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(FileError, match="No space left"):
        write(old, {"a": {"x": torch.ones(3)}}, {})


def test_damaged_source_leaves_the_old_file(old: Path) -> None:
    source = old.parent / "source"
    write(source, example(), {})
    with source.open("r+b") as file:
        file.seek(-3, os.SEEK_END)
        file.write(b"\xff\xff\xff")
    with pytest.raises(FileError, match=r"source: record .* checksum"):
        write(old, raw_of(source), {})
    source.unlink()


@pytest.mark.parametrize(
    ("record", "problem"),
    [
        ({"x": torch.zeros(2, dtype=torch.complex128)}, "complex128"),
        ({"x": Sparse(torch.tensor([1, 0]), torch.ones(2), (3,))}, "increasing"),
        ({"x": Sparse(torch.tensor([1]), torch.ones(2), (3,))}, "one value"),
        ({"x": Sparse(torch.tensor([1]), torch.ones(1), (2**41,))}, "2\\*\\*40"),
        ({"x": Sparse(torch.tensor([1]), torch.ones(1), (1,) * 65)}, "dimensions"),
        ({"x" * (MAX_HEADER + 1): torch.ones(1)}, "names and metadata"),
    ],
)
def test_what_cannot_be_stored_is_refused_first(old: Path, record: Record, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        write(old, {"a": record}, {})


@pytest.mark.parametrize("meta", [{"x": float("nan")}, {"x": float("inf")}])
def test_meta_must_be_json(old: Path, meta: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="JSON"):
        write(old, {}, meta)


def test_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="folder"):
        write(tmp_path / "none" / "model", {}, {})


def test_writing_keeps_links_and_permissions(path: Path, tmp_path: Path) -> None:
    write(path, {}, {"v": 1})
    path.chmod(0o640)
    link = tmp_path / "link"
    link.symlink_to(path.name)
    write(link, {}, {"v": 2})
    assert link.is_symlink()
    assert path.stat().st_mode & 0o777 == 0o640
    assert read_all(path)[0] == {"v": 2}


# ---- reading while others write


def test_replaced_file_is_still_read_as_it_was(path: Path) -> None:
    write(path, example(), {"v": 1})
    with Container.open(path) as file:
        write(path, {"other": {"x": torch.zeros(5)}}, {"v": 2})
        path.unlink()
        assert same(file.read("shared"), example()["shared"])


def test_threads_read_at_once(path: Path) -> None:
    records: dict[str, Record] = {f"{i}": {"w": torch.full((5000,), i)} for i in range(20)}
    write(path, records, {})
    wrong = []
    with Container.open(path) as file:

        def work() -> None:
            wrong.extend(n for n in records if not (file.read(n)["w"] == int(n)).all())

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not wrong


def test_closed_container_says_so(path: Path) -> None:
    write(path, example(), {})
    file = Container.open(path)
    raw = file.raw("shared")
    file.close()
    file.close()
    with pytest.raises(FileError, match="closed"):
        file.read("shared")
    with pytest.raises(FileError, match="closed"):
        raw.read()


def test_forgotten_container_gives_its_handle_back(path: Path) -> None:
    write(path, example(), {})
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        Container.open(path).read("shared")
    assert len(os.listdir("/proc/self/fd")) == before
