"""One file holding many records, each read, checked and decoded only when it is asked for.

Outside it is a safetensors file of two tensors: the list of records, and the records end to end.
Opening reads the header alone, the list is read when the first record is asked for, so a file opens
as fast with a thousand tasks as with ten. A record, such as the shared part or a task, is a small
safetensors file of its own. The layout is told byte by byte in docs/file-format.md.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import secrets
import stat
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from math import prod
from typing import Any, TypeAlias

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from sigmatau.core.codec import MAX_SIZE, Bytes, decode_indices, encode_indices
from sigmatau.core.sparse import Sparse
from sigmatau.errors import FileError

FORMAT_VERSION = 1
MAX_HEADER = 2**24
"""The most bytes of JSON parsed at once: room for 200,000 records, and little for an attack."""
MAX_DIMS = 64
"""The most dimensions of a tensor, which are also the most that torch allows."""

JSON: TypeAlias = "bool | int | float | str | list[JSON] | dict[str, JSON] | None"
Record: TypeAlias = dict[str, Tensor | Sparse]
Path: TypeAlias = str | os.PathLike[str]

_DIGEST = 32  # hexadecimal digits, 128 bits


@dataclass(frozen=True, slots=True)
class RawRecord:
    """A record as the bytes it has in a file, fetched (and checked) when `read` is called."""

    size: int
    digest: str
    read: Callable[[], bytes]


def pack(record: Mapping[str, Tensor | Sparse]) -> RawRecord:
    """Encode a record. Raises ValueError for what a file cannot hold."""
    layout: dict[str, list[Any]] = {}
    numbers: dict[str, list[Tensor]] = {}
    blobs: dict[str, list[Bytes]] = {}  # by type as well: a reader goes through the layout in order
    for name, item in record.items():
        values = item.values if isinstance(item, Sparse) else item
        dtype = str(values.dtype).removeprefix("torch.")
        row: list[Any] = [name, _shape(list(item.shape))]
        if isinstance(item, Sparse):
            if item.indices.shape != (values.numel(),):
                raise ValueError(f"{name!r} must have one value for each of its indices")
            blob = encode_indices(item.indices.cpu().numpy(), item.size)
            blobs.setdefault(dtype, []).append(blob)
            row += [values.numel(), blob.size]
        layout.setdefault(dtype, []).append(row)
        numbers.setdefault(dtype, []).append(values.detach().cpu().contiguous().reshape(-1))
    ordered = [blob for dtype in layout for blob in blobs.get(dtype, [])]
    tensors = {
        "layout": torch.frombuffer(bytearray(_dump(layout), "ascii"), dtype=torch.uint8),
        "index": torch.from_numpy(np.concatenate([np.empty(0, np.uint8), *ordered])),
    }
    try:
        # Joined as bytes, since torch can neither join all types nor view all empty tensors.
        for dtype, parts in numbers.items():
            full = [p.view(torch.uint8) for p in parts if p.numel()]
            joined = torch.cat([torch.empty(0, dtype=torch.uint8), *full])
            tensors[dtype] = joined.view(parts[0].dtype)
        data = save(tensors)
    except (KeyError, RuntimeError, SafetensorError) as err:
        raise ValueError(f"safetensors cannot hold one of {', '.join(numbers)}: {err}") from err
    return RawRecord(len(data), _digest(data), lambda: data)


def unpack(data: bytes) -> Record:
    """Decode what `pack` made. Raises FileError for anything else."""
    with _blaming("a record"):
        return _unpack(data)


def _unpack(data: bytes) -> Record:
    tensors = load(data)
    layout = _parse(tensors.pop("layout").numpy().tobytes())
    index = tensors.pop("index").numpy()
    record: Record = {}
    for dtype, rows in layout.items():
        flat = tensors.pop(dtype)
        if flat.dim() != 1 or str(flat.dtype) != f"torch.{dtype}":
            raise FileError(f"its {dtype} numbers are not what they say")
        for name, dims, *coded in rows:
            shape, numel = _shape(dims), prod(dims)
            count, length = _sizes(coded) if coded else (numel, 0)
            if name in record or not isinstance(name, str):
                raise FileError(f"a tensor has the name {name!r}, or two have")
            if count > len(flat) or length > len(index):
                raise FileError(f"{name!r} is longer than the record")
            values, flat = flat[:count], flat[count:]
            if coded:
                indices = torch.from_numpy(decode_indices(index[:length], count, numel))
                index = index[length:]
                record[name] = Sparse(indices, values, tuple(shape))
            else:
                record[name] = values.view(shape)
        if len(flat):
            raise FileError(f"it holds {dtype} numbers of no tensor")
    if tensors or len(index):
        raise FileError("it holds more than its tensors need")
    return record


def size(records: Mapping[str, Record | RawRecord], meta: Mapping[str, JSON]) -> int:
    """Return how many bytes `write` would write. Records that are packed already cost nothing."""
    raw = _packed(records)
    return len(_header(raw, meta)) + sum(r.size for r in raw.values())


def write(path: Path, records: Mapping[str, Record | RawRecord], meta: Mapping[str, JSON]) -> int:
    """Write the file whole or not at all, and return its size in bytes.

    What was at `path` stays as it is until the new file is complete and on the disk.
    """
    raw = _packed(records)
    header = _header(raw, meta)
    total = len(header) + sum(r.size for r in raw.values())
    target = os.path.realpath(path)  # a link keeps pointing to the file, which is replaced
    folder = os.path.dirname(target)
    temporary = os.path.join(folder, f".sigmatau-{secrets.token_hex(8)}.tmp")
    try:
        with open(temporary, "xb") as file:
            with contextlib.suppress(FileNotFoundError):
                os.fchmod(file.fileno(), stat.S_IMODE(os.stat(target).st_mode))
            file.write(header)
            for record in raw.values():
                file.write(record.read())
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException as err:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        if isinstance(err, FileError) or not isinstance(err, OSError):
            raise
        raise FileError(
            f"{os.fspath(path)} was not written ({err.strerror}), and what was there is untouched; "
            f"make sure that its folder is there, may be written to and has {total:,} bytes free"
        ) from err
    # Makes the new name outlive a power cut. Not every file system can sync a folder; the file is
    # complete and in its place by now, so a refusal is no failure.
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    return total


class Container:
    """A file open for reading, from any number of threads.

    It holds on to the very file it opened: a later `write` to the same path makes a new file, and
    this one stays readable, whole and unchanged, until it is closed.
    """

    meta: dict[str, Any]
    """What the writer said of the file as a whole."""

    device: torch.device | str = "cpu"
    """Where tensors are read to."""

    def __init__(self, path: Path) -> None:
        self.path = os.fspath(path)
        try:
            # Without O_NONBLOCK, opening a pipe would wait for a writer that may never come.
            self._fd = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK)
        except (OSError, ValueError) as err:
            raise FileError(f"cannot open the file: {err}; check the path") from err
        # Closes the file on close(), or when the last user of this object is gone.
        self._close = weakref.finalize(self, os.close, self._fd)
        try:
            self._open()
        except BaseException:
            self.close()
            raise

    @classmethod
    def open(cls, path: Path) -> Container:
        """Read the header of a file, and nothing else."""
        return cls(path)

    @property
    def names(self) -> list[str]:
        """Return the names of the records in the order they were written."""
        return list(self._where)

    def read(self, name: str) -> Record:
        """Read, check and decode one record. Its tensors of one type share their memory."""
        data = self._bytes(name)
        with _blaming(f"{self.path}: record {name!r}"):
            record = _unpack(data)
        return {name: item.to(self.device) for name, item in record.items()}

    def raw(self, name: str) -> RawRecord:
        """Return a record that can be written again as it is, while this container is open."""
        _, length, digest = self._find(name)
        return RawRecord(length, digest, lambda: self._bytes(name))

    def close(self) -> None:
        self._close()

    def __enter__(self) -> Container:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(self) -> None:
        status = os.fstat(self._fd)
        if not stat.S_ISREG(status.st_mode):
            raise FileError(f"{self.path} is not a file; check the path")
        with _blaming(f"{self.path}: the header"):
            data = 8 + int.from_bytes(self._pread(8, 0), "little")
            if data > min(status.st_size, 8 + MAX_HEADER):
                raise FileError("the file is cut off, or is no safetensors file")
            header = _parse(self._pread(data - 8, 8))
            about = header.pop("__metadata__", {})
            version = int(about.get("sigmatau", 0))
        if not version:
            raise FileError(f"{self.path} was not written by sigmatau; check the path")
        if version != FORMAT_VERSION:
            raise FileError(
                f"{self.path} is of format {version}, and this sigmatau reads format "
                f"{FORMAT_VERSION}; upgrade sigmatau"
            )
        with _blaming(f"{self.path}: the header"):
            if about["checksum"] != _digest(about["content"].encode()):
                raise FileError("its checksum does not match")
            content = _parse(about["content"].encode())
            self.meta, self._list_digest = content["meta"], content["digest"]
            self._list_size, self._total = _sizes([content["list"], content["records"]])
            self._list_at = data
            if header != _entries(self._list_size, self._total) or not isinstance(self.meta, dict):
                raise FileError("it contradicts itself")
            if status.st_size != (whole := data + self._list_size + self._total):
                raise FileError(f"the file has {status.st_size:,} bytes, and should have {whole:,}")

    @cached_property
    def _where(self) -> dict[str, tuple[int, int, str]]:
        """The start, length and digest of each record."""
        with _blaming(f"{self.path}: the list of records"):
            data = self._checked(self._list_at, self._list_size, self._list_digest)
            names, sizes, digests = _parse(data)
            if sum(_sizes(sizes)) != self._total:
                raise FileError("its records do not fill the file")
            starts = accumulate(sizes, initial=self._list_at + self._list_size)
            where = dict(zip(names, zip(starts, sizes, digests, strict=False), strict=True))
            if len(where) != len(names) or not all(isinstance(n, str) for n in names):
                raise FileError("its names are not unique texts")
            return where

    def _find(self, name: str) -> tuple[int, int, str]:
        if name not in self._where:
            raise FileError(f"{self.path} holds no record {name!r}; restore it from a copy")
        return self._where[name]

    def _bytes(self, name: str) -> bytes:
        start, length, digest = self._find(name)
        with _blaming(f"{self.path}: record {name!r}"):
            return self._checked(start, length, digest)

    def _checked(self, start: int, length: int, digest: str) -> bytes:
        data = self._pread(length, start)
        if _digest(data) != digest:
            raise FileError("its checksum does not match")
        return data

    def _pread(self, length: int, start: int) -> bytes:
        """Read at a place, so that threads share no position."""
        if not self._close.alive:
            raise FileError("the container was closed")
        parts = []
        while length:  # one call reads 2 GiB at most
            part = os.pread(self._fd, length, start)
            if not part:
                raise FileError("the file is cut off")
            parts.append(part)
            start, length = start + len(part), length - len(part)
        return b"".join(parts)


@contextlib.contextmanager
def _blaming(part: str) -> Iterator[None]:
    """Turn whatever a damaged or hostile part sets off into one error that says what to do."""
    try:
        yield
    except MemoryError as err:
        raise FileError(f"{part} is larger than the memory") from err
    except Exception as err:
        why = str(err)[:200]  # it may quote the file
        raise FileError(f"{part} is damaged ({why}); restore the file from a copy") from err


def _packed(records: Mapping[str, Record | RawRecord]) -> dict[str, RawRecord]:
    return {n: r if isinstance(r, RawRecord) else pack(r) for n, r in records.items()}


def _header(records: Mapping[str, RawRecord], meta: Mapping[str, JSON]) -> bytes:
    """Return all that comes before the records."""
    sizes = [r.size for r in records.values()]
    listed = _dump([list(records), sizes, [r.digest for r in records.values()]]).encode()
    content = _dump(
        {
            "list": len(listed),
            "digest": _digest(listed),
            "records": sum(sizes),
            "meta": dict(meta),
        }
    )
    about = {
        "sigmatau": str(FORMAT_VERSION),
        "checksum": _digest(content.encode()),
        "content": content,
    }
    text = _dump({"__metadata__": about} | _entries(len(listed), sum(sizes))).encode()
    text += b" " * (-len(text) % 8)  # safetensors wants its data to begin at a multiple of 8
    return len(text).to_bytes(8, "little") + text + listed


def _entries(listed: int, records: int) -> dict[str, Any]:
    """Return what a safetensors header says of the two tensors."""
    end = listed + records
    return {
        "list": {"dtype": "U8", "shape": [listed], "data_offsets": [0, listed]},
        "records": {"dtype": "U8", "shape": [records], "data_offsets": [listed, end]},
    }


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:_DIGEST]


def _sizes(sizes: list[Any]) -> list[int]:
    if not all(type(n) is int and 0 <= n <= MAX_SIZE for n in sizes):
        raise ValueError("a length is not a whole number from 0 to 2**40")
    return sizes


def _shape(shape: list[Any]) -> list[int]:
    # Counting zeros as ones: torch cannot even describe an empty tensor of [0, 2**40, 2**40].
    if len(shape) > MAX_DIMS or prod(max(n, 1) for n in _sizes(shape)) > MAX_SIZE:
        raise ValueError(f"a tensor has over 2**40 numbers or {MAX_DIMS} dimensions")
    return shape


def _dump(value: object) -> str:
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    if len(text) > MAX_HEADER:
        raise ValueError(f"names and metadata take {len(text):,} bytes, over {MAX_HEADER:,}")
    return text


def _parse(data: bytes) -> Any:
    """Parse JSON that has one meaning: no key twice, no number that is none."""
    if len(data) > MAX_HEADER:
        raise ValueError("its JSON is too long")
    return json.loads(
        data.decode(), object_pairs_hook=_unique, parse_float=_finite, parse_constant=_finite
    )


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(found := dict(pairs)) != len(pairs):
        raise ValueError("a key is there twice")
    return found


def _finite(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError(f"{text} is not a number")
    return number
