"""A network on another device: all methods learn there what they learn here, from data of any."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from sigmatau import load, methods
from sigmatau.methods.base import Method
from sigmatau.training import Epoch, Fit, Hook, Trainee

from .apd.made import VARIANTS
from .conftest import blobs, small_conv, small_mlp
from .elsewhere import DEVICE, elsewhere
from .methods.test_matrix import QUICK, SMALL, data

CASES = [(name, SMALL.get(name, {})) for name in methods.names()]
CASES += [("apd1", variant) for variant in VARIANTS.values()]
CLOSE = {"rtol": 1e-4, "atol": 1e-5}  # there is no kernel of ours for other devices


@pytest.mark.parametrize(("name", "settings"), CASES, ids=lambda case: str(case))
def test_all_that_is_done_here_can_be_done_elsewhere(
    name: str, settings: dict[str, object], tmp_path: Path
) -> None:
    def new(backbone: nn.Module) -> Method:
        return methods.create(name, backbone, **{**QUICK, "epochs": 2, **settings})

    def teach(net: Method, *tasks: int) -> Method:
        for task in tasks:
            net.learn(f"task {task}", *data(task, "conv"))
        return net

    def all_of(net: Method) -> list[Tensor]:
        return [net.predict(task, data(9, "conv")[0][0]) for task in net.tasks]

    wanted = all_of(teach(new(small_conv()), 0, 1, 2))
    with elsewhere() as device:
        net = teach(new(small_conv().to(DEVICE)), 0, 1)
        net.save(tmp_path / "net.st")
        read = load(tmp_path / "net.st", small_conv().to(DEVICE))
        for one in net, read:
            assert one.device == device
            found = all_of(teach(one, 2))
            assert {out.device for out in found} == {device}
            torch.testing.assert_close([out.cpu() for out in found], wanted, **CLOSE)
        x = data(9, "conv")[0][0][:4]
        plain = net.export("task 1")(x.to(device)).cpu()
        torch.testing.assert_close(plain, wanted[1][:4], **CLOSE)
        mixed = net.predict(["task 0", "task 2"] * 2, x).cpu()
        alone = torch.stack([wanted[2 * (row % 2)][row] for row in range(4)])
        torch.testing.assert_close(mixed, alone, **CLOSE)
        assert net.capacity() == read.capacity()
        if net.can_forget:
            net.forget("task 1")
            torch.testing.assert_close(net.predict("task 2", x).cpu(), wanted[2][:4], **CLOSE)
    here = load(tmp_path / "net.st", small_conv())
    torch.testing.assert_close(all_of(teach(here, 2)), wanted, **CLOSE)


class Rows(Dataset):
    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        return self.x[i], self.y[i]


def test_data_of_any_kind_is_brought_there() -> None:
    x, y = blobs(1)
    with elsewhere() as device:
        net = methods.create("apd1", small_mlp().to(DEVICE), **QUICK)
        rows = Rows(x, y)
        given = [(x, y), (x.numpy(), y.numpy()), (x.to(device), y), rows, DataLoader(rows, 16)]
        for i, one in enumerate(given):
            net.learn(f"task {i}", one, one)
            assert net.accuracy(f"task {i}", one) == net.accuracy(f"task {i}", (x, y))
        assert net.predict("task 0", x.numpy()).device == device


class CutOff(Hook):
    def __init__(self) -> None:
        self.state: dict[str, Tensor] = {}

    def epoch_ends(self, task: str, epoch: Epoch, state) -> None:
        if epoch.index == 0:
            self.state = {name: tensor.cpu() for name, tensor in state().items()}


@pytest.mark.parametrize("name", methods.names())
def test_a_training_cut_off_elsewhere_is_taken_up_there(name: str) -> None:
    with elsewhere():
        nets = [
            methods.create(name, small_mlp().to(DEVICE), **{**QUICK, **SMALL.get(name, {})})
            for _ in range(2)
        ]
        cut = CutOff()
        for net in nets:
            net.learn("first", *data(0, "mlp"))
        nets[0].learn("second", *data(1, "mlp"), hooks=[cut])
        nets[1].learn("second", *data(1, "mlp"), resume=cut.state)
        whole, rest = (net.predict("second", data(9, "mlp")[0][0]).cpu() for net in nets)
        assert torch.equal(whole, rest)


def test_the_state_of_a_gpus_generator_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    held = torch.arange(5, dtype=torch.uint8)
    put: list[Tensor] = []
    monkeypatch.setattr(Trainee, "device", torch.device("cuda:1"))
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda device: held + device.index)
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda state, device: put.append(state))
    trainee = Trainee(small_mlp(), nn.functional.cross_entropy, None)
    state = Fit(trainee, torch.Generator()).state()
    Fit(trainee, torch.Generator()).load(state)
    assert torch.equal(put[0], held + 1)


def test_the_stand_in_for_a_device_refuses_what_a_gpu_would() -> None:
    with elsewhere() as device:
        net = small_conv().to(DEVICE)
        x = torch.randn(2, 1, 6, 6)
        assert torch.equal(net(x.to(device)).cpu(), small_conv()(x))
        assert torch.equal(torch.tensor([1, 2], device=device).cpu(), torch.tensor([1, 2]))
        with pytest.raises(RuntimeError, match="two devices"):
            net(x)
        with pytest.raises(RuntimeError):
            net[0].weight.detach().numpy()
    assert torch.ones(2, device=DEVICE).is_meta
