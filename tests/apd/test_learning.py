"""APD as a user meets it: learn, predict, forget, go on."""

from __future__ import annotations

import copy
import pickle
import threading

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import sigmatau
from sigmatau.errors import DataError, TaskError
from sigmatau.training import Epoch, Hook

from ..conftest import blobs, small_conv, small_mlp
from ..core.test_layout import Everything
from .made import IMAGE, QUICK, VARIANTS, learnt


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


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant_learns_in_double_precision_too(variant: str, tmp_path) -> None:
    net = sigmatau.APDNet(small_mlp().double(), **{**QUICK, **VARIANTS[variant]})
    data = {name: (x.double(), y) for name in "abc" for x, y in [blobs(ord(name))]}
    for name, pair in data.items():
        net.learn(name, pair)
    net.save(tmp_path / "net")
    again = sigmatau.load(tmp_path / "net", small_mlp().double())
    for name, (x, _) in data.items():
        assert net.accuracy(name, data[name]) > 0.9
        assert torch.equal(again.predict(name, x), net.predict(name, x))


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


def test_a_copy_goes_its_own_way() -> None:
    net = learnt("a", "b")
    x = blobs(1)[0]
    before = {task: net.predict(task, x) for task in net.tasks}
    for made in (copy.deepcopy(net), copy.copy(net)):
        assert all(torch.equal(made.predict(task, x), before[task]) for task in before)
        made.learn("c", blobs(3))
        made.forget("a")
        assert made.tasks == ("b", "c")
    assert net.tasks == ("a", "b")
    assert all(torch.equal(net.predict(task, x), before[task]) for task in before)
    with pytest.raises(TypeError, match=r"net\.save"):
        pickle.dumps(net)


def test_a_network_tells_what_it_is_and_knows() -> None:
    net = sigmatau.APDNet(small_mlp(), l1=1e-3, **QUICK)
    assert repr(net) == "<APDNet('apd', epochs=10, batch_size=16, lr=0.02, l1=0.001), tasks: none>"
    assert repr(learnt("a", "b", epochs=1)).endswith("tasks: a, b>")
    assert repr(learnt(*"abcdef", epochs=1)).endswith("tasks: a, b, c, ..., f>")


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


@pytest.mark.parametrize("kind", [torch.int8, torch.int16, torch.int32, torch.uint8, torch.bool])
def test_labels_of_every_integer_type_are_those_of_64_bits(kind: torch.dtype) -> None:
    x, y = blobs(1, classes=2)
    nets = []
    for labels in (y, y.to(kind)):
        nets.append(sigmatau.APDNet(small_mlp(), **QUICK))
        nets[-1].learn("pair", (x, labels), (x, labels))
        nets[-1].learn("loader", DataLoader(TensorDataset(x, labels), 20))
        nets[-1].learn("graph", (x.clone().requires_grad_(), labels))
        assert nets[-1].accuracy("pair", (x, labels)) == 1
    for task in nets[0].tasks:
        assert torch.equal(nets[0].predict(task, x), nets[1].predict(task, x.numpy()))


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

    x, y = blobs(1, shape=(6, 6, 3))
    data = x.permute(0, 3, 1, 2), y  # as pictures often come
    net = sigmatau.APDNet(Views(), **QUICK)
    net.learn("a", data, data)
    assert net.accuracy("a", data) == 1
    assert torch.equal(net.predict("a", data[0]).argmax(1), y)


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
