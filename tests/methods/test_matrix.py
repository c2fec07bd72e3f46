"""Every registered method through every promise: a new method is tested by being there."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from sigmatau import load, methods
from sigmatau.config import TrainingSettings
from sigmatau.core import container
from sigmatau.core.sparse import Sparse
from sigmatau.errors import SigmatauError, TaskError
from sigmatau.methods.base import Method
from sigmatau.training import Epoch, Hook

from ..conftest import blobs, small_conv, small_mlp

SHAPES = {"mlp": (6,), "conv": (1, 6, 6)}
BACKBONES = {"mlp": small_mlp, "conv": small_conv}
QUICK = {"epochs": 3, "batch_size": 16, "seed": 4}
# What keeps a method quick here where its own defaults are made for real problems.
SMALL: dict[str, dict[str, object]] = {"rcl": {"trials": 2, "child_epochs": 1}}


def new(name: str, kind: str, **settings: object) -> Method:
    return methods.create(name, BACKBONES[kind](), **{**QUICK, **SMALL.get(name, {}), **settings})


def data(task: int, kind: str) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    x, y = blobs(task, rows=64, shape=SHAPES[kind])
    return (x[:48], y[:48]), (x[48:], y[48:])


def learnt(name: str, kind: str, tasks: int = 2) -> Method:
    net = new(name, kind)
    for task in range(tasks):
        net.learn(f"task {task}", *data(task, kind))
    return net


@pytest.mark.parametrize("kind", BACKBONES)
@pytest.mark.parametrize("name", methods.names())
def test_learn_save_load_predict_capacity_forget(name: str, kind: str, tmp_path) -> None:
    net = learnt(name, kind)
    x = data(9, kind)[0][0]
    assert net.tasks == ("task 0", "task 1")
    before = {task: net.predict(task, x) for task in net.tasks}
    assert all(out.shape == (48, 3) and bool(torch.isfinite(out).all()) for out in before.values())
    for task, out in before.items():
        assert torch.equal(net.predict(task, x), out)

    size = net.save(tmp_path / "net.st")
    again = load(tmp_path / "net.st", BACKBONES[kind]())
    assert type(again) is type(net)
    assert again.tasks == net.tasks
    assert again.settings == net.settings
    for task, out in before.items():
        assert torch.equal(again.predict(task, x), out)
    assert again.capacity() == net.capacity()

    capacity = net.capacity()
    base = sum(p.numel() for p in BACKBONES[kind]().parameters())
    assert capacity.bytes * size > 0
    assert capacity.strict >= capacity.beside >= 0
    stored = capacity.strict * base
    with container.Container.open(tmp_path / "net.st") as file:
        numbers = sum(
            (8 * item.nnz if isinstance(item, Sparse) else item.nbytes) / 4
            for record in file.names
            if record != "about"
            for item in file.read(record).values()
        )
    # A number is 4 bytes; whole numbers of 8 bytes are rare, and nothing may go uncounted.
    assert 0.6 * numbers <= stored <= numbers + 1e-6

    # Learning on from a file gives the same bits as learning on.
    for each in (net, again):
        each.learn("task 2", *data(2, kind))
    assert torch.equal(net.predict("task 2", x), again.predict("task 2", x))

    module = net.export("task 2")
    assert isinstance(module, nn.Module)
    assert torch.allclose(module(x), net.predict("task 2", x), atol=1e-5)

    kept = {task: net.predict(task, x) for task in ("task 1", "task 2")}
    if net.can_forget:
        net.forget("task 0")
        assert net.tasks == ("task 1", "task 2")
        for task, out in kept.items():
            assert torch.equal(net.predict(task, x), out)
    else:
        with pytest.raises(TaskError, match="forget"):
            net.forget("task 0")
        assert len(net.tasks) == 3


@pytest.mark.parametrize("name", methods.names())
def test_same_seed_same_bits(name: str) -> None:
    x = data(9, "mlp")[0][0]
    one, two = learnt(name, "mlp"), learnt(name, "mlp")
    for task in one.tasks:
        assert torch.equal(one.predict(task, x), two.predict(task, x))


@pytest.mark.parametrize("name", methods.names())
def test_a_training_cut_off_after_any_epoch_goes_on_to_the_same_bits(name: str) -> None:
    states: list[dict[str, Tensor]] = []

    class Keep(Hook):
        def epoch_ends(self, task: str, epoch: Epoch, state) -> None:
            states.append(state())

    x = data(9, "mlp")[0][0]
    whole = learnt(name, "mlp", tasks=1)
    whole.learn("second", *data(1, "mlp"), hooks=[Keep()])
    assert states
    for state in states:
        part = learnt(name, "mlp", tasks=1)
        part.learn("second", *data(1, "mlp"), resume=state)
        assert torch.equal(part.predict("second", x), whole.predict("second", x))
        assert torch.equal(part.predict("task 0", x), whole.predict("task 0", x))


class Break(Hook):
    """Raises after some batches."""

    def __init__(self, after: int) -> None:
        self.left = after

    def batch_ends(self) -> None:
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt


@pytest.mark.parametrize("name", methods.names())
def test_breaking_off_leaves_everything_as_it_was(name: str, tmp_path) -> None:
    net = learnt(name, "mlp")
    net.save(tmp_path / "before.st")
    with pytest.raises(KeyboardInterrupt):
        net.learn("third", *data(2, "mlp"), hooks=[Break(4)])
    net.save(tmp_path / "after.st")
    assert (tmp_path / "before.st").read_bytes() == (tmp_path / "after.st").read_bytes()


@pytest.mark.parametrize("name", methods.names())
def test_settings_are_typed_and_described(name: str) -> None:
    entry = methods.entry(name)
    assert issubclass(entry.cls.Settings, TrainingSettings)
    assert entry.cls.__doc__
    for field, about in entry.cls.Settings.model_fields.items():
        assert about.description, f"{name}: {field} has no description"
    for stream, settings in entry.cls.published.items():
        made = methods.create(name, small_mlp(), stream=stream)
        for key, value in settings.items():
            if key in entry.cls.Settings.model_fields and key not in entry.preset:
                held = getattr(made.settings, key)
                assert held == (tuple(value) if isinstance(held, tuple) else value)


def test_a_given_setting_takes_the_place_of_a_published_one_that_it_rules_out() -> None:
    published = methods.create("apd1", small_mlp(), stream="permuted-mnist").settings
    assert (published.l1, published.l2) == (1e-4, 0.1)
    within = methods.create("apd1", small_mlp(), stream="permuted-mnist", budget=0.1).settings
    assert (within.l1, within.l2, within.budget) == (None, 0.1, 0.1)


def test_names_are_told_when_one_is_wrong() -> None:
    with pytest.raises(SigmatauError, match=r"did you mean 'apd\d'"):
        methods.create("apd", small_mlp())
    with pytest.raises(SigmatauError, match="registered twice"):
        methods.register("finetune")(methods.entry("finetune").cls)


@pytest.mark.parametrize("name", methods.names())
def test_how_weights_lie_in_memory_makes_no_difference(name: str, tmp_path) -> None:
    def backbone(otherwise: bool) -> nn.Module:
        net = nn.Sequential(
            nn.Conv2d(3, 4, 3),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(64, 6),
            nn.ReLU(),
            nn.Linear(6, 3),
        )
        generator = torch.Generator().manual_seed(0)
        for p in net.parameters():
            p.data = torch.randn(p.shape, generator=generator) / 4
        if otherwise:
            net = net.to(memory_format=torch.channels_last)
            net[3].weight.data = net[3].weight.data.T.contiguous().T
            assert not any(net[i].weight.is_contiguous() for i in (0, 3))
        return net

    found = []
    for otherwise in (False, True):
        net = methods.create(name, backbone(otherwise), **{**QUICK, **SMALL.get(name, {})})
        for task in range(2):
            x, y = blobs(task, rows=48, shape=(3, 6, 6))
            net.learn(f"task {task}", (x, y), (x, y))
        net.save(tmp_path / "net.st")
        again = load(tmp_path / "net.st", backbone(not otherwise))
        found += [[n.predict(task, x) for task in n.tasks] for n in (net, again)]
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))
