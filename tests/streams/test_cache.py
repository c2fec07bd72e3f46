import logging
import os

import numpy as np
import pytest

from sigmatau.streams import cache
from sigmatau.streams.cache import Parsed, parsed


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "source"
    path.write_bytes(b"official")
    return path


@pytest.fixture
def load(tmp_path, source):
    """Call as often as wanted; `load.reads` counts how often the source was parsed."""

    def read(folder):
        assert folder == source.parent
        call.reads += 1
        return Parsed({"x": np.arange(50, dtype=np.uint8), "y": np.arange(3)}, {"classes": ["a"]})

    def call():
        got = parsed(tmp_path, "a-set", source.parent, ["sou*"], read)
        assert got["x"].tolist() == list(range(50))
        assert got["y"].tolist() == [0, 1, 2]
        assert got.meta == {"classes": ["a"]}
        return got

    call.reads = 0
    return call


def test_the_second_start_maps_and_does_not_parse(load):
    load()
    got = load()
    assert load.reads == 1
    assert isinstance(got["x"], np.memmap)
    assert not got["x"].flags.writeable


def flip_a_bit(folder):
    path = folder / "x.npy"
    content = bytearray(path.read_bytes())
    content[-7] ^= 1
    path.write_bytes(content)


def truncate(folder):
    path = folder / "x.npy"
    path.write_bytes(path.read_bytes()[:100])


@pytest.mark.parametrize(
    "damage",
    [
        flip_a_bit,
        truncate,
        lambda folder: (folder / "y.npy").write_bytes(b""),
        lambda folder: (folder / "y.npy").unlink(),
        lambda folder: (folder / "manifest.json").unlink(),
        lambda folder: (folder / "manifest.json").write_text('{"stamp": '),
        lambda folder: (folder / "manifest.json").write_text("[]"),
        lambda folder: (folder / "manifest.json").write_bytes(b"\xff\xfe"),
    ],
)
def test_a_damaged_cache_heals_itself(load, tmp_path, damage):
    load()
    damage(tmp_path / ".parsed" / "a-set")
    load()
    assert load.reads == 2
    load()
    assert load.reads == 2


def test_a_changed_source_or_a_new_version_means_parsing_again(load, source, monkeypatch):
    load()
    source.write_bytes(b"changed!")
    os.utime(source, ns=(1, 1))
    load()
    assert load.reads == 2
    monkeypatch.setattr(cache, "VERSION", cache.VERSION + 1)
    load()
    assert load.reads == 3


def test_an_interrupted_write_leaves_nothing_that_looks_whole(load, tmp_path, monkeypatch):
    write = cache.write_whole

    def stop_at_the_manifest(path, content):
        if path.name == "manifest.json":
            raise KeyboardInterrupt
        write(path, content)

    monkeypatch.setattr(cache, "write_whole", stop_at_the_manifest)
    with pytest.raises(KeyboardInterrupt):
        load()
    monkeypatch.setattr(cache, "write_whole", write)
    load()
    assert load.reads == 2


def test_a_failed_write_leaves_no_temporary_file(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space"):
        cache.write_whole(tmp_path / "a", b"content")
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_does_not_lose_what_was_parsed(load, tmp_path, monkeypatch, caplog):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    load()
    assert "could not be cached" in caplog.text
    assert not [p for p in tmp_path.rglob("*") if "npy" in p.name]


def test_a_read_only_data_folder_is_cached_elsewhere(load, tmp_path, monkeypatch, caplog):
    caplog.set_level(logging.INFO)
    elsewhere = tmp_path / "user-cache"
    monkeypatch.setattr(os, "access", lambda *_: False)
    monkeypatch.setattr(cache.pooch, "os_cache", lambda _: elsewhere)
    load()
    load()
    assert load.reads == 1
    assert not (tmp_path / ".parsed").exists()
    assert list(elsewhere.rglob("manifest.json"))
