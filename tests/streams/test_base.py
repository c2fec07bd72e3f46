import pytest
import torch

from sigmatau import streams
from sigmatau.errors import ConfigError, DataError
from sigmatau.streams import Stream, Task, registry


def task(i: int = 0, **changes: object) -> Task:
    pair = (torch.full((4, 3), i / 10), torch.tensor([0, 1, 0, 1]))
    parts = {"name": f"t{i}", "train": pair, "val": None, "test": pair, "classes": ("a", "b")}
    return Task(**{**parts, **changes})


def stream(**options: object) -> tuple[Stream, list[int]]:
    built: list[int] = []

    def build(i: int) -> Task:
        built.append(i)
        return task(i)

    made = Stream("s", [f"t{i}" for i in range(4)], build, input_shape=(3,), **options)
    return made, built


def test_tasks_are_built_when_asked_for_and_orders_do_not_change_them():
    s, built = stream(orders={"B": (3, 1, 0, 2)})
    assert built == []
    names = [t.name for t in s.in_order("B")]
    assert names == ["t3", "t1", "t0", "t2"]
    assert built == [3, 1, 0, 2]
    assert [t.name for t in s] == ["t0", "t1", "t2", "t3"]
    assert s[-1].name == "t3"
    with pytest.raises(IndexError, match="4 tasks"):
        s[4]


def test_orders_are_named_random_or_given():
    s, _ = stream()
    assert s.order("A") == (0, 1, 2, 3)
    assert s.order([2, 0]) == (2, 0)
    assert s.order("random:3") == s.order("random:3")
    assert sorted(s.order("random:3")) == [0, 1, 2, 3]
    assert len({s.order(f"random:{seed}") for seed in range(8)}) > 3


@pytest.mark.parametrize("order", ["F", "random:", "random:-1", [0, 0], [4], [-1], []])
def test_an_order_that_makes_no_sense_is_refused(order):
    s, _ = stream()
    with pytest.raises(ConfigError):
        s.order(order)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"test": (torch.zeros(2, 3), torch.tensor([0, 2]))}, "labels run from 0 to 2"),
        ({"test": (torch.zeros(2, 3), torch.tensor([0]))}, "2 inputs and 1 labels"),
        ({"test": (torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64))}, "0 inputs"),
        ({"val": (torch.zeros(1, 4), torch.tensor([0]))}, "of shape"),
        ({"train": (torch.zeros(1, 3).double(), torch.tensor([0]))}, "float32"),
    ],
)
def test_a_task_that_cannot_be_learnt_is_refused(change, message):
    with pytest.raises(DataError, match=message):
        task(**change)


def test_every_benchmark_of_the_paper_has_a_name():
    assert set(streams.names()) >= {
        "digits",
        "split-cifar100",
        "superclass-cifar100",
        "omniglot-rotation",
        "permuted-mnist",
        "split-mnist-8x8",
        "mnist-variation",
        "hetero3",
        "hetero8",
    }


def test_an_unknown_name_or_option_gets_the_nearest():
    with pytest.raises(ConfigError, match="did you mean 'split-cifar100'"):
        streams.get("split-cifar10")
    with pytest.raises(ConfigError, match="no option 'valid': did you mean 'val'"):
        streams.get("split-cifar100", valid=3)


def test_the_registry_refuses_a_second_stream_of_the_same_name():
    with pytest.raises(ConfigError, match="already"):
        streams.register("digits")(lambda *, root, seed: None)
    # Also when the first has not been imported yet.
    with pytest.raises(ConfigError, match="already"):
        streams.register("hetero3")(lambda *, root, seed: None)


def test_a_stream_of_ones_own_can_be_registered(monkeypatch):
    monkeypatch.setattr(registry, "_entries", {})

    @streams.register("mine")
    def mine(*, root, seed, width=3):
        return Stream("mine", ["t0"], lambda i: task(i), input_shape=(width,), seed=seed)

    assert "mine" in streams.names()
    assert streams.get("mine", seed=4, width=5).input_shape == (5,)
