"""APD as a user meets it: learn, predict, forget, save, export, and what bad input gets."""

from __future__ import annotations

import subprocess
import sys
import threading

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import sigmatau
from sigmatau.errors import (
    BackboneError,
    ConfigError,
    DataError,
    FileError,
    SigmatauError,
    TaskError,
    TrainingError,
)
from sigmatau.training import Epoch, Hook

from .conftest import blobs, small_conv, small_mlp
from .core.test_layout import Everything

QUICK = {"epochs": 10, "batch_size": 16, "lr": 2e-2}
IMAGE = (1, 6, 6)
VARIANTS: dict[str, dict[str, object]] = {
    "apd1": {"l1": 1e-3},
    "fixed": {"retroactive": "off"},
    "ewc": {"retroactive": "off", "penalty": "ewc", "fisher_samples": 30},
    "settled": {"l1": 1e-2, "l1_until": 0.5},
    "cut": {"l1": 1e-3, "l1_until": 0.5, "l1_cut": 1.0},
    "rising": {"l1": 1e-3, "l1_growth": 1.0},
    "apd2": {"consolidate_every": 2, "l1": 1e-3},
    "budget": {"budget": 0.6},
    "no-mask": {"mask": False},
    "no-sparsity": {"sparse": False},
    "fixed-shared": {"shared": "fixed"},
    "gradient": {"retroactive": "gradient", "l1": 1e-3},
}


def learnt(*names: str, backbone: nn.Module | None = None, **settings: object) -> sigmatau.APDNet:
    """Return a network that has learnt tasks a, b, ... on blobs of its own for each name."""
    net = sigmatau.APDNet(backbone or small_mlp(), **{**QUICK, **settings})
    for name in names:
        net.learn(name, blobs(ord(name)), blobs(ord(name), rows=30))
    return net


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant_learns_and_survives_its_file(variant: str, tmp_path) -> None:
    net = learnt("a", "b", "c", **VARIANTS[variant])
    assert net.tasks == ("a", "b", "c")
    assert net.accuracy("c", blobs(ord("c"))) > 0.8
    x = blobs(5)[0]
    before = {task: net.predict(task, x) for task in net.tasks}
    size = net.save(tmp_path / "net.st")
    assert size == (tmp_path / "net.st").stat().st_size
    again = sigmatau.load(tmp_path / "net.st", small_mlp(seed=3))
    assert again.tasks == net.tasks
    for task, expected in before.items():
        assert torch.equal(again.predict(task, x), expected)
    assert again.capacity() == net.capacity()
    assert again.save(tmp_path / "again.st") == size


@pytest.mark.parametrize("variant", ["apd1", "apd2", "gradient", "fixed-shared", "budget"])
def test_earlier_tasks_stay_where_they_are(variant: str) -> None:
    net = learnt("a", "b", **VARIANTS[variant])
    x, before = blobs(5)[0], {}
    before = {task: net.predict(task, x) for task in net.tasks}
    net.learn("c", blobs(7))
    tolerance = 5e-2 if variant == "gradient" else 1e-3
    for task, expected in before.items():
        assert torch.allclose(net.predict(task, x), expected, atol=tolerance)


def test_same_seed_same_bits_twice_and_across_a_file(tmp_path) -> None:
    x = blobs(5)[0]
    first = learnt("a", "b", "c", consolidate_every=2)
    second = learnt("a", "b", "c", consolidate_every=2)
    third = learnt("a", "b", consolidate_every=2)
    third.save(tmp_path / "net.st")
    third = sigmatau.load(tmp_path / "net.st", small_mlp())
    third.learn("c", blobs(ord("c")), blobs(ord("c"), rows=30))
    other = learnt("a", "b", "c", consolidate_every=2, seed=1)
    for task in first.tasks:
        assert torch.equal(first.predict(task, x), second.predict(task, x))
        assert torch.equal(first.predict(task, x), third.predict(task, x))
        assert not torch.equal(first.predict(task, x), other.predict(task, x))


def test_learning_leaves_global_randomness_and_the_backbone_alone() -> None:
    backbone = small_mlp()
    held = {name: t.clone() for name, t in backbone.state_dict().items()}
    state = torch.get_rng_state()
    learnt("a", "b", backbone=backbone)
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(t, held[name]) for name, t in backbone.state_dict().items())


def test_forgetting_leaves_every_other_task_to_the_bit(tmp_path) -> None:
    net = learnt("a", "b", "c", "d", consolidate_every=2, beta=0.5, groups=1)
    x = blobs(5)[0]
    before = {task: net.predict(task, x) for task in net.tasks}
    size = net.save(tmp_path / "net.st")
    net.forget("b")
    assert net.tasks == ("a", "c", "d")
    for task in net.tasks:
        assert torch.equal(net.predict(task, x), before[task])
    assert net.save(tmp_path / "less.st") < size
    with pytest.raises(TaskError, match="no task 'b'"):
        net.predict("b", x)
    net.learn("b", blobs(9))  # the name is free again
    assert net.tasks == ("a", "c", "d", "b")


def test_forgetting_all_leaves_a_network_as_new(tmp_path) -> None:
    net = learnt("a", "b")
    for task in net.tasks:
        net.forget(task)
    assert net.tasks == ()
    assert net.capacity().paper == 0
    net.save(tmp_path / "empty.st")
    again = sigmatau.load(tmp_path / "empty.st", small_mlp())
    again.learn("a", blobs(ord("a")), blobs(ord("a"), rows=30))
    x = blobs(5)[0]
    assert torch.equal(again.predict("a", x), learnt("a").predict("a", x))


class Stop(Hook):
    """Breaks off in the middle of an epoch."""

    def __init__(self, error: BaseException, after: int) -> None:
        self.error, self.left = error, after

    def batch_ends(self) -> None:
        self.left -= 1
        if self.left == 0:
            raise self.error


@pytest.mark.parametrize("error", [KeyboardInterrupt(), RuntimeError("no memory")])
def test_a_learn_that_breaks_off_leaves_the_network_as_it_was(error: BaseException) -> None:
    net, same = learnt("a", "b"), learnt("a", "b")
    with pytest.raises(type(error)):
        net.learn("c", blobs(7), hooks=[Stop(error, 6)])
    x = blobs(5)[0]
    assert net.tasks == ("a", "b")
    for task in net.tasks:
        assert torch.equal(net.predict(task, x), same.predict(task, x))
    net.learn("c", blobs(7))
    same.learn("c", blobs(7))
    assert torch.equal(net.predict("c", x), same.predict("c", x))


def test_the_network_can_be_used_while_it_learns() -> None:
    net = learnt("a", "b")
    x = blobs(5)[0]
    expected = {task: net.predict(task, x) for task in net.tasks}
    seen: list[bool] = []

    class Watch(Hook):
        def batch_ends(self) -> None:
            worker = threading.Thread(
                target=lambda: seen.extend(
                    torch.equal(net.predict(task, x), out) for task, out in expected.items()
                )
            )
            worker.start()
            worker.join()

    net.learn("c", blobs(7), hooks=[Watch()])
    assert len(seen) == 2 * 10 * 4
    assert all(seen)


def test_changing_the_network_while_it_learns_is_refused() -> None:
    net = learnt("a", "b")

    class Meddle(Hook):
        def epoch_ends(self, task: str, epoch: Epoch, state: object) -> None:
            if epoch.index == 0:
                net.forget("b")

    with pytest.raises(TaskError, match="changed while 'c' was learnt"):
        net.learn("c", blobs(7), hooks=[Meddle()])
    assert net.tasks == ("a",)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_training_taken_up_again_ends_with_the_same_bits(variant: str) -> None:
    settings = {**VARIANTS[variant], "epochs": 6, "select_last": 4}
    backbone = nn.Sequential(
        nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 3)
    )
    states: dict[int, dict[str, Tensor]] = {}

    class Keep(Hook):
        def epoch_ends(self, task: str, epoch: Epoch, state) -> None:
            states[epoch.index] = state()

    whole = learnt("a", backbone=backbone, **settings)
    report = whole.learn("b", blobs(1), blobs(2), hooks=[Keep()])
    for index, state in states.items():
        part = learnt("a", backbone=backbone, **settings)
        resumed = part.learn("b", blobs(1), blobs(2), resume=state)
        x = blobs(5)[0]
        assert torch.equal(part.predict("b", x), whole.predict("b", x)), index
        assert torch.equal(part.predict("a", x), whole.predict("a", x)), index
        assert (resumed.selected, resumed.score) == (report.selected, report.score)


def test_past_tasks_keep_their_bits_where_the_shared_weights_do_not_pay_for_moving() -> None:
    net = learnt("a", "b", l1=50.0, l2=1e7)
    x = blobs(5)[0]
    before = {task: net.predict(task, x) for task in net.tasks}
    shared = {n: t.clone() for n, t in net._memory.state.shared().items()}
    net.learn("c", blobs(7))
    assert all(torch.equal(t, shared[n]) for n, t in net._memory.state.shared().items())
    for task, out in before.items():
        assert torch.equal(net.predict(task, x), out)


def test_the_epoch_that_validates_best_among_the_last_is_kept() -> None:
    net = sigmatau.APDNet(small_mlp(), epochs=8, batch_size=16, lr=0.05, select_last=3)
    for name in "ab":
        report = net.learn(name, blobs(ord(name)), blobs(ord(name) + 50, rows=31))
        scores = [epoch.score for epoch in report.epochs]
        assert report.score == max(scores[-3:])
        assert net.accuracy(name, blobs(ord(name) + 50, rows=31)) == report.score


def test_a_batch_of_many_tasks_is_predicted_in_one_call() -> None:
    net = learnt("a", "b")
    net.learn("c", blobs(3, classes=5), outputs=5)
    x = blobs(5, rows=9)[0]
    names = ["a", "c", "b", "b", "a", "c", "c", "a", "b"]
    mixed = net.predict(names, x)
    assert mixed.shape == (9, 5)
    for row, name in enumerate(names):
        alone = net.predict(name, x[row : row + 1])[0]
        assert torch.allclose(mixed[row, : len(alone)], alone, atol=1e-6)
        assert bool((mixed[row, len(alone) :] == -torch.inf).all())
    with pytest.raises(DataError, match="2 task names for 9 rows"):
        net.predict(["a", "b"], x)
    with pytest.raises(TaskError, match="'z'"):
        net.predict(["z"] * 9, x)
    with pytest.raises(DataError, match="no rows"):
        net.predict([], x[:0])


def test_regression_and_several_labels_with_losses_of_ones_own() -> None:
    net = sigmatau.APDNet(small_mlp(), epochs=60, batch_size=16, lr=1e-2)
    x, y = blobs(1)
    level = x.sum(1, keepdim=True)
    net.learn("level", (x, level), (x, level), loss=F.mse_loss)
    assert net.predict("level", x).shape == (60, 1)
    assert net.evaluate("level", (x, level), lambda o, t: float(F.mse_loss(o, t))) < 1.0
    many = F.one_hot(y, 3).float()
    net.learn("tags", (x, many), loss=F.binary_cross_entropy_with_logits)
    agree = net.evaluate("tags", (x, many), lambda o, t: float(((o > 0) == (t > 0)).float().mean()))
    assert agree > 0.9
    with pytest.raises(DataError, match="was not learnt from labels"):
        net.accuracy("tags", (x, y))
    with pytest.raises(DataError, match="pass loss="):
        net.learn("oops", (x, level))
    with pytest.raises(DataError, match="outputs="):
        net.learn("oops", (x, y), loss=F.cross_entropy)
    net.learn("own", (x, y), loss=F.cross_entropy, outputs=3)
    held = sigmatau.APDNet(small_mlp(), retroactive="off", penalty="ewc")
    with pytest.raises(DataError, match="penalty='ewc' needs class labels"):
        held.learn("level", (x, level), loss=F.mse_loss)


def test_normalisation_state_is_each_tasks_own() -> None:
    net = sigmatau.APDNet(small_conv(), **QUICK)
    near, far = blobs(1, shape=IMAGE), blobs(2, shape=IMAGE)
    far = (far[0] * 10 + 5, far[1])
    net.learn("near", near)
    mean = net.export("near")[1].running_mean.clone()
    net.learn("far", far)
    assert torch.equal(net.export("near")[1].running_mean, mean)
    assert (net.export("far")[1].running_mean - mean).abs().max() > 0.5
    assert int(net.export("far")[1].num_batches_tracked) != 0


@pytest.mark.parametrize("kind", ["tensors", "numpy", "tensordataset", "dataset", "loader"])
def test_every_form_of_data_is_taken(kind: str) -> None:
    x, y = blobs(1, rows=49)  # 49 = 3 batches and one row

    class Rows(Dataset[tuple[Tensor, Tensor]]):
        def __len__(self) -> int:
            return len(x)

        def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
            return x[i], y[i]

    forms = {
        "tensors": (x, y),
        "numpy": (x.numpy(), y.numpy()),
        "tensordataset": TensorDataset(x, y),
        "dataset": Rows(),
        "loader": DataLoader(TensorDataset(x, y), batch_size=16),
    }
    backbone = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    if kind == "loader":  # batch normalisation cannot take the loader's own last batch of one row
        backbone = small_mlp()
    net = sigmatau.APDNet(backbone, epochs=16, batch_size=16, lr=1e-2, budget=0.7)
    for name in ("one", "two"):
        net.learn(name, forms[kind], forms[kind])
        assert net.accuracy(name, forms[kind]) > 0.8


@pytest.mark.parametrize("validated", [True, False])
@pytest.mark.parametrize("batch_size", [8, 30, 60, 100])
@pytest.mark.parametrize("settled", [0.2, 0.5, 0.95])
@pytest.mark.parametrize("epochs", [1, 2, 3, 8])
def test_a_budget_is_never_exceeded_and_used_up(
    epochs: int, settled: float, batch_size: int, validated: bool
) -> None:
    net = sigmatau.APDNet(
        small_conv(),
        budget=0.25,
        budget_settled=settled,
        epochs=epochs,
        batch_size=batch_size,
        lr=1e-2,
    )
    steps = epochs * -(-60 // batch_size)
    for i in range(3):
        data = blobs(i, shape=IMAGE)
        report = net.learn(str(i), data, data if validated else None)
        assert report.growth <= 0.25
        if i and steps > 1:  # in a single step there is nothing to choose from yet
            assert report.growth > 0.25 - 2 / net.layout.size
    assert net.infos["2"].growth == report.growth


def test_a_budget_can_grow_more_slowly_than_the_number_of_tasks() -> None:
    net = learnt(*"abcdef", budget=0.7, budget_growth=0.5)
    entries = [part().nonzeros for part in net._memory.state.tasks.values()]
    assert entries[0] == 0
    for n in range(1, 6):
        assert 0 <= entries[1] * n**0.5 - sum(entries[: n + 1]) < n
    assert net.infos["b"].growth > 0.7 - 2 / net.layout.size


def test_a_budget_too_small_for_masks_and_biases_is_refused() -> None:
    strict = sigmatau.APDNet(small_conv(), budget=0.01, **QUICK)
    strict.learn("a", blobs(0, shape=IMAGE))
    with pytest.raises(ConfigError, match=r"budget=0\.01 is less than what a task needs"):
        strict.learn("b", blobs(1, shape=IMAGE))


def test_capacity_is_what_is_stored(tmp_path) -> None:
    net = learnt("a", "b", "c", l1=1e-3)
    state = net._memory.state
    weights = {w.name: w.size for w in net.layout.weights}
    own, head, masks = 8 + 7, 7 * 3 + 3, 8 + 7
    nonzeros = sum(part().nonzeros for part in state.tasks.values())
    stored = sum(weights.values()) + 3 * (own + head) + 2 * masks
    found = net.capacity()
    assert found.strict == pytest.approx((stored + 2 * nonzeros) / net.layout.size)
    zeros = sum(int((t == 0).sum()) for t in state.shared().values())
    own_zeros = sum(int((t == 0).sum()) for p in state.tasks.values() for t in p().own.values())
    base = net.layout.trunk_size + 3 * head
    assert found.paper == pytest.approx((stored + nonzeros - zeros - own_zeros) / base)
    from safetensors.torch import save_file

    save_file(small_mlp().state_dict(), tmp_path / "base.safetensors")
    net.save(tmp_path / "net.st")
    sizes = [(tmp_path / name).stat().st_size for name in ("net.st", "base.safetensors")]
    assert found.bytes == pytest.approx(sizes[0] / sizes[1], rel=0.01)
    assert "paper" in str(found)


def test_summary_tells_what_becomes_of_every_part() -> None:
    net = sigmatau.APDNet(small_conv(), **QUICK)
    net.learn("birds", blobs(1, shape=IMAGE))
    told = net.summary()
    for words in ("0.weight", "decomposed", "head, per task", "running_mean", "birds", "capacity"):
        assert words in told


def test_layers_of_every_kind_learn_and_keep_their_tasks() -> None:
    torch.manual_seed(0)
    net = sigmatau.APDNet(Everything(), epochs=2, batch_size=8, budget=0.5)
    x = torch.randint(0, 20, (24, 7))
    for name in "abc":
        net.learn(name, (x, x[:, ord(name) % 7] % 2))
    first = net.predict("a", x)
    net.forget("b")
    assert torch.equal(net.predict("a", x), first)
    exported = net.export("a")
    assert torch.allclose(exported(x), first, atol=1e-6)


def test_a_network_may_rely_on_how_its_images_lie_in_memory() -> None:
    class Views(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.head = nn.Conv2d(3, 4, 3), nn.Linear(64, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(torch.relu(self.conv(x)).view(-1, 64))

    net, data = sigmatau.APDNet(Views(), **QUICK), blobs(1, shape=(3, 6, 6))
    net.learn("a", data, data)
    assert net.accuracy("a", data) == 1


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


def test_l1_holds_for_its_part_of_the_training_and_chooses() -> None:
    net = learnt("a", l1=2e-2, l1_until=0.5)
    chosen: list[Tensor] = []

    class Look(Hook):
        def epoch_ends(self, task: str, epoch: Epoch, state) -> None:
            (delta,) = (t for n, t in state().items() if n == "weight/0.weight:delta")
            chosen.append(delta != 0)

    net.learn("b", blobs(1), hooks=[Look()])
    assert len(chosen) == 10
    assert 0 < chosen[4].float().mean() < 0.7
    assert all(bool((c <= chosen[4]).all()) for c in chosen[5:])


def test_a_cut_leaves_fewer_nonzeros_and_past_tasks_where_they_are() -> None:
    chosen = {"l1": 2e-2, "l1_until": 0.5}
    plain, cut = (learnt("a", "b", "c", **chosen, l1_cut=lrs) for lrs in (0.0, 2.0))
    grown, less = (sum(net.infos[t].growth for t in "abc") for net in (plain, cut))
    assert less < 0.8 * grown
    x = blobs(5)[0]
    before = learnt("a", "b", **chosen, l1_cut=2.0)
    for task in ("a", "b"):
        assert torch.allclose(before.predict(task, x), cut.predict(task, x), atol=1e-4)


@pytest.mark.parametrize("form", ["closed", "gradient", "off"])
def test_a_price_can_rise_with_the_number_of_tasks(form: str) -> None:
    price, power = 2e-3, 2.0
    rising = learnt(*"abcd", l1=price, l1_growth=power, retroactive=form)
    steps = learnt("a", "b", l1=price, retroactive=form)
    for past, task in ((2, "c"), (3, "d")):
        steps.settings = steps.settings.model_copy(update={"l1": price * past**power})
        steps.learn(task, blobs(ord(task)), blobs(ord(task), rows=30))
    x = blobs(5)[0]
    for task in "abcd":
        assert torch.equal(rising.predict(task, x), steps.predict(task, x))
    assert rising.infos["d"].growth < learnt(*"abcd", l1=price, retroactive=form).infos["d"].growth


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"l1": -1.0}, "l1=-1.0"),
        ({"l2": -1.0}, "l2=-1.0"),
        ({"lr": 0}, "lr=0"),
        ({"epochs": 0}, "epochs=0"),
        ({"budget": 1.5}, "budget=1.5"),
        ({"budget": 0.1, "l1": 1e-3}, "l1 or budget"),
        ({"budget_growth": 0.5}, "budget_growth needs a budget"),
        ({"budget": 0.1, "l1_growth": 0.5}, "l1_growth needs an l1"),
        ({"sparse": False, "budget": 0.1}, "sparse=False"),
        ({"budget": 0.1, "retroactive": "gradient"}, "retroactive"),
        ({"budget": 0.1, "l1_until": 0.5}, "needs an l1"),
        ({"l1": 1e-3, "l1_cut": 2.0}, "l1_cut needs l1_until"),
        ({"retroactive": "gradient", "l1_until": 0.5}, "needs an l1, and retroactive"),
        ({"l2": 0.0}, "l2=0"),
        ({"penalty": "ewc"}, "retroactive='off'"),
        ({"epoch": 3}, "did you mean 'epochs'"),
        ({"retroactive": "later"}, "retroactive='later'"),
    ],
)
def test_settings_that_make_no_sense(settings: dict[str, object], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        sigmatau.APDNet(small_mlp(), **settings)


def test_bad_data_is_refused_before_any_work() -> None:
    net = learnt("a")
    x, y = blobs(1)
    wrong: list[tuple[object, str]] = [
        ((x[:0], y[:0]), "empty"),
        (TensorDataset(x[:0], y[:0]), "empty"),
        (DataLoader(TensorDataset(x[:0], y[:0])), "empty"),
        ((x, y[:5]), "as many inputs as targets"),
        ((x, -y), "out of range"),
        ((x / 0, y), "NaN or infinite"),
        (DataLoader(TensorDataset(x / 0, y)), "NaN or infinite"),
        ((x[:, :4], y), "cannot take inputs of shape"),
        ((x.double(), y), "cannot take inputs"),
        ((x.to("meta"), y.to("meta")), "meta"),
        ([x], "pair"),
        ((x.tolist(), y), "tensors"),
        (x, "pair"),
    ]
    for data, match in wrong:
        with pytest.raises((DataError, NotImplementedError), match=match):
            net.learn("b", data)
    with pytest.raises(DataError, match="0 to 1"):
        net.learn("b", (x, y), outputs=2)
    with pytest.raises(DataError, match="validation data has labels"):
        net.learn("b", (x[:40], y[:40] % 2), (x, y))
    with pytest.raises(DataError, match="validation data is empty"):
        net.learn("b", (x, y), (x[:0], y[:0]))
    with pytest.raises(DataError, match="validation inputs have shape"):
        net.learn("b", (x, y), (x[:, :3], y))
    with pytest.raises(DataError, match="outputs=0"):
        net.learn("b", (x, y), outputs=0)
    with pytest.raises(DataError, match="NaN or infinite"):
        net.predict("a", x / 0)
    with pytest.raises(DataError, match="on meta"):
        net.predict("a", x.to("meta"))
    assert net.tasks == ("a",)


def test_tasks_that_are_there_or_are_not() -> None:
    net = learnt("a", "b")
    with pytest.raises(TaskError, match="learnt already"):
        net.learn("b", blobs(1))
    for name in ("", 3, None):
        with pytest.raises(TaskError, match="must be a string"):
            net.learn(name, blobs(1))
    for call in (net.forget, net.export, lambda t: net.accuracy(t, blobs(1))):
        with pytest.raises(TaskError, match="no task 'bb'"):
            call("bb")
    with pytest.raises(KeyError):  # what a mapping raises, for those who catch that
        net.forget("zebra")


def test_a_loss_that_is_no_number_stops_at_once() -> None:
    net = learnt("a")
    with pytest.raises(TrainingError, match="became nan in epoch 1: lower lr"):
        net.learn("b", blobs(1), loss=lambda o, t: (o * float("nan")).sum(), outputs=3)
    with pytest.raises(TrainingError, match="inf"):
        net.learn("b", blobs(1), loss=lambda o, t: (o * float("inf")).abs().sum(), outputs=3)
    assert net.tasks == ("a",)


def test_backbones_that_cannot_work_are_refused() -> None:
    with pytest.raises(BackboneError, match="nothing to decompose"):
        sigmatau.APDNet(nn.Linear(3, 2))
    with pytest.raises(BackboneError, match=r"torch\.nn\.Module"):
        sigmatau.APDNet("resnet")

    class Backwards(nn.Module):
        """Uses its layers in another order than it lists them."""

        def __init__(self) -> None:
            super().__init__()
            self.head, self.body = nn.Linear(8, 3), nn.Linear(6, 8)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.body(x))

    with pytest.raises(BackboneError, match="'head' comes last: name the head"):
        sigmatau.APDNet(Backwards(), **QUICK).learn("a", blobs(1))
    net = sigmatau.APDNet(Backwards(), head="head", **QUICK)
    net.learn("a", blobs(1))
    assert net.predict("a", blobs(1)[0]).shape == (60, 3)


def test_without_a_head_all_layers_are_shared(tmp_path) -> None:
    net = sigmatau.APDNet(small_mlp(), head=None, **QUICK)
    with pytest.raises(DataError, match="labels go up to 4, but the network has 3 outputs"):
        net.learn("a", blobs(1, classes=5))
    net.learn("a", blobs(1))
    net.learn("b", blobs(2))
    net.save(tmp_path / "net.st")
    again = sigmatau.load(tmp_path / "net.st", small_mlp())
    x = blobs(5)[0]
    assert torch.equal(again.predict("b", x), net.predict("b", x))


def test_every_error_is_of_one_family() -> None:
    for kind in (BackboneError, ConfigError, DataError, FileError, TaskError, TrainingError):
        assert issubclass(kind, SigmatauError)


def test_importing_costs_little_more_than_torch() -> None:
    """Counted in modules: timing belongs to the benchmarks, and no test may fail on a slow day."""
    script = (
        "import sys, torch; before = set(sys.modules); import sigmatau; "
        "print(len([m for m in sys.modules if m not in before and not m.startswith('sigmatau')]))"
    )
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert int(out.stdout) < 5
    script = "import sys, sigmatau; print('torch' in sys.modules, sorted(dir(sigmatau)))"
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "False" in out.stdout
    assert "APDNet" in out.stdout
    with pytest.raises(AttributeError, match="no attribute 'APDNett'"):
        sigmatau.APDNett  # noqa: B018
