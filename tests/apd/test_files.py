"""A network of APD in a file of ours, as a plain module, as ONNX."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import sigmatau
from sigmatau.errors import FileError

from ..conftest import blobs, small_conv, small_mlp
from .made import IMAGE, QUICK, learnt


def test_an_exported_module_is_plain_and_predicts_the_same() -> None:
    net = learnt("a", "b", consolidate_every=2)
    x = blobs(5)[0]
    module = net.export("a")
    assert type(module) is nn.Sequential
    assert torch.allclose(module(x), net.predict("a", x), atol=1e-5)
    net.predict("b", x)
    assert torch.allclose(module(x), net.predict("a", x), atol=1e-5)
    module.train()
    F.cross_entropy(module(x), blobs(5)[1]).backward()  # it can be trained on


def test_onnx_gives_the_tasks_predictions(tmp_path) -> None:
    import onnxruntime

    net = sigmatau.APDNet(small_conv(), **QUICK)
    net.learn("a", blobs(1, shape=IMAGE))
    net.learn("b", blobs(2, shape=IMAGE))
    x = blobs(5, shape=IMAGE)[0]
    net.export_onnx("b", tmp_path / "b.onnx", x[:1])
    session = onnxruntime.InferenceSession(tmp_path / "b.onnx")
    for rows in (1, 60):
        (out,) = session.run(None, {"input": x[:rows].numpy()})
        assert np.abs(out - net.predict("b", x[:rows]).numpy()).max() < 1e-5
    assert [p.name for p in tmp_path.iterdir()] == ["b.onnx"]


def test_a_file_reads_only_what_is_used(tmp_path) -> None:
    learnt("a", "b", "c").save(tmp_path / "net.st")
    net = sigmatau.load(tmp_path / "net.st", small_mlp())
    assert not net._held.loaded
    net.predict("b", blobs(5)[0])
    loaded = [name for name, part in net._memory.state.tasks.items() if part.loaded]
    assert loaded == ["b"]
    net.save(tmp_path / "net.st")  # over the very file that tasks are still read from
    assert net.predict("a", blobs(5)[0]).shape == (60, 3)


def test_files_of_another_network_or_method_are_refused(tmp_path) -> None:
    path = tmp_path / "net.st"
    learnt("a").save(path)
    other = nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 7), nn.ReLU(), nn.Linear(7, 3))
    for backbone in (other, small_conv(), small_mlp().double()):
        with pytest.raises(FileError, match=r"another backbone|does not fit this backbone"):
            sigmatau.load(path, backbone)
    from sigmatau.methods.finetune import Finetune

    with pytest.raises(FileError, match=r"method 'apd'.*sigmatau\.load"):
        Finetune.load(path, small_mlp())
    assert isinstance(sigmatau.APDNet.load(path, small_mlp()), sigmatau.APDNet)
    with pytest.raises(FileError):
        sigmatau.load(tmp_path / "none.st", small_mlp())


def test_a_damaged_task_is_told_when_it_is_read_and_spares_the_others(tmp_path) -> None:
    path = tmp_path / "net.st"
    net = learnt("a", "b", "c")
    net.save(path)
    data = bytearray(path.read_bytes())
    data[-20] ^= 1  # in the last task
    path.write_bytes(data)
    again = sigmatau.load(path, small_mlp())
    x = blobs(5)[0]
    assert torch.equal(again.predict("a", x), net.predict("a", x))
    with pytest.raises(FileError, match="checksum"):
        again.predict("c", x)
    assert torch.equal(again.predict("b", x), net.predict("b", x))
