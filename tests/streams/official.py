"""Small files in the official formats, with the arrays they were made of."""

from __future__ import annotations

import csv
import gzip
import pickle
import struct
import zipfile
import zlib
from io import BytesIO
from pathlib import Path
from typing import ClassVar

import numpy as np
from scipy.io import savemat

FINE, COARSE = 100, 20
CHARACTERS = {"images_background": 14, "images_evaluation": 12}


def noise(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


class Python2(pickle._Pickler):
    """Writes bytes as Python 2 wrote its strings, which is how the CIFAR files were made."""

    dispatch: ClassVar = dict(pickle._Pickler.dispatch)

    def save_string(self, text: bytes) -> None:
        self.write(b"T" + struct.pack("<i", len(text)) + text)

    dispatch[bytes] = save_string


def python2_pickle(value: object) -> bytes:
    out = BytesIO()
    Python2(out, protocol=2).dump(value)
    return out.getvalue().replace(b"numpy._core.multiarray", b"numpy.core.multiarray")


def cifar100(root: Path) -> dict[str, np.ndarray]:
    folder = root / "cifar-100-python"
    folder.mkdir()
    truth = {}
    for seed, (part, each) in enumerate((("train", 6), ("test", 2))):
        y = np.tile(np.arange(FINE), each)
        data = noise(seed, len(y), 3072)
        content = {
            b"data": data,
            b"fine_labels": y.tolist(),
            b"coarse_labels": (y % COARSE).tolist(),
            b"filenames": [b"%d.png" % i for i in range(len(y))],
            b"batch_label": b"a batch",
        }
        (folder / part).write_bytes(python2_pickle(content))
        truth |= {f"{part}_data": data, f"{part}_y": y}
    names = {
        b"fine_label_names": [b"fine %d" % i for i in range(FINE)],
        b"coarse_label_names": [b"coarse %d" % i for i in range(COARSE)],
    }
    (folder / "meta").write_bytes(python2_pickle(names))
    return truth


def cifar10(root: Path) -> None:
    folder = root / "cifar-10-batches-py"
    folder.mkdir()
    for seed, file in enumerate(("data_batch_1", "data_batch_2", "test_batch"), start=10):
        y = np.tile(np.arange(10), 4)
        content = {b"data": noise(seed, len(y), 3072), b"labels": y.tolist()}
        (folder / file).write_bytes(python2_pickle(content))
    names = [b"class %d" % i for i in range(10)]
    (folder / "batches.meta").write_bytes(python2_pickle({b"label_names": names}))


def idx(path: Path, array: np.ndarray) -> None:
    head = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
    path.write_bytes(gzip.compress(head + array.tobytes(), mtime=0))


def mnist(root: Path, name: str = "mnist", seed: int = 20) -> dict[str, np.ndarray]:
    folder = root / name
    folder.mkdir()
    truth = {}
    for part, stem, each in (("train", "train", 12), ("test", "t10k", 6)):
        y = np.tile(np.arange(10, dtype=np.uint8), each)
        x = noise(seed + each, len(y), 28, 28)
        idx(folder / f"{stem}-images-idx3-ubyte.gz", x)
        idx(folder / f"{stem}-labels-idx1-ubyte.gz", y)
        truth |= {f"{part}_x": x, f"{part}_y": y}
    return truth


def png(rows: np.ndarray) -> bytes:
    """Encode a grey picture, or bits, without any filter."""
    depth = 1 if rows.dtype == bool else 8
    lines = np.packbits(rows, axis=1) if depth == 1 else rows
    body = zlib.compress(b"".join(b"\0" + line.tobytes() for line in lines))
    head = struct.pack(">IIBBBBB", rows.shape[1], rows.shape[0], depth, 0, 0, 0, 0)
    chunks = ((b"IHDR", head), (b"IDAT", body), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(b)) + kind + b + struct.pack(">I", zlib.crc32(kind + b))
        for kind, b in chunks
    )


def omniglot(root: Path) -> dict[str, np.ndarray]:
    """Write both zips; in each character the last drawing is the first turned upside down."""
    folder = root / "omniglot"
    folder.mkdir()
    truth = {}
    for seed, (stem, count) in enumerate(CHARACTERS.items(), start=40):
        with zipfile.ZipFile(folder / f"{stem}.zip", "w") as archive:
            for c in range(count):
                ink = noise(100 * seed + c, 20, 105, 105) < 40
                ink[19] = ink[0, ::-1, ::-1]
                title = f"Alphabet_{c // 5}/character{c % 5 + 1:02d}"
                for d, drawing in enumerate(ink):
                    archive.writestr(f"{stem}/{title}/{c:04d}_{d + 1:02d}.png", png(~drawing))
                truth[f"{stem}/{title}"] = ink
    return truth


def svhn(root: Path) -> dict[str, np.ndarray]:
    folder = root / "svhn"
    folder.mkdir()
    truth = {}
    for seed, (part, each) in enumerate((("train", 8), ("test", 3)), start=60):
        y = np.tile(np.arange(1, 11, dtype=np.uint8), each)
        x = noise(seed, 32, 32, 3, len(y))
        savemat(folder / f"{part}_32x32.mat", {"X": x, "y": y[:, None]}, do_compression=True)
        truth |= {f"{part}_x": x, f"{part}_y": y}
    return truth


def ppm(picture: np.ndarray) -> bytes:
    return b"P6\n%d %d\n255\n" % (picture.shape[1], picture.shape[0]) + picture.tobytes()


def gtsrb(root: Path) -> dict[str, np.ndarray]:
    truth = {"train": noise(70, 43 * 4, 32, 32, 3), "test": noise(71, 43 * 2, 32, 32, 3)}
    for i, picture in enumerate(truth["train"]):
        folder = root / "GTSRB" / "Final_Training" / "Images" / f"{i // 4:05d}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"00000_{i % 4:05d}.ppm").write_bytes(ppm(picture))
    folder = root / "GTSRB" / "Final_Test" / "Images"
    folder.mkdir(parents=True)
    with (folder / "GT-final_test.csv").open("w", newline="") as file:
        table = csv.writer(file, delimiter=";")
        table.writerow(["Filename", "Width", "Height", "ClassId"])
        for i, picture in enumerate(truth["test"]):
            (folder / f"{i:05d}.ppm").write_bytes(ppm(picture))
            table.writerow([f"{i:05d}.ppm", 32, 32, i % 43])
    return truth


def notmnist(root: Path) -> dict[str, np.ndarray]:
    truth = {}
    for i, letter in enumerate("ABCDEFGHIJ"):
        folder = root / "notMNIST_small" / letter
        folder.mkdir(parents=True)
        truth[letter] = noise(80 + i, 12, 28, 28)
        for n, picture in enumerate(truth[letter]):
            (folder / f"{n:02d}.png").write_bytes(png(picture))
    (root / "notMNIST_small" / "A" / "broken.png").write_bytes(b"")
    return truth


def everything(root: Path) -> dict[str, dict[str, np.ndarray]]:
    """Write every set but FaceScrub."""
    cifar10(root)
    return {
        "cifar100": cifar100(root),
        "mnist": mnist(root),
        "fashion-mnist": mnist(root, "fashion-mnist", seed=30),
        "omniglot": omniglot(root),
        "svhn": svhn(root),
        "gtsrb": gtsrb(root),
        "notmnist": notmnist(root),
    }
