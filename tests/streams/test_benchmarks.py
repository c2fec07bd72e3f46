"""What every benchmark promises, on generated files everywhere and on the real ones where they are.

Promises are checked here on the tensors themselves, by hashes of their bytes.
"""

import hashlib
from dataclasses import replace

import numpy as np
import pytest
import torch

from sigmatau import streams
from sigmatau.errors import ConfigError, FileError
from sigmatau.streams.benchmarks import mnist_variation, omniglot_rotation
from sigmatau.streams.sets import SETS
from sigmatau.streams.split import drawn_orders

NAMES = [
    "split-cifar100",
    "superclass-cifar100",
    "omniglot-rotation",
    "permuted-mnist",
    "split-mnist-8x8",
    "mnist-variation",
    "hetero3",
    "hetero8",
]
SMALL = {"split-cifar100": {"val": 2}, "superclass-cifar100": {"val": 2}}
SHAPES = {
    "digits": (1, 8, 8),
    "split-cifar100": (3, 32, 32),
    "superclass-cifar100": (3, 32, 32),
    "omniglot-rotation": (1, 28, 28),
    "permuted-mnist": (784,),
    "split-mnist-8x8": (64,),
    "mnist-variation": (784,),
    "hetero3": (3, 32, 32),
    "hetero8": (3, 32, 32),
}
REAL_SETS = (
    "cifar100",
    "cifar10",
    "mnist",
    "fashion-mnist",
    "omniglot",
    "svhn",
    "gtsrb",
    "notmnist",
)


@pytest.fixture
def small(made, monkeypatch):
    """Get a stream from the generated files, with the counts those allow."""
    monkeypatch.setattr(omniglot_rotation, "CHARACTERS", 24)
    for name, count in (("TRAIN", 60), ("VAL", 50), ("TEST", 50)):
        monkeypatch.setattr(mnist_variation, name, count)
    return lambda name, **options: streams.get(
        name, root=made[0], **{**SMALL.get(name, {}), **options}
    )


def rows(x: torch.Tensor) -> list[bytes]:
    return [row.tobytes() for row in x.numpy()]


def check(stream, tasks=None):
    """Check what holds for every stream; return the counts of each task's parts."""
    name = stream.name.split("-no-")[0]
    seen = {"train": set(), "val": set(), "test": set()}
    counts = []
    for i in range(len(stream)) if tasks is None else tasks:
        task = stream[i]
        assert task.name == stream.task_names[i]
        assert len(set(task.classes)) == len(task.classes) >= 2
        counts.append(tuple(len(y) for _, y in task.parts().values()))
        for part, (x, y) in task.parts().items():
            assert x.dtype == torch.float32
            assert y.dtype == torch.int64
            assert tuple(x.shape[1:]) == stream.input_shape == SHAPES[name]
            assert 0 <= float(x.min()) < float(x.max()) <= 1
            assert y.unique().tolist() == list(range(len(task.classes)))
            seen[part].update(map(hash, rows(x)))
    assert not seen["train"] & seen["test"]
    assert not seen["val"] & (seen["train"] | seen["test"])
    for order in stream.orders.values():
        assert sorted(order) == list(range(len(stream)))
    return counts


def digest(stream, tasks) -> str:
    """Hash which image, as bytes, stands where in the given tasks."""
    out = hashlib.sha256()
    for i in tasks:
        for part, (x, y) in stream[i].parts().items():
            # Bytes, not floats: the last bit of a division is not what is promised.
            out.update(part.encode() + x.mul(255).round().byte().numpy().tobytes())
            out.update(y.numpy().astype("<i8").tobytes())
    return out.hexdigest()[:16]


@pytest.mark.parametrize("name", NAMES)
def test_generated_files_make_every_stream(small, name):
    stream = small(name)
    check(stream)
    assert digest(stream, [0]) == digest(small(name), [0])
    other = small(name, seed=1)
    if name != "split-mnist-8x8":  # takes all of the official split
        assert digest(stream, [0]) != digest(other, [0])
    assert {"A", "B"} <= set(stream.orders)


def test_the_digits_are_embedded_and_the_same_everywhere(tmp_path):
    stream = streams.get("digits", root=tmp_path)
    assert check(stream) == [
        (220, 50, 90),
        (220, 50, 90),
        (223, 50, 90),
        (220, 50, 90),
        (214, 50, 90),
    ]
    assert digest(stream, range(5)) == "af192b592997b780"
    assert stream[3].classes == ("6", "7")
    assert list(tmp_path.iterdir()) == []


def test_the_orders_are_those_of_the_paper_or_written_down(small):
    split = small("split-cifar100").orders
    assert split["B"] == (1, 7, 4, 5, 2, 0, 8, 6, 9, 3) == small("mnist-variation").orders["B"]
    assert split["E"] == (2, 9, 5, 4, 8, 0, 6, 1, 3, 7)
    superclass = small("superclass-cifar100").orders
    assert superclass["D"][:6] == (11, 9, 6, 5, 12, 4)
    assert superclass["E"][-3:] == (5, 2, 16)
    assert small("hetero3").orders["up"] == (2, 1, 0)
    assert streams.get("digits").orders["B"] == (2, 0, 3, 1, 4)
    assert small("split-mnist-8x8").orders["E"] == (0, 1, 4, 2, 3)
    assert small("permuted-mnist").orders["D"][:6] == (13, 0, 16, 10, 6, 8)
    assert small("hetero8").orders["C"] == (3, 2, 1, 6, 0, 4, 5)
    omniglot = drawn_orders(100, "omniglot-rotation")
    assert [order[:4] for order in omniglot.values()] == [
        [16, 62, 70, 21],
        [77, 3, 52, 36],
        [23, 87, 84, 92],
        [28, 40, 12, 61],
    ]


def test_split_takes_consecutive_classes_and_superclass_the_coarse_ones(small):
    assert small("split-cifar100")[3].classes == tuple(f"fine {i}" for i in range(30, 40))
    assert small("superclass-cifar100")[3].classes == tuple(f"fine {i}" for i in range(3, 100, 20))
    assert small("superclass-cifar100")[3].name == "coarse 3"
    assert small("split-cifar100", val=0)[0].val is None
    with pytest.raises(ConfigError, match="0 to 499"):
        small("split-cifar100", val=500)


def test_copies_between_training_and_test_are_left_out(made, tmp_path):
    """The first two training images of CIFAR-100 become copies of test images."""
    from . import official

    truth = official.cifar100(tmp_path)
    data = truth["train_data"].copy()
    data[:2] = truth["test_data"][[0, 150]]
    data[300] = data[200]  # and two of training copies of each other
    y = truth["train_y"]
    batch = {b"data": data, b"fine_labels": y.tolist(), b"coarse_labels": (y % 20).tolist()}
    (tmp_path / "cifar-100-python" / "train").write_bytes(official.python2_pickle(batch))
    stream = streams.get("split-cifar100", root=tmp_path, val=2)
    counts = check(stream)
    assert sum(train + val for train, val, _ in counts) == 598
    assert [test for *_, test in counts] == [20] * 10
    assert any("left out 2 training images" in note for note in stream.notes)


def test_permuted_tasks_move_pixels_and_nothing_else(made, small):
    stream, cv = small("permuted-mnist"), small("permuted-mnist", part="cv")
    assert (len(stream), len(cv)) == (17, 3)
    truth = made[1]["mnist"]["train_x"].reshape(-1, 784)
    seen = set()
    for task in (stream[0], stream[1], cv[0]):
        x = (task.train[0] * 255).round().byte().numpy()
        assert np.array_equal(np.sort(x, axis=1), np.sort(truth, axis=1))
        assert not np.array_equal(x, truth)
        seen.add(x.tobytes())
    assert len(seen) == 3
    assert stream[0].val is None
    with pytest.raises(ConfigError, match="'main' and 'cv'"):
        small("permuted-mnist", part="all")


def test_the_window_of_split_mnist_is_the_centre(made, small):
    task = small("split-mnist-8x8")[2]
    assert task.classes == ("4", "5")
    centre = made[1]["mnist"]["test_x"][:, 10:18, 10:18].reshape(-1, 64)
    four = centre[made[1]["mnist"]["test_y"] == 4]
    x, y = task.test
    assert np.array_equal((x[y == 0] * 255).round().byte().numpy(), four)


def test_variation_is_one_against_the_rest_on_photographs_or_noise(small):
    stream = small("mnist-variation")
    assert stream.metric == "auroc"
    assert stream.notes == ("backgrounds: patches of cifar100",)
    labels = torch.stack([stream[i].train[1] for i in range(10)])
    assert bool((labels.sum(0) == 1).all()), "each picture is of exactly one digit"
    assert torch.equal(stream[0].train[0], stream[9].train[0])
    noisy = small("mnist-variation", background="noise")
    assert noisy.notes == ("backgrounds: noise",)
    assert not torch.equal(noisy[0].train[0], stream[0].train[0])
    with pytest.raises(ConfigError, match="background"):
        small("mnist-variation", background="blue")


def test_ink_hides_the_background_and_turning_keeps_the_centre():
    ink = np.zeros((1, 28, 28), np.uint8)
    ink[0, 13:15, 13:15] = 255
    behind = np.full((1, 28, 28), 100, np.uint8)
    assert mnist_variation.over(ink, behind)[0, 0, 0] == 100
    assert mnist_variation.over(ink, behind)[0, 13, 13] == 255
    assert np.array_equal(mnist_variation.turned(ink, np.array([0.25])), ink)
    ink[0, 2, 2] = 255
    assert mnist_variation.turned(ink, np.array([0.25]))[0, 25, 2] == 255  # anticlockwise
    grey = mnist_variation.patches(np.full((3, 3, 32, 32), 200, np.uint8), 5, 0, "train")
    assert grey.shape == (5, 28, 28)
    assert (grey == 200).all()


def test_rotations_of_omniglot_stay_with_their_copies(small):
    stream = small("omniglot-rotation")
    assert len(stream) == 2
    assert check(stream) == [(720, 240)] * 2
    with_val = small("omniglot-rotation", val=8)
    assert check(with_val) == [(624, 96, 240)] * 2
    with pytest.raises(ConfigError, match="0 to 59"):
        small("omniglot-rotation", val=60)


def test_grey_sets_of_hetero8_get_a_border_and_three_channels(made, small):
    stream = small("hetero8")
    assert stream.name == "hetero8-no-facescrub"
    assert "facescrub" not in stream.task_names
    assert any("facescrub is left out" in note for note in stream.notes)
    x = stream[stream.task_names.index("mnist")].test[0]
    assert float(x[:, :, :2].max()) == float(x[:, :, :, -2:].max()) == 0
    inside = (x[:, :, 2:-2, 2:-2] * 255).round().byte().numpy()
    for channel in range(3):
        assert np.array_equal(inside[:, channel], made[1]["mnist"]["test_x"])
    assert any(
        note.startswith("cifar10: 80 training and 40 test images here") for note in stream.notes
    )
    with pytest.raises(ConfigError, match="share"):
        small("hetero3", val=1.5)
    assert small("hetero3", val=0)[0].val is None


def test_orders_of_hetero8_keep_their_sequence_when_a_set_is_missing(made, tmp_path, small):
    for folder in ("mnist", "svhn"):
        (tmp_path / folder).symlink_to(made[0] / folder)
    few = streams.get("hetero8", root=tmp_path)
    assert few.task_names == ("mnist", "svhn")
    assert few.name.count("-no-") == 6
    all_seven = small("hetero8")
    for order in "BCDE":
        named = [all_seven.task_names[i] for i in all_seven.orders[order]]
        assert [few.task_names[i] for i in few.orders[order]] == [
            n for n in named if n in few.task_names
        ]


@pytest.mark.parametrize("name", [n for n in NAMES if n != "hetero8"])
def test_a_missing_file_is_named_with_what_to_do(tmp_path, name):
    with pytest.raises(FileError) as caught:
        streams.get(name, root=tmp_path)
    message = str(caught.value)
    assert str(tmp_path) in message
    assert "sigmatau data fetch" in message
    assert "http" in message


def test_hetero8_without_anything_says_so(tmp_path):
    with pytest.raises(FileError, match="data fetch hetero8"):
        streams.get("hetero8", root=tmp_path)


def test_the_data_folder_comes_from_the_environment(made, monkeypatch):
    monkeypatch.setenv("SIGMATAU_DATA", str(made[0]))
    assert len(streams.get("permuted-mnist")) == 17


# Counts, names and digests on the real files. The digest pins seed 0 for every machine.
REAL = {
    "split-cifar100": (10, [0, 9], "cb1ef3a885811e54"),
    "superclass-cifar100": (20, [0, 19], "9f1c14eec175ba7b"),
    "omniglot-rotation": (100, [0, 99], "632bd761cba653ab"),
    "permuted-mnist": (17, [0], "f90d45a95dd0d12b"),
    "split-mnist-8x8": (5, [0, 4], "21dd787b5efd7fd4"),
    "mnist-variation": (10, [0, 9], "e5d5bb93727a8361"),
    "hetero3": (3, [0, 1], "2aa1af19dd3fc9ea"),
    "hetero8": (7, [0, 3, 6], "4bfedc19d6619d57"),
}


@pytest.mark.parametrize("name", NAMES)
def test_real_streams_have_the_counts_of_the_paper_and_the_pinned_split(real, name):
    # All sets for all streams: backgrounds and hetero8 depend on what else is there.
    stream = streams.get(name, root=real(*REAL_SETS))
    tasks, pinned, gold = REAL[name]
    assert len(stream) == tasks
    # Every task of permuted MNIST is all of MNIST again; two of them tell as much as seventeen.
    counts = check(stream, range(2) if name == "permuted-mnist" else None)
    if name == "split-cifar100":
        assert all(c[1:] == (1000, 1000) and 3990 <= c[0] <= 4000 for c in counts)
        assert sum(c[0] for c in counts) == 39_990  # ten have a copy among the test images
        assert stream[0].classes[:3] == ("apple", "aquarium_fish", "baby")
    elif name == "superclass-cifar100":
        assert all(c[1:] == (500, 500) and 1990 <= c[0] <= 2000 for c in counts)
        assert stream[1].classes == ("aquarium_fish", "flatfish", "ray", "shark", "trout")
        assert (stream.task_names[0], stream.task_names[-1]) == ("aquatic_mammals", "vehicles_2")
    elif name == "omniglot-rotation":
        assert counts == [(720, 240)] * 100
        per_class = torch.bincount(stream[57].test[1])
        assert per_class.tolist() == [20] * 12
    elif name == "permuted-mnist":
        assert counts == [(60_000, 10_000)] * 2
    elif name == "split-mnist-8x8":
        assert sum(test for _, test in counts) == 10_000
        assert 59_500 < sum(train for train, _ in counts) < 60_000
    elif name == "mnist-variation":
        assert counts == [(10_000, 2_000, 3_000)] * 10
    else:
        assert stream.task_names[-1] == {"hetero3": "cifar100", "hetero8": "notmnist"}[name]
        for train, val, _ in counts:
            assert abs(val / (train + val) - 0.15) < 0.003
    assert digest(stream, pinned) == gold


@pytest.mark.parametrize("name", NAMES)
def test_the_second_start_parses_nothing(real, name, monkeypatch):
    root = real(*REAL_SETS)
    first = streams.get(name, root=root)

    def never(folder):
        raise AssertionError(f"{folder} is parsed again")

    for each, images in SETS.items():
        monkeypatch.setitem(SETS, each, replace(images, read=never))
    assert streams.get(name, root=root).task_names == first.task_names


def test_real_sets_have_the_published_numbers(real):
    """Channel means of CIFAR-100 and class counts of MNIST, as published."""
    from sigmatau.streams.sets import load

    root = real("cifar100", "mnist")
    mean = load("cifar100", root)["train_x"].mean(axis=(0, 2, 3)) / 255
    assert np.allclose(mean, [0.5071, 0.4865, 0.4409], atol=1e-3)
    assert np.bincount(load("mnist", root)["train_y"])[:3].tolist() == [5923, 6742, 5958]


def test_every_set_a_stream_needs_is_known():
    from sigmatau.streams import registry

    for name in streams.names():
        assert set(registry.entry(name).needs) <= set(SETS)
