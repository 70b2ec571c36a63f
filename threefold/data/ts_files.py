"""Time series with classes: .ts files of the UEA and UCR archives, and UCR's .tsv files.

    @classLabel true walking running          walking⇥0.1⇥0.3⇥…
    @data
    0.1,0.3,0.2:1.0,1.1,0.9:walking           dimensions separated by colons, the class last
Bagnall et al. 2018, "The UEA multivariate time series classification archive".
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from threefold.data.cells import label_order
from threefold.data.readers import file_error, read_lines

Series: TypeAlias = NDArray[np.float32]  # [length, dimensions]


@dataclass(frozen=True)
class LabelledSeries:
    """Series of any lengths, and the class of each."""

    series: list[Series]
    labels: list[str]
    classes: tuple[str, ...]  # in the order of the file, or sorted if it lists none
    numeric: bool = False  # whether the labels are numbers to predict

    @property
    def dimensions(self) -> int:
        return int(self.series[0].shape[1])


def read_ts(path: Path, *, labelled: bool = True) -> LabelledSeries:
    """Read a .ts file without timestamps; `?` is a missing value, NaN.

    labelled=False: series without a class are read too, and every label is empty.  A file with
    `@targetLabel true` has a number for each series (Tan et al. 2021, extrinsic regression).
    """
    header = _TsHeader(path)
    series: list[Series] = []
    labels: list[str] = []
    for number, line in read_lines(path):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        if not header.in_data:
            header.read(number, text)
            continue
        *parts, label = text.split(":") if header.labelled else [*text.split(":"), ""]
        _check_row(path, number, parts, label.strip(), header, series)
        series.append(_dimensions(path, number, parts))
        labels.append(label.strip())
    if (labelled and not header.labelled) or not series:
        what = "series below @data" if header.labelled else "@classLabel"
        raise file_error(path, None, f"no {what}; expected a .ts file of the UEA and UCR archive")
    return LabelledSeries(series, labels, header.classes, header.numeric)


class _TsHeader:
    """The lines before @data: which classes there are, or that targets are numbers."""

    def __init__(self, path: Path) -> None:
        self.path, self.in_data = path, False
        self.classes: tuple[str, ...] = ()
        self.numeric = False

    @property
    def labelled(self) -> bool:
        """Whether each series ends with a class or a number."""
        return bool(self.classes) or self.numeric

    def read(self, number: int, text: str) -> None:
        """Read one line."""
        key, *words = text.split()
        if key.lower() == "@data":
            self.in_data = True
        elif key.lower() == "@classlabel" and words[:1] == ["true"]:
            self.classes = tuple(words[1:])
        elif key.lower() == "@targetlabel" and words[:1] == ["true"]:
            self.numeric = True
        elif key.lower() == "@timestamps" and words == ["true"]:
            raise file_error(self.path, number, "the series have timestamps; expected values only")
        elif not text.startswith("@"):
            raise file_error(
                self.path, number, f"{text[:40]!r} before @data; expected a line that begins with @"
            )


def _check_row(
    path: Path,
    number: int,
    parts: list[str],
    label: str,
    header: _TsHeader,
    previous: list[Series],
) -> None:
    if header.numeric and not _is_number(label):
        raise file_error(path, number, f"the target is {label[:40]!r}; expected a number")
    if header.classes and label not in header.classes:
        known = ", ".join(header.classes)
        raise file_error(path, number, f"unknown class {label[:40]!r}; the file lists: {known}")
    if not parts or (previous and len(parts) != previous[0].shape[1]):
        wanted = previous[0].shape[1] if previous else "at least 1"
        raise file_error(path, number, f"{len(parts)} dimensions, expected {wanted}")


def _dimensions(path: Path, number: int, parts: list[str]) -> Series:
    """The values of one series; all dimensions must have the same length."""
    columns = []
    for dimension, part in enumerate(parts, 1):
        try:
            cells = [cell.strip() for cell in part.split(",")]
            column = np.array(["nan" if cell == "?" else cell for cell in cells], dtype=np.float32)
        except ValueError as error:
            raise file_error(path, number, f"dimension {dimension}: {error}") from error
        missing = np.array([cell == "?" for cell in cells])
        if not np.isfinite(column[~missing]).all():
            what = f"dimension {dimension} has a value that is not finite; a missing one is ?"
            raise file_error(path, number, what)
        columns.append(column)
    if len({len(column) for column in columns}) != 1:
        sizes = ", ".join(str(len(column)) for column in columns)
        raise file_error(
            path, number, f"dimensions have {sizes} elements; expected the same number"
        )
    return np.stack(columns, 1)


def read_ucr(path: Path) -> LabelledSeries:
    """Read a .tsv file of the UCR archive: class, then values; shorter rows end with NaN."""
    series: list[Series] = []
    labels: list[str] = []
    for number, line in read_lines(path):
        if not line.strip():
            continue
        label, *cells = line.split("\t")
        try:
            values = _without_padding(np.array(cells, dtype=np.float32))
        except ValueError as error:
            raise file_error(path, number, str(error)) from error
        if not label.strip() or values is None:
            what = "no class" if not label.strip() else "no values, or a missing value"
            raise file_error(
                path, number, f"{what}; expected a class and then numbers, separated by tabs"
            )
        series.append(values[:, None])
        labels.append(label.strip())
    return LabelledSeries(series, labels, tuple(sorted(set(labels), key=label_order)))


def _without_padding(values: Series) -> Series | None:
    """The values before the NaNs at the end of a row; None if it has a gap or no values."""
    real = np.isfinite(values)
    length = int(real.sum())
    return values[:length] if length and real[:length].all() else None


def _is_number(text: str) -> bool:
    return math.isfinite(label_order(text)[0])
