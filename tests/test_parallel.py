"""Two processes under DDP do what one does; mixed precision is what it says; alone nothing changes.

The two processes are started once, do everything that is tested with them, and each writes down
what it came to.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from lightning_fabric import Fabric
from torch import Tensor, nn

import sigmatau
from sigmatau import methods, streams
from sigmatau.backbones import mlp
from sigmatau.errors import ConfigError, SigmatauError
from sigmatau.methods import Method
from sigmatau.parallel import Together
from sigmatau.training import Epoch, Hook, State, Trainee
from tests.conftest import Pair, blobs, small_mlp

METHODS = ["stl", "finetune", "apd1", "gem", "a-gem"]
ROWS = 70  # in batches of 32: the last has 6, or 3 each
# Sums are rounded in another order, and that is all. Measured after 54 steps: 3e-6 at most.
CLOSE = 1e-4


def digits() -> list[tuple[str, Pair, Pair]]:
    stream = streams.get("digits", seed=0)
    picked = []
    for k in range(3):
        task = stream[k]
        x, y = task.train
        picked.append((task.name, (x[:ROWS], y[:ROWS]), task.test))
    return picked


def network() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return mlp((64,), 2, (12, 8))


def taught(method: str, fabric: Fabric | None = None) -> Method[Any]:
    net = methods.create(method, network(), epochs=6, batch_size=32, lr=0.01)
    for name, train, _ in digits():
        net.learn(name, train, train, outputs=2, progress=False, fabric=fabric)
    return net


def dropping() -> nn.Module:
    layers = list(small_mlp())
    return nn.Sequential(*layers[:2], nn.Dropout(0.5), *layers[2:])


def normed() -> nn.Module:
    layers = list(small_mlp())
    return nn.Sequential(layers[0], nn.BatchNorm1d(8), *layers[1:])


def batch_normed(fabric: Fabric | None = None) -> Method[Any]:
    net = methods.create("finetune", normed(), epochs=2, batch_size=8)
    # Batches of 8, 8, 8 and 3 rows: too few for two processes, as one would have a single row.
    net.learn("t", blobs(0, rows=27), progress=False, fabric=fabric)
    return net


class Odd(nn.Module):
    """In double precision, with a part that takes no part, and a count that is no float."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.idle = small_mlp().double(), nn.Linear(2, 2)
        self.register_buffer("calls", torch.tensor(2**40))
        self.register_buffer("still", torch.tensor(0.1))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.net(x)


def whole_batch(
    gradients: Callable[[Trainee, Tensor, Tensor], float], rows: int
) -> dict[str, Tensor]:
    """Return the gradients of a batch of so many rows, and all else that it left behind."""
    module = Odd()
    x, y = blobs(1, rows=rows)
    value = gradients(Trainee(module, F.cross_entropy, None), x.double(), y)
    found = {n: p.grad for n, p in module.named_parameters() if p.grad is not None}
    return {**found, **dict(module.named_buffers()), "loss": torch.tensor(value)}


def refused(act: Callable[[], object]) -> str:
    try:
        act()
    except SigmatauError as error:
        return f"{type(error).__name__}: {error}"
    return ""


def nan_for_one(fabric: Fabric) -> str:
    """Train on a batch of which only the last row, the last process's, has no finite loss."""

    def loss(out: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(out, y) * (torch.nan if y[-1] == 2 else 1.0)

    x, y = blobs(0, rows=8)
    y = torch.tensor([0, 1] * 3 + [0, 2])
    net = methods.create("finetune", small_mlp(), epochs=1, batch_size=64)

    class Ordered(torch.utils.data.Dataset[Pair]):
        def __len__(self) -> int:
            return 8

        def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
            return x[i], y[i]

    loader = torch.utils.data.DataLoader(Ordered(), batch_size=8)
    return refused(lambda: net.learn("t", loader, outputs=3, loss=loss, fabric=fabric))


def unlike(fabric: Fabric) -> str:
    net = methods.create("finetune", small_mlp(seed=fabric.global_rank), epochs=1)
    return refused(lambda: net.learn("t", blobs(0), fabric=fabric))


def dropped_out(fabric: Fabric) -> dict[str, Tensor]:
    """Return what dropout let through in this process, and the random state after it."""
    seen = []

    class Seen(nn.Dropout):
        def forward(self, x: Tensor) -> Tensor:
            out = super().forward(x)
            seen.append(out.detach().clone())
            return out

    module = nn.Sequential(Seen(0.5), nn.Linear(6, 3))
    with torch.no_grad():
        module[1].weight.fill_(0.1)
        module[1].bias.fill_(0.0)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        together = Together(fabric, torch.device("cpu"))
        trainee = Trainee(module, F.cross_entropy, None)
        together.gradients(trainee, torch.ones(7, 6), torch.arange(7) % 3)
        return {"mask": seen[0], "state": torch.get_rng_state()}


def taken_up(fabric: Fabric, path: Path) -> None:
    """Learn a task, and learn it again from where the first process was after the first epoch."""
    states: list[State] = []

    class Keep(Hook):
        def epoch_ends(self, task: str, epoch: Epoch, state: Callable[[], State]) -> None:
            states.append(state())

    for name in ("whole", "again"):
        net = methods.create("finetune", dropping(), epochs=3, batch_size=15)
        resume = fabric.broadcast(states[0]) if states else None
        net.learn("t", blobs(3), hooks=[Keep()], progress=False, resume=resume, fabric=fabric)
        net.save(path / name)


def work(fabric: Fabric, folder: Path) -> None:
    torch.set_num_threads(1)
    mine = folder / str(fabric.global_rank)
    mine.mkdir()
    for method in METHODS:
        taught(method, fabric).save(mine / method)
    batch_normed(fabric).save(mine / "normed")
    taken_up(fabric, mine)
    tensors: dict[str, Any] = {
        f"rows{n}": whole_batch(Together(fabric, torch.device("cpu")).gradients, n)
        for n in (1, 3, 7, 8)
    }
    tensors["dropout"] = dropped_out(fabric)
    plain = {a: {b: t.tolist() for b, t in part.items()} for a, part in tensors.items()}
    told = {**plain, "nan": nan_for_one(fabric), "unlike": unlike(fabric)}
    (mine / "told.json").write_text(json.dumps(told))
    torch.distributed.destroy_process_group()  # else its threads may abort the process as it ends


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder in which two processes have left what they came to."""
    folder = tmp_path_factory.mktemp("two")
    Fabric(accelerator="cpu", devices=2, strategy="ddp_spawn").launch(work, folder)
    return folder


def told(two: Path, rank: int) -> dict[str, Any]:
    return json.loads((two / str(rank) / "told.json").read_text())


@pytest.mark.parametrize("method", METHODS)
def test_two_processes_learn_what_one_does(two: Path, method: str) -> None:
    alone, together = taught(method), sigmatau.load(two / "0" / method, network())
    assert together.tasks == alone.tasks
    for name, _, test in digits():
        weights, others = alone.export(name).state_dict(), together.export(name).state_dict()
        for key, weight in weights.items():
            torch.testing.assert_close(others[key], weight, rtol=0, atol=CLOSE)
        assert together.accuracy(name, test) == alone.accuracy(name, test)
        assert alone.accuracy(name, test) > 0.8


@pytest.mark.parametrize("what", [*METHODS, "normed", "whole", "again"])
def test_both_processes_hold_the_same_bits(two: Path, what: str) -> None:
    assert (two / "0" / what).read_bytes() == (two / "1" / what).read_bytes()


def test_a_training_taken_up_goes_on_to_the_same_bits(two: Path) -> None:
    """With dropout, and rows that do not divide evenly: random states must not part."""
    assert (two / "0" / "again").read_bytes() == (two / "0" / "whole").read_bytes()


def test_running_statistics_follow_all_rows(two: Path) -> None:
    key = "1.running_mean"
    alone = batch_normed().export("t").state_dict()
    together = sigmatau.load(two / "0" / "normed", normed()).export("t").state_dict()
    assert together["1.num_batches_tracked"] == alone["1.num_batches_tracked"] == 8
    # Each process normalises its rows by themselves, so weights differ, but hardly the means.
    assert not torch.equal(together[key], alone[key])
    torch.testing.assert_close(together[key], alone[key], rtol=0.1, atol=0.02)


@pytest.mark.parametrize("rows", [1, 3, 7, 8])
def test_gradients_are_those_of_the_whole_batch(two: Path, rows: int) -> None:
    from sigmatau.training import gradients

    expected = whole_batch(gradients, rows)
    for rank in (0, 1):
        found = told(two, rank)[f"rows{rows}"]
        assert found.keys() == expected.keys()  # what took no part has no gradient
        for name, tensor in expected.items():
            there = torch.tensor(found[name], dtype=tensor.dtype)
            torch.testing.assert_close(there, tensor, rtol=1e-12, atol=1e-15)
        assert found["calls"] == 2**40 + 1


def test_dropout_differs_and_the_random_state_does_not(two: Path) -> None:
    one, other = told(two, 0)["dropout"], told(two, 1)["dropout"]
    assert one["state"] == other["state"]
    assert (len(one["mask"]), len(other["mask"])) == (3, 4)
    assert one["mask"] != other["mask"][:3]


def test_a_loss_of_nan_in_one_process_stops_both(two: Path) -> None:
    for rank in (0, 1):
        assert "TrainingError: the loss of task 't' became nan" in told(two, rank)["nan"]


def test_processes_that_differ_are_told(two: Path) -> None:
    for rank in (0, 1):
        assert "ConfigError: the processes do not have the same" in told(two, rank)["unlike"]


def learnt(fabric: Fabric | None) -> Method[Any]:
    net = methods.create("finetune", dropping(), epochs=3, batch_size=16)
    net.learn("t", blobs(3, rows=90), progress=False, fabric=fabric)
    return net


def test_one_process_in_full_precision_is_as_without(tmp_path: Path) -> None:
    learnt(None).save(tmp_path / "without")
    learnt(Fabric(accelerator="cpu", devices=1)).save(tmp_path / "with")
    assert (tmp_path / "without").read_bytes() == (tmp_path / "with").read_bytes()


@pytest.mark.parametrize("method", ["stl", "apd1", "gem"])
def test_mixed_precision_learns_but_not_the_same(method: str) -> None:
    half, single = taught(method, Fabric(accelerator="cpu", precision="bf16-mixed")), taught(method)
    name, _, _ = digits()[-1]
    weights, others = half.export(name).state_dict(), single.export(name).state_dict()
    assert all(w.dtype == torch.float32 and w.isfinite().all() for w in weights.values())
    assert any(not torch.equal(weights[key], others[key]) for key in weights)
    for task, _, test in digits():
        assert half.accuracy(task, test) == pytest.approx(single.accuracy(task, test), abs=0.05)


def test_other_precisions_and_devices_are_refused() -> None:
    net = methods.create("finetune", small_mlp(), epochs=1)
    double = Fabric(accelerator="cpu", devices=1, precision="64-true")
    with pytest.raises(ConfigError, match="use 32-true, or bf16-mixed"):
        net.learn("t", blobs(0), fabric=double)
    with pytest.raises(ConfigError, match=r"must be a lightning_fabric\.Fabric, not 2"):
        net.learn("t", blobs(0), fabric=2)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"the network is on cuda:0, Fabric on cpu"):
        Together(Fabric(accelerator="cpu", devices=1), torch.device("cuda:0"))
    assert net.tasks == ()


def test_a_training_without_fabric_does_not_import_it() -> None:
    code = (
        "import sys, torch, sigmatau\n"
        "import sigmatau.experiment.cell, sigmatau.experiment.cli\n"
        "net = sigmatau.methods.create('finetune', torch.nn.Sequential(torch.nn.Linear(2, 2)),"
        " head=None, epochs=1)\n"
        "net.learn('t', (torch.randn(8, 2), torch.arange(8) % 2))\n"
        "assert net.tasks == ('t',)\n"
        "assert not [m for m in sys.modules if m.startswith('lightning')]\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
