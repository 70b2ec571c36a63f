"""How a user's data are to be read; what is None is chosen from the data."""

from __future__ import annotations

import csv
from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields
from typing import Any

from threefold.data.preprocessing import Preprocessing
from threefold.errors import ThreefoldError, nearest, option, option_name
from threefold.tasks.table import TEXT_KINDS


@dataclass(frozen=True)
class ReadSettings:
    """Settings of a user's data; each kind of data uses some of them and refuses the others."""

    kind: str | None = None
    tokenizer: str | None = None
    vocabulary: int | None = None
    length: int | None = None  # elements per example, or of a forecaster's context
    target: str | None = None  # a column, or several separated by commas
    features: str | None = None  # columns, separated by commas
    time_column: str | None = None
    group_column: str | None = None
    series_column: str | None = None
    horizon: int | None = None
    known_future: str | None = None  # features of which a forecast knows the values to come
    resample: str | None = None  # the step of a time series, e.g. 1h
    day_first: bool | None = None  # in dates such as 01/02/2024
    missing: str | None = None  # mask, carry or refuse
    header: bool | None = None
    decimal: str | None = None  # the decimal sign of a table's numbers
    sampling_rate: int | None = None
    sound_inputs: str | None = None  # frames or samples
    image_size: str | None = None  # WIDTHxHEIGHT
    pretrain: bool | None = None  # rows without a label are kept, to pretrain on

    @property
    def target_names(self) -> tuple[str, ...]:
        """The columns of `target`."""
        return split_names(self.target)

    @property
    def feature_names(self) -> tuple[str, ...] | None:
        """The columns of `features`; None if they are not given."""
        return None if self.features is None else split_names(self.features)

    @property
    def known_names(self) -> tuple[str, ...]:
        """The columns of `known_future`."""
        return split_names(self.known_future)

    def check_columns(self, table: str, known: Collection[str]) -> None:
        """Refuse the name of a column that a table does not have."""
        asked = (self.time_column, self.group_column, self.series_column)
        listed = (*self.target_names, *(self.feature_names or ()), *self.known_names)
        for name in (*listed, *asked):
            if name is not None and name not in known:
                raise ThreefoldError(f"{table}: no column {name!r}; {nearest(name, known)}")

    def refuse_repeated(self) -> None:
        """Refuse a column that is named twice."""
        for name, names in (("target", self.target_names), ("features", self.feature_names)):
            if names and len(set(names)) < len(names):
                twice = next(name for name in names if names.count(name) > 1)
                raise ThreefoldError(f"{option(name)} names the column {twice!r} twice")

    def allow_only(self, what: str, *used: str) -> None:
        """Refuse settings that data of this sort do not use."""
        for part in fields(self):
            value = getattr(self, part.name)
            if value is not None and part.name != "kind" and part.name not in used:
                also = f" ({option('embedding')} sets it, too)" * (part.name == "tokenizer")
                raise ThreefoldError(
                    f"{setting_name(part.name)} is {value!r}, but it does not apply to {what}; "
                    f"leave it out{also}, or say with {option('kind')} what the data are"
                )

    def check_kind(self, what: str, *possible: str) -> None:
        """Refuse a kind of model that data of this sort cannot train."""
        if self.kind is not None and self.kind not in possible:
            raise ThreefoldError(
                f"{setting_name('kind')} is {self.kind}, but {what} can only train a "
                f"{' or '.join(possible)} model; leave it out, or give other data"
            )


OPTIONS = {
    *("kind", "target", "features", "time_column", "group_column", "series_column", "horizon"),
    "known_future",
}


def setting_name(field: str) -> str:
    """A setting as its user spells it, without a value."""
    return option_name(field) if field in OPTIONS else f"data.{field}"


def split_names(text: str | None) -> tuple[str, ...]:
    """Names separated by commas; one that has a comma itself is in double quotes."""
    cells = next(csv.reader([text or ""], skipinitialspace=True), [])
    return tuple(name for cell in cells if (name := cell.strip()))


def join_names(names: Sequence[str]) -> str:
    """What `split_names` takes apart."""
    quoted = [f'"{n.replace(chr(34), chr(34) * 2)}"' if "," in n or '"' in n else n for n in names]
    return ",".join(quoted)


FIELDS: tuple[str, ...] = tuple(part.name for part in fields(ReadSettings))


def read_settings(values: dict[str, Any]) -> ReadSettings:
    """The settings among other values."""
    return ReadSettings(**{name: values[name] for name in FIELDS if values.get(name) is not None})


@dataclass(frozen=True)
class Reading:
    """Settings, and for the data of a trained model its preprocessing.

    preprocessing: None fits one to the training split.
    split: False puts all examples into every split, to evaluate a model on a whole file.
    skip_unknown: examples with a label that the model does not know are left out, not refused.
    start: the preprocessing of a model that training starts from (`starting.py`).
    """

    settings: ReadSettings
    preprocessing: Preprocessing | None = None
    split: bool = True
    skip_unknown: bool = False
    start: Preprocessing | None = None

    @property
    def kind(self) -> str | None:
        """The kind of model that was asked for, or that of the trained model; None: neither."""
        known = self.preprocessing
        if known is None and self.start is not None and self.start.kind not in TEXT_KINDS:
            known = self.start  # texts of a language model may be labelled now
        return self.settings.kind or (None if known is None else known.kind)
