"""Downloads against a server that breaks off, lies, dawdles, stalls and refuses."""

import hashlib
import io
import tarfile
import threading
import time
import zipfile
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sigmatau.cli import app
from sigmatau.errors import FileError
from sigmatau.streams.cache import Parsed
from sigmatau.streams.fetch import addresses, fetch, retrieve, unpack
from sigmatau.streams.sets import SETS, Download, ImageSet

BODY = bytes(range(256)) * 1000
SHA256 = "sha256:" + hashlib.sha256(BODY).hexdigest()
QUICK = {"pause": 0.01, "timeout": 0.5}


class Server(BaseHTTPRequestHandler):
    """The path says how to misbehave; `requests` records the path and range of each call."""

    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.server.requests.append((self.path, self.headers.get("Range")))
        kind = self.path.split("/")[1]
        body = self.server.files.get(self.path, BODY)
        start = 0
        if (asked := self.headers.get("Range")) and kind != "no-ranges":
            start = int(asked.removeprefix("bytes=").rstrip("-"))
        if kind == "gone":
            return self.send_error(404)
        if kind == "busy" and len(self.server.requests) < 3:
            return self.send_error(503)
        if start >= len(body):
            return self.send_error(416)
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(body) - start))
        self.end_headers()
        content = body[start:]
        if kind == "lies":
            content = bytes(len(content))
        if kind in ("breaks", "no-ranges") and len(self.server.requests) < 3:
            self.wfile.write(content[: len(content) // 3])
            self.close_connection = True
            return None
        if kind == "stalls":
            self.wfile.write(content[:16384])
            self.wfile.flush()
            self.server.hold.wait(5)
            self.close_connection = True
            return None
        if kind == "slow":
            for i in range(0, len(content), len(content) // 8):
                self.wfile.write(content[i : i + len(content) // 8])
                self.wfile.flush()
                time.sleep(0.1)  # in all longer than the timeout, which is for silence
            return None
        self.wfile.write(content)
        return None

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Server)
    httpd.requests, httpd.files, httpd.hold = [], {}, threading.Event()
    httpd.url = f"http://127.0.0.1:{httpd.server_port}"
    thread = threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield httpd
    httpd.hold.set()
    httpd.shutdown()
    thread.join()
    httpd.server_close()


@pytest.fixture(autouse=True)
def no_mirror(monkeypatch):
    monkeypatch.delenv("SIGMATAU_MIRROR", raising=False)


def download(server, *kinds: str, checksum: str = SHA256) -> Download:
    return Download(
        "sub/file.bin", tuple(f"{server.url}/{kind}/file.bin" for kind in kinds), checksum
    )


def partial_file(root: Path) -> Path:
    return root / "sub" / ".file.bin.part"


def leftovers(root: Path) -> list[str]:
    return sorted(p.name for p in root.rglob("*") if p.is_file() and p.name != "file.bin")


def test_a_download_that_breaks_off_is_continued_where_it_stopped(server, tmp_path):
    path = retrieve(download(server, "breaks"), tmp_path, **QUICK)
    assert path.read_bytes() == BODY
    first, *later = (asked for _, asked in server.requests)
    starts = [int(asked.removeprefix("bytes=").rstrip("-")) for asked in later]
    assert first is None
    # At most the last piece of 8 KiB under way is lost.
    third = len(BODY) // 3
    assert third - 8192 <= starts[0] <= third
    assert starts[0] < starts[1] <= starts[0] + (len(BODY) - starts[0]) // 3
    assert leftovers(tmp_path) == []


def test_a_server_without_ranges_is_started_anew(server, tmp_path):
    assert retrieve(download(server, "no-ranges"), tmp_path, **QUICK).read_bytes() == BODY


def test_what_an_earlier_run_left_is_continued(server, tmp_path):
    partial_file(tmp_path).parent.mkdir()
    partial_file(tmp_path).write_bytes(BODY[:5000])
    assert retrieve(download(server, "good"), tmp_path, **QUICK).read_bytes() == BODY
    assert server.requests == [("/good/file.bin", "bytes=5000-")]


@pytest.mark.parametrize("left", [bytes(5000), BODY + b"!", bytes(len(BODY))])
def test_a_spoilt_leftover_costs_one_more_attempt_and_not_the_file(server, tmp_path, left):
    partial_file(tmp_path).parent.mkdir()
    partial_file(tmp_path).write_bytes(left)
    assert retrieve(download(server, "good"), tmp_path, **QUICK).read_bytes() == BODY
    assert server.requests[-1] == ("/good/file.bin", None)


def test_a_lying_mirror_is_passed_over(server, tmp_path):
    path = retrieve(download(server, "lies", "good"), tmp_path, **QUICK)
    assert path.read_bytes() == BODY
    assert leftovers(tmp_path) == []


def test_nothing_is_left_of_a_lie(server, tmp_path):
    with pytest.raises(FileError) as caught:
        retrieve(download(server, "lies"), tmp_path, **QUICK)
    assert "hash" in str(caught.value)
    assert "SIGMATAU_MIRROR" in str(caught.value)
    assert [p for p in tmp_path.rglob("*") if p.is_file()] == []


def test_an_md5_guards_as_well(server, tmp_path):
    md5 = "md5:" + hashlib.md5(BODY).hexdigest()
    assert retrieve(download(server, "good", checksum=md5), tmp_path, **QUICK).exists()
    with pytest.raises(FileError, match="hash"):
        retrieve(download(server, "lies", checksum=md5), tmp_path / "b", **QUICK)


def test_a_slow_server_is_waited_for(server, tmp_path):
    assert retrieve(download(server, "slow"), tmp_path, **QUICK).read_bytes() == BODY
    assert len(server.requests) == 1


def test_a_server_that_stalls_is_left_for_the_next_and_its_bytes_are_kept(server, tmp_path):
    quick = {**QUICK, "attempts": 1}
    path = retrieve(download(server, "stalls", "good"), tmp_path, **quick)
    assert path.read_bytes() == BODY
    assert server.requests[-1] == ("/good/file.bin", "bytes=16384-")


def test_a_busy_server_is_asked_again_and_a_missing_file_is_not(server, tmp_path):
    assert retrieve(download(server, "busy"), tmp_path, **QUICK).exists()
    server.requests.clear()
    with pytest.raises(FileError, match="404"):
        retrieve(download(server, "gone"), tmp_path / "b", **QUICK)
    assert len(server.requests) == 1


def test_the_users_own_mirror_comes_first(server, tmp_path, monkeypatch):
    monkeypatch.setenv("SIGMATAU_MIRROR", f"{server.url}/mine/")
    wanted = download(server, "good")
    assert addresses(wanted) == (f"{server.url}/mine/sub/file.bin", *wanted.urls)
    retrieve(wanted, tmp_path, **QUICK)
    assert server.requests == [("/mine/sub/file.bin", None)]


def test_offline_every_file_and_its_place_are_named(tmp_path):
    nowhere = Download("sub/file.bin", ("http://127.0.0.1:9/file.bin",), SHA256)
    with pytest.raises(FileError) as caught:
        retrieve(nowhere, tmp_path, attempts=2, **QUICK)
    for part in ("sub/file.bin", "http://127.0.0.1:9/file.bin", str(tmp_path / "sub")):
        assert part in str(caught.value)


def tar_of(**files: bytes) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name.replace("__", "/"))
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return out.getvalue()


def zip_of(**files: bytes) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, content in files.items():
            archive.writestr(name.replace("__", "/"), content)
    return out.getvalue()


def image_set(server, tmp_path, archives: dict[str, bytes], files: tuple[str, ...]) -> ImageSet:
    downloads = []
    for name, content in archives.items():
        server.files[f"/good/{name}"] = content
        checksum = "sha256:" + hashlib.sha256(content).hexdigest()
        downloads.append(Download(name, (f"{server.url}/good/{name}",), checksum, unpack_to=""))
    return ImageSet("a-set", "set", files, partial(Parsed, {}), tuple(downloads))


def test_a_set_is_fetched_unpacked_and_then_left_alone(server, tmp_path):
    archives = {"a.tar.gz": tar_of(set__one=b"1"), "b.zip": zip_of(set__two=b"2")}
    images = image_set(server, tmp_path, archives, ("one", "two"))
    assert fetch(images, tmp_path, **QUICK)
    assert (tmp_path / "set" / "one").read_bytes() == b"1"
    assert (tmp_path / "set" / "two").read_bytes() == b"2"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["set"]
    server.requests.clear()
    assert not fetch(images, tmp_path, **QUICK)
    assert server.requests == []


def test_the_command_fetches_a_set(server, tmp_path, monkeypatch):
    images = image_set(server, tmp_path, {"a.tar.gz": tar_of(set__one=b"1")}, ("one",))
    monkeypatch.setitem(SETS, "a-set", images)
    result = CliRunner().invoke(app, ["data", "fetch", "a-set", "--root", str(tmp_path)])
    assert "a-set: fetched into" in result.output
    assert (tmp_path / "set" / "one").read_bytes() == b"1"


def test_files_a_user_has_put_there_are_not_replaced(server, tmp_path):
    wanted = tuple(
        Download(f"set/{n}", (f"{server.url}/good/{n}",), SHA256) for n in ("mine", "other")
    )
    images = ImageSet("a-set", "set", ("mine", "other"), partial(Parsed, {}), wanted)
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "mine").write_bytes(b"my own")
    assert fetch(images, tmp_path, **QUICK)
    assert (tmp_path / "set" / "mine").read_bytes() == b"my own"
    assert (tmp_path / "set" / "other").read_bytes() == BODY


def test_an_archive_without_the_files_or_that_climbs_out_is_refused(server, tmp_path):
    images = image_set(server, tmp_path, {"a.tar.gz": tar_of(set__other=b"1")}, ("one",))
    with pytest.raises(FileError, match="one is not in"):
        fetch(images, tmp_path, **QUICK)
    (tmp_path / "evil.tar").write_bytes(tar_of(**{"..__..__evil": b"1"}))
    with pytest.raises(FileError, match="cannot be unpacked"):
        unpack(tmp_path / "evil.tar", tmp_path / "inner" / "most")
    assert not list(tmp_path.rglob("evil"))


def test_a_set_nobody_can_download_says_what_to_do(tmp_path):
    with pytest.raises(FileError, match="facescrub/PERSON"):
        fetch(SETS["facescrub"], tmp_path)


@pytest.mark.parametrize("name", [n for n, s in SETS.items() if s.downloads])
def test_every_download_has_a_proper_address_and_checksum(name):
    for wanted in SETS[name].downloads:
        kind, _, digest = wanted.checksum.partition(":")
        assert len(bytes.fromhex(digest)) == {"sha256": 32, "md5": 16}[kind]
        assert all(
            url.startswith("http") and url.endswith(Path(wanted.file).name) for url in wanted.urls
        )


def test_giving_up_says_why() -> None:
    import requests

    from sigmatau.streams.fetch import _reason

    with pytest.raises(requests.ConnectionError) as caught:
        requests.get("http://127.0.0.1:9/nothing", timeout=1)
    assert "refused" in _reason(caught.value).lower()
