import numpy as np
import pytest
import torch
from PIL import Image

from sigmatau import streams
from sigmatau.errors import ConfigError, DataError

from .official import noise


def pair(n: int, seed: int = 0, classes: int = 2):
    return torch.from_numpy(noise(seed, n, 3, 4, 4)), torch.arange(n) % classes


def rows(x: torch.Tensor) -> set[bytes]:
    return {row.tobytes() for row in x.numpy()}


def disjoint(stream) -> bool:
    parts = {"train": set(), "val": set(), "test": set()}
    for task in stream:
        for part, (x, _) in task.parts().items():
            parts[part] |= rows(x)
    a, b, c = parts.values()
    return not (a & b or a & c or b & c)


def test_a_list_of_tensors_is_split_by_seed():
    stream = streams.from_tensors([pair(50, 1), pair(50, 2, classes=5)])
    assert len(stream) == 2
    task = stream[1]
    assert task.classes == tuple("01234")
    assert [len(y) for _, y in task.parts().values()] == [35, 5, 10]
    assert task.train[0].dtype == torch.float32
    assert float(task.train[0].max()) == 1
    assert disjoint(stream)
    again = streams.from_tensors([pair(50, 1), pair(50, 2, classes=5)])
    assert torch.equal(again[1].train[0], task.train[0])
    other = streams.from_tensors([pair(50, 1), pair(50, 2, classes=5)], seed=1)
    assert not torch.equal(other[1].train[0], task.train[0])


def test_given_parts_are_kept_and_copies_dropped_from_training():
    (x, y), test = pair(10, 1), pair(6, 2)
    x[0] = test[0][3]
    stream = streams.from_tensors([((x, y), test)], orders={"mine": [0]})
    task = stream[0]
    assert task.val is None
    assert (len(task.train[1]), len(task.test[1])) == (9, 6)
    assert stream.notes == ("left out 1 images that a later part has too",)
    assert stream.order("mine") == (0,)
    three = streams.from_tensors([(pair(8, 1), pair(4, 2), pair(4, 3))])
    assert [len(y) for _, y in three[0].parts().values()] == [8, 4, 4]


def test_a_task_can_be_given_as_it_is():
    task = streams.from_tensors([pair(50)])[0]
    again = streams.from_tensors([task], name="again")
    assert torch.equal(again[0].test[0], task.test[0])
    assert again.task_names == ("task 0",)


def test_copies_across_tasks_stay_on_one_side():
    x, y = pair(60, 4)
    stream = streams.from_tensors([(x, y), (x.flip(0), y), (x, 1 - y)])
    assert disjoint(stream)


@pytest.mark.parametrize(
    ("tasks", "message"),
    [
        ([], "no tasks"),
        ([(torch.zeros(4, 2, dtype=torch.int32), torch.zeros(4).long())], "uint8"),
        ([(torch.rand(4, 2), torch.zeros(4))], "whole numbers"),
        ([(torch.rand(4, 2), torch.zeros(3).long())], "4 inputs and 3 labels"),
        ([(torch.full((4, 2), torch.nan), torch.zeros(4).long())], "finite"),
        ([pair(50), (torch.rand(50, 7), torch.arange(50) % 2)], "several input shapes"),
        ([(torch.zeros(9, 2), torch.zeros(9).long())], "without test images"),
        ([(([[0.0]], [0]), ([[0.0]], [0]))], "got list and list"),
        ([(np.zeros((4, 2)), np.array(["a", "b"] * 2))], "<U1 does not become a tensor"),
        ([(pair(3), pair(3), pair(3), pair(3))], "give \\(x, y\\)"),
    ],
)
def test_tensors_that_make_no_task_are_refused(tasks, message):
    with pytest.raises(DataError, match=message):
        streams.from_tensors(tasks)


def test_shares_that_leave_nothing_are_refused():
    with pytest.raises(ConfigError, match="leave a share"):
        streams.from_tensors([pair(50)], val=0.5, test=0.5)


@pytest.fixture
def folder(tmp_path):
    """Two tasks of two classes of ten pictures; class b is brighter than class a."""
    for t, task in enumerate(("birds", "boats")):
        for c, title in enumerate(("a", "b")):
            (tmp_path / task / title).mkdir(parents=True)
            for i, x in enumerate(noise(10 * t + c, 10, 6, 6, 3) // 2 + 128 * c):
                Image.fromarray(x.astype(np.uint8)).save(tmp_path / task / title / f"{i}.png")
    (tmp_path / "birds" / "a" / "readme.txt").write_text("not a picture")
    return tmp_path


def test_a_folder_becomes_a_stream(folder):
    stream = streams.from_folder(folder)
    assert stream.task_names == ("birds", "boats")
    task = stream[0]
    assert task.classes == ("a", "b")
    assert stream.input_shape == (3, 6, 6)
    assert [len(y) for _, y in task.parts().values()] == [14, 2, 4]
    x, y = task.train
    assert float(x[y == 0].max()) < 0.5 < float(x[y == 1].min()) + 0.01
    first = np.asarray(Image.open(folder / "birds" / "a" / "0.png")).transpose(2, 0, 1)
    held = [row for part, _ in task.parts().values() for row in (part * 255).round().byte().numpy()]
    assert any(np.array_equal(first, row) for row in held)
    assert disjoint(stream)


def test_a_folder_may_bring_its_own_parts_and_be_scaled_to_grey(folder):
    for task in ("birds", "boats"):
        for part in ("train", "test"):
            (folder / task / part).mkdir()
        for title in ("a", "b"):
            pictures = sorted((folder / task / title).glob("*.png"))
            (folder / task / "test" / title).mkdir()
            for path in pictures[:3]:
                path.rename(folder / task / "test" / title / path.name)
            (folder / task / title).rename(folder / task / "train" / title)
    stream = streams.from_folder(folder, size=4, mode="L", name="mine")
    assert stream.name == "mine"
    assert stream.input_shape == (1, 4, 4)
    assert [len(y) for _, y in stream[1].parts().values()] == [14, 6]


def test_a_folder_without_training_images_is_refused(folder):
    (folder / "birds" / "test").mkdir()
    for title in ("a", "b"):
        (folder / "birds" / title).rename(folder / "birds" / "test" / title)
    with pytest.raises(DataError, match="'birds' has no training images"):
        streams.from_folder(folder)


def test_a_folder_that_cannot_be_read_is_named(folder, tmp_path):
    with pytest.raises(DataError, match="not a folder"):
        streams.from_folder(tmp_path / "nowhere")
    Image.new("RGB", (9, 9)).save(folder / "boats" / "b" / "odd.png")
    with pytest.raises(DataError, match="size="):
        streams.from_folder(folder)
    (folder / "boats" / "b" / "odd.png").write_bytes(b"broken")
    with pytest.raises(DataError, match=r"odd\.png"):
        streams.from_folder(folder)


def hugging_face(n: int = 40, seed: int = 0):
    datasets = pytest.importorskip("datasets", reason="pip install datasets")
    features = datasets.Features(
        {
            "image": datasets.Image(),
            "label": datasets.ClassLabel(names=["cat", "dog", "elk", "fox"]),
            "place": datasets.Value("string"),
        }
    )
    content = {
        "image": [Image.fromarray(x) for x in noise(seed, n, 5, 5, 3)],
        "label": [i % 4 for i in range(n)],
        "place": ["north" if i < n // 2 else "south" for i in range(n)],
    }
    return datasets.Dataset.from_dict(content, features=features)


def test_a_hugging_face_dataset_is_cut_into_runs_of_classes():
    stream = streams.from_huggingface(hugging_face(), tasks=2)
    assert len(stream) == 2
    assert stream[0].classes == ("cat", "dog")
    assert stream[1].classes == ("elk", "fox")
    assert [len(y) for _, y in stream[1].parts().values()] == [14, 2, 4]
    assert stream.input_shape == (3, 5, 5)
    assert disjoint(stream)


def test_a_hugging_face_dict_keeps_its_splits_and_a_column_may_name_the_task():
    datasets = pytest.importorskip("datasets", reason="pip install datasets")
    both = datasets.DatasetDict({"train": hugging_face(40, 1), "validation": hugging_face(16, 2)})
    both["test"] = hugging_face(24, 3)
    stream = streams.from_huggingface(both, task_column="place", size=4)
    assert stream.task_names == ("north", "south")
    assert [len(y) for _, y in stream[0].parts().values()] == [20, 8, 12]
    assert stream[0].classes == ("cat", "dog", "elk", "fox")
    both["extra"] = hugging_face(4, 4)
    with pytest.raises(DataError, match="extra"):
        streams.from_huggingface(both, tasks=2)


def test_a_hugging_face_call_without_a_task_or_label_says_what_to_give():
    with pytest.raises(ConfigError, match="one of the two"):
        streams.from_huggingface(hugging_face())
    with pytest.raises(DataError, match="label="):
        streams.from_huggingface(hugging_face(), tasks=2, label="kind")
    with pytest.raises(ConfigError, match="1 to 4 tasks"):
        streams.from_huggingface(hugging_face(), tasks=5)
    unlabelled = hugging_face().map(lambda row: {"label": -1 if row["place"] == "south" else 0})
    with pytest.raises(DataError, match="labelled -1"):
        streams.from_huggingface(unlabelled, tasks=2)


def test_a_users_own_loader_works_on_a_task():
    x, y = streams.get("digits")[0].train
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=32)
    assert sum(len(batch) for batch, _ in loader) == len(x)


def test_arrays_are_taken_like_tensors() -> None:
    x, y = pair(50)
    mirrored = x.flip(0).numpy()[::-1], y.numpy().astype(np.int32)
    wanted, found = (streams.from_tensors([given])[0] for given in ((x, y), mirrored))
    for part in ("train", "val", "test"):
        for a, b in zip(getattr(wanted, part), getattr(found, part), strict=True):
            assert torch.equal(a, b)


def test_a_dictionary_of_tensors_names_the_tasks() -> None:
    x, y = torch.rand(40, 3), torch.arange(40) % 2
    stream = streams.from_tensors({"birds": (x, y), "cars": (x.flip(0), y)})
    assert stream.task_names == ("birds", "cars")
    assert stream[1].name == "cars"
