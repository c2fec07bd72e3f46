"""Pixels the right way round: each reader beside a reading by hand or by another library."""

import gzip
import io
import pickle
import struct
import zipfile
import zlib

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat

from sigmatau.errors import FileError
from sigmatau.streams.readers import cifar, folders, idx, omniglot, svhn

from . import official


def png_by_hand(content: bytes) -> np.ndarray:
    """Decode an unfiltered grey PNG of 1 or 8 bits."""
    at, body = 8, b""
    while at < len(content):
        size, kind = struct.unpack_from(">I4s", content, at)
        if kind == b"IHDR":
            width, height, depth = struct.unpack_from(">IIB", content, at + 8)
        if kind == b"IDAT":
            body += content[at + 8 : at + 8 + size]
        at += 12 + size
    lines = np.frombuffer(zlib.decompress(body), np.uint8).reshape(height, -1)
    assert not lines[:, 0].any(), "this decoder knows no filters"
    return np.unpackbits(lines[:, 1:], axis=1, count=width) if depth == 1 else lines[:, 1:]


def mat_by_hand(path) -> dict[str, np.ndarray]:
    """Decode the compressed matrices of bytes in a MATLAB 5 file."""
    content, at, found = path.read_bytes(), 128, {}
    while at < len(content):
        kind, size = struct.unpack_from("<II", content, at)
        assert kind == 15, "compressed"
        matrix, inner, parts = zlib.decompress(content[at + 8 : at + 8 + size]), 8, []
        while inner < len(matrix):
            word, length = struct.unpack_from("<II", matrix, inner)
            if word >> 16:  # a small element holds its bytes where others hold their length
                parts.append(matrix[inner + 4 : inner + 4 + (word >> 16)])
                inner += 8
            else:
                parts.append(matrix[inner + 8 : inner + 8 + length])
                inner += 8 + (length + 7) // 8 * 8
        shape = struct.unpack(f"<{len(parts[1]) // 4}i", parts[1])
        found[parts[2].decode()] = np.frombuffer(parts[3], np.uint8).reshape(shape, order="F")
        at += 8 + size
    return found


def cifar_by_hand(path) -> np.ndarray:
    """Find the longest byte string of a pickle: the table of pixels."""
    content, at, longest = path.read_bytes(), 0, b""
    while (at := content.find(b"T", at)) >= 0:
        (size,) = struct.unpack_from("<i", content, at + 1) if at + 5 <= len(content) else (0,)
        if len(longest) < size <= len(content) - at - 5:
            longest = memoryview(content)[at + 5 : at + 5 + size]
            if size > 10_000:
                break
        at += 1
    return np.frombuffer(longest, np.uint8).reshape(-1, 3072)


def upright(row: np.ndarray) -> np.ndarray:
    """One CIFAR row as HxWx3, colour by colour and line by line."""
    return np.stack([[row[c * 1024 :][y * 32 :][:32] for y in range(32)] for c in range(3)], axis=2)


def test_cifar_generated(made):
    root, truth = made
    got = cifar.read_cifar100(root / "cifar-100-python")
    expected = truth["cifar100"]["train_data"]
    assert np.array_equal(got["train_x"][5].transpose(1, 2, 0), upright(expected[5]))
    assert np.array_equal(got["train_y"], truth["cifar100"]["train_y"])
    assert got.meta["classes"][7] == "fine 7"
    assert got.meta["coarse"][3] == "coarse 3"
    ten = cifar.read_cifar10(root / "cifar-10-batches-py")
    assert ten["train_x"].shape == (80, 3, 32, 32)
    assert np.array_equal(ten["train_x"][40:].reshape(40, -1), official.noise(11, 40, 3072))


def test_cifar_real(real):
    root = real("cifar100", "cifar10")
    for path, read, part in (
        (root / "cifar-100-python" / "test", cifar.read_cifar100, "test_x"),
        (root / "cifar-10-batches-py" / "data_batch_1", cifar.read_cifar10, "train_x"),
    ):
        got, by_hand = read(path.parent)[part], cifar_by_hand(path)
        for i in (0, 1234):
            assert np.array_equal(got[i].transpose(1, 2, 0), upright(by_hand[i]))
        # Skies are above: the top line of the mean image is bluer than the bottom line.
        mean = got.mean(axis=0)
        assert mean[2, 0].mean() - mean[0, 0].mean() > mean[2, -1].mean() - mean[0, -1].mean()


class Hostile:
    def __reduce__(self):
        return (print, ("this must never run",))


@pytest.mark.parametrize(
    "value",
    [{b"data": Hostile()}, Hostile(), [1], {b"data": b"x"}, {b"data": np.zeros((2, 5), "u1")}],
)
@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_hostile_or_foreign_pickle_is_refused_before_it_runs(tmp_path, capsys, value, protocol):
    for file in ("train", "test", "meta"):
        (tmp_path / file).write_bytes(pickle.dumps(value, protocol=protocol))
    with pytest.raises(FileError, match="train"):
        cifar.read_cifar100(tmp_path)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    "name", ["os.system", "builtins.eval", "builtins.getattr", "numpy.load", "numpy.core.os.system"]
)
def test_no_other_function_can_be_named(tmp_path, name):
    module, _, function = name.rpartition(".")
    path = tmp_path / "train"
    path.write_bytes(b"\x80\x02c" + f"{module}\n{function}\n".encode() + b"U\x04true\x85R.")
    with pytest.raises(FileError, match=function):
        cifar.unpickle(path)


def test_a_broken_off_or_mislabelled_cifar_file_is_refused(made, tmp_path):
    whole = (made[0] / "cifar-100-python" / "train").read_bytes()
    (tmp_path / "train").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(FileError, match="fetch it again"):
        cifar.unpickle(tmp_path / "train")
    batch = {b"data": np.zeros((2, 3072), np.uint8), b"fine_labels": [0, 100]}
    (tmp_path / "train").write_bytes(official.python2_pickle(batch))
    with pytest.raises(FileError, match="outside 0 to 99"):
        cifar.read_cifar100(tmp_path)


def test_idx_generated_and_plain(made, tmp_path):
    root, truth = made
    got = idx.read_mnist(root / "mnist", list("0123456789"))
    assert np.array_equal(got["train_x"][:, 0], truth["mnist"]["train_x"])
    assert np.array_equal(got["test_y"], truth["mnist"]["test_y"])
    packed = root / "mnist" / "train-images-idx3-ubyte.gz"
    (tmp_path / "plain").write_bytes(gzip.decompress(packed.read_bytes()))
    assert np.array_equal(idx.read_idx(tmp_path / "plain"), idx.read_idx(packed))


def test_idx_real(real):
    folder = real("mnist") / "mnist"
    got = idx.read_mnist(folder, list("0123456789"))
    content = gzip.decompress((folder / "t10k-images-idx3-ubyte.gz").read_bytes())
    assert content[16 + 784 * 7 : 16 + 784 * 8] == got["test_x"][7].tobytes()
    assert got["train_y"][:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]
    # A one is upright: its ink is spread over more lines than columns.
    one = got["train_x"][got["train_y"] == 1].mean(axis=(0, 1)) > 40
    assert one.any(axis=1).sum() > one.any(axis=0).sum()


@pytest.mark.parametrize(
    "damage",
    [
        lambda b: b[:-9],
        lambda b: b"",
        lambda b: b"not a file at all",
        lambda b: gzip.compress(gzip.decompress(b)[:-1]),
        lambda b: gzip.compress(gzip.decompress(b) + b"!"),
        lambda b: gzip.compress(b"\0\0\x0d\x03" + gzip.decompress(b)[4:]),
        lambda b: gzip.compress(b"\0\0\x08\x03\0"),
    ],
)
def test_a_damaged_idx_file_is_refused(made, tmp_path, damage):
    path = tmp_path / "train-images-idx3-ubyte.gz"
    path.write_bytes(damage((made[0] / "mnist" / path.name).read_bytes()))
    with pytest.raises(FileError, match=path.name):
        idx.read_idx(path)


def test_svhn_generated_and_by_hand(made):
    root, truth = made
    got = svhn.read_svhn(root / "svhn")
    x, y = truth["svhn"]["train_x"], truth["svhn"]["train_y"]
    assert np.array_equal(got["train_x"][3].transpose(1, 2, 0), x[:, :, :, 3])
    assert np.array_equal(got["train_y"], np.where(y == 10, 0, y))
    by_hand = mat_by_hand(root / "svhn" / "train_32x32.mat")
    assert np.array_equal(by_hand["X"], x)


def test_svhn_real(real):
    path = real("svhn") / "svhn" / "test_32x32.mat"
    x, y = svhn.read_mat(path)
    by_hand = mat_by_hand(path)
    assert np.array_equal(x[11].transpose(1, 2, 0), by_hand["X"][:, :, :, 11])
    assert np.array_equal(y, by_hand["y"].ravel() % 10)


def test_a_foreign_mat_file_is_refused(tmp_path):
    path = tmp_path / "train_32x32.mat"
    path.write_bytes(b"nothing")
    with pytest.raises(FileError, match="not an SVHN file"):
        svhn.read_mat(path)
    savemat(path, {"X": np.zeros((32, 32, 3, 2), np.uint8), "y": np.array([[0], [1]])})
    with pytest.raises(FileError, match="zero ten"):
        svhn.read_mat(path)
    savemat(path, {"X": np.zeros((2, 32, 32, 3), np.uint8), "y": np.array([[1], [1]])})
    with pytest.raises(FileError, match="32x32x3xn"):
        svhn.read_mat(path)


def shrunk_by_pillow(ink: np.ndarray) -> np.ndarray:
    """Enlarge fourfold, then average 15 x 15 blocks with Pillow's own reduction."""
    large = Image.fromarray(np.kron(ink, np.ones((4, 4), bool)).astype(np.uint8) * 255)
    return np.asarray(large.reduce(15))


def test_omniglot_generated(made):
    root, truth = made
    got = omniglot.read_omniglot(root / "omniglot")
    titles = got.meta["characters"]
    assert titles[:2] == ["Alphabet_0/character01", "Alphabet_0/character02"]
    ink = truth["omniglot"]["images_background/Alphabet_0/character02"]
    small = got["x"][1]
    for d in (0, 19):
        assert np.abs(small[d].astype(int) - shrunk_by_pillow(ink[d])).max() <= 1
    # The last drawing is the first upside down, so turned by 180 degrees it is the first.
    assert got["id"][1, 0, 2] == got["id"][1, 19, 0]
    assert np.array_equal(np.rot90(small[0], 2), small[19])


def test_omniglot_real(real):
    path = real("omniglot") / "omniglot" / "images_background.zip"
    got = omniglot.read_zip(path)
    assert len(got) == 964
    assert list(got) == sorted(got)
    with zipfile.ZipFile(path) as archive:
        entries = sorted(n for n in archive.namelist() if "Greek/character01" in n)
        bits = png_by_hand(archive.read(entries[4]))
        other = np.asarray(Image.open(io.BytesIO(archive.read(entries[4]))))
    assert np.array_equal(bits.astype(bool), other)
    small = got["Greek/character01"][4]
    assert np.abs(small.astype(int) - shrunk_by_pillow(bits == 0)).max() <= 1
    assert small.mean() < 60, "ink is bright on a dark ground"


def test_a_damaged_or_incomplete_zip_is_refused(made, tmp_path):
    path = tmp_path / "images_background.zip"
    whole = (made[0] / "omniglot" / path.name).read_bytes()
    path.write_bytes(whole[:5000])
    with pytest.raises(FileError, match="fetch it again"):
        omniglot.read_zip(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(
            "images_background/A/character01/0001_01.png", official.png(np.eye(105) > 0)
        )
    with pytest.raises(FileError, match="1 drawings, not 20"):
        omniglot.read_zip(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(
            "images_background/A/character01/0001_01.png", official.png(np.eye(28) > 0)
        )
    with pytest.raises(FileError, match="not 105 x 105"):
        omniglot.read_zip(path)


def test_gtsrb_generated_and_by_hand(made):
    root, truth = made
    got = folders.read_gtsrb(root / "GTSRB")
    assert np.array_equal(got["train_x"].transpose(0, 2, 3, 1), truth["gtsrb"]["train"])
    assert np.array_equal(got["test_x"].transpose(0, 2, 3, 1), truth["gtsrb"]["test"])
    assert got["train_y"][:9].tolist() == [0, 0, 0, 0, 1, 1, 1, 1, 2]
    assert got["test_y"][44] == 1
    assert len(set(got.meta["classes"])) == 43


def test_gtsrb_real(real):
    folder = real("gtsrb") / "GTSRB"
    got = folders.read_gtsrb(folder)
    path = sorted((folder / "Final_Training" / "Images" / "00014").glob("*.ppm"))[3]
    magic, size, top, body = path.read_bytes().split(b"\n", 3)
    assert (magic, size, top) == (b"P6", b"32 32", b"255")
    by_hand = np.frombuffer(body, np.uint8).reshape(32, 32, 3)
    stop = got["train_x"][got["train_y"] == 14]
    assert np.array_equal(stop[3].transpose(1, 2, 0), by_hand)
    assert stop[:, 0].mean() > stop[:, 2].mean(), "stop signs are red"


def test_larger_signs_are_scaled_without_losing_their_place(made, tmp_path):
    big = np.zeros((64, 96, 3), np.uint8)
    big[:32, :48, 0] = 255  # red in the upper left quarter
    (tmp_path / "a.ppm").write_bytes(official.ppm(big))
    x, opened = folders.read_pictures([tmp_path / "a.ppm"], "RGB", 32)
    assert opened.all()
    assert x.shape == (1, 3, 32, 32)
    assert x[0, 0, :14, :14].min() == 255
    assert x[0, 0, 18:].max() == 0


def test_notmnist_generated(made):
    root, truth = made
    options = {"name": "notmnist", "mode": "L", "size": 28, "classes": 10}
    got = folders.read_class_folders(root / "notMNIST_small", **options)
    assert got.meta["classes"] == list("ABCDEFGHIJ")
    assert got.meta["notes"] == ["notmnist: 1 files could not be opened"]
    assert len(got["test_y"]) == 20
    both = {x.tobytes() for part in ("train_x", "test_x") for x in got[part]}
    assert both == {x.tobytes() for letter in truth["notmnist"].values() for x in letter}
    third = got["train_x"][got["train_y"] == 2]
    assert all(x[0].tobytes() in {t.tobytes() for t in truth["notmnist"]["C"]} for x in third)


def test_notmnist_real(real):
    folder = real("notmnist") / "notMNIST_small"
    path = sorted((folder / "D").iterdir())[5]
    x, _ = folders.read_pictures([path], "L", 28)
    assert np.array_equal(x[0, 0], png_by_hand(path.read_bytes()))


def test_too_few_class_folders_and_foreign_folders_are_refused(made, tmp_path):
    (tmp_path / "A").mkdir()
    with pytest.raises(FileError, match="1 class folders, not 10"):
        folders.read_class_folders(tmp_path, name="n", mode="L", size=28, classes=10)
    train = tmp_path / "Final_Training" / "Images" / "cats"
    train.mkdir(parents=True)
    (train / "1.ppm").write_bytes(b"")
    with pytest.raises(FileError, match="GT-final_test"):
        folders.read_gtsrb(tmp_path)
