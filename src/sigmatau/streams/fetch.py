"""Downloads that arrive whole or not at all: several addresses, resumed where they broke off.

Pooch checks the checksum and puts the file in place; the part of a file that has come so far
waits beside it and is continued, from the same or the next address.
"""

from __future__ import annotations

import logging
import os
import shutil
import tarfile
import tempfile
import time
import zipfile
from pathlib import Path
from typing import Any

import pooch
import requests
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from sigmatau.errors import FileError
from sigmatau.streams.sets import Download, ImageSet

log = logging.getLogger(__name__)


class Resuming:
    """A pooch downloader that continues a broken-off transfer instead of starting anew."""

    def __init__(
        self,
        partial: Path,
        progress: Progress | None = None,
        *,
        attempts: int = 3,
        timeout: float = 30.0,
        pause: float = 1.0,
    ) -> None:
        self.partial = partial
        self.progress = progress
        self.attempts = attempts
        self.timeout = timeout
        self.pause = pause

    def __call__(self, url: str, output_file: str, _pooch: Any) -> None:
        bar = None
        if self.progress:
            bar = self.progress.add_task(Path(url).name, total=None)
        failures, cause = 0, ""
        while True:
            before = self._here()
            try:
                self._transfer(url, bar)
                break
            except requests.HTTPError as error:
                # The server has understood and said no; asking again changes nothing.
                if error.response is None or error.response.status_code < 500:
                    raise
                failures, cause = failures + 1, f"status {error.response.status_code}"
            except requests.RequestException as error:
                # Attempts are counted from the last byte that came: a slow line may take many.
                failures = 1 if self._here() > before else failures + 1
                cause = _reason(error)
                log.info("%s broke off at byte %d (%s)", url, self._here(), error)
            if failures >= self.attempts:
                raise requests.ConnectionError(f"gave up after {failures} attempts: {cause}")
            time.sleep(self.pause * 2 ** (failures - 1))
        os.replace(self.partial, output_file)

    def _here(self) -> int:
        return self.partial.stat().st_size if self.partial.exists() else 0

    def _transfer(self, url: str, bar: Any) -> None:
        start = self._here()
        # Without this, a server may send the file compressed and count other bytes than we do.
        headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={start}-"} if start else {})
        with requests.get(url, headers=headers, stream=True, timeout=self.timeout) as answer:
            if answer.status_code == requests.codes.requested_range_not_satisfiable:
                # There is nothing after what we have: either it is whole, which the checksum
                # will tell, or it is another file's.
                return
            answer.raise_for_status()
            resumed = answer.status_code == requests.codes.partial_content
            start = start if resumed else 0
            length = answer.headers.get("Content-Length")
            total = start + int(length) if length else None
            if self.progress and bar is not None:
                self.progress.update(bar, total=total, completed=start)
            with self.partial.open("ab" if resumed else "wb") as file:
                # Small pieces: the one under way when the line breaks is lost.
                for chunk in answer.iter_content(1 << 13):
                    file.write(chunk)
                    if self.progress and bar is not None:
                        self.progress.advance(bar, len(chunk))
        if total is not None and self._here() < total:
            raise requests.ConnectionError(f"{self._here()} of {total} bytes came")


def addresses(download: Download) -> tuple[str, ...]:
    """Return where to try, in order: the user's own mirror (SIGMATAU_MIRROR), then the others."""
    mirror = os.environ.get("SIGMATAU_MIRROR")
    own = (f"{mirror.rstrip('/')}/{download.file}",) if mirror else ()
    return own + download.urls


def retrieve(download: Download, root: Path, **options: Any) -> Path:
    """Fetch one file into `root` from the first address that has it, and check it."""
    target = root / download.file
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.part")
    troubles = []
    for url in addresses(download):
        # A wrong checksum after resuming may be the fault of what was there before.
        for _ in range(2):
            resumed = partial.exists()
            try:
                pooch.retrieve(
                    url,
                    known_hash=download.checksum,
                    fname=target.name,
                    path=target.parent,
                    downloader=Resuming(partial, **options),
                )
                return target
            except ValueError as error:
                troubles.append(f"{url}: {_short(error)}")
                if not resumed:
                    break
            except (requests.RequestException, OSError) as error:
                troubles.append(f"{url}: {_short(error)}")
                break
    listed = "\n  ".join(troubles)
    raise FileError(
        f"{download.file} could not be fetched:\n  {listed}\n"
        f"Put it into {target.parent} yourself, or set SIGMATAU_MIRROR to a copy of the data "
        f"folder that has {download.file}. What has come so far is kept and will be continued."
    )


def fetch(images: ImageSet, root: Path, **options: Any) -> bool:
    """Bring a set into `root` unless it is there; return whether anything was downloaded."""
    if not images.missing(root):
        return False
    if not images.downloads:
        raise FileError(f"{images.name} cannot be downloaded. {images.how_to_get}")
    root.mkdir(parents=True, exist_ok=True)
    logging.getLogger("pooch").setLevel(logging.WARNING)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns) as progress:
        for download in images.downloads:
            wanted = root / download.file
            # Files a user has put there are theirs; only archives leave no trace once unpacked.
            if download.unpack_to is None and wanted.exists():
                continue
            archive = retrieve(download, root, progress=progress, **options)
            if download.unpack_to is not None:
                unpack(archive, root / download.unpack_to)
                archive.unlink()
    if missing := images.missing(root):
        raise FileError(
            f"{images.name} was fetched, yet {', '.join(missing)} is not in {root / images.folder}"
        )
    return True


def unpack(archive: Path, into: Path) -> None:
    """Unpack a tar or zip beside `into`, then move what it held there, so no half is ever seen."""
    into.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=into, prefix=".unpacking.") as work:
        try:
            if zipfile.is_zipfile(archive):
                with zipfile.ZipFile(archive) as content:
                    content.extractall(work)
            else:
                with tarfile.open(archive) as content:
                    content.extractall(work, filter="data")
        except (tarfile.TarError, zipfile.BadZipFile, EOFError, OSError) as error:
            raise FileError(f"{archive} cannot be unpacked ({error}); is the disk full?") from error
        _merge(Path(work), into)


def _merge(source: Path, target: Path) -> None:
    for entry in source.iterdir():
        there = target / entry.name
        if entry.is_dir() and there.is_dir():
            _merge(entry, there)
        else:
            shutil.move(entry, there)


def _short(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def _reason(error: requests.RequestException) -> str:
    """Return why a transfer failed in a few words, without the library's own wrapping."""
    inner: BaseException = error
    while (below := inner.__cause__ or inner.__context__) is not None:
        inner = below
    return str(inner) or type(inner).__name__
