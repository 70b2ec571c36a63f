"""A user's file, folder, data frame or arrays as a task; the kind follows from the contents.

    notes.txt, books/                  text                      language model (bytes, words, …)
    notes.txt --kind masked            text                      masked model, as BERT
    notes.txt --kind xlnet             text                      XLNet: any order of the tokens
    corpus/data.tokens                 a token folder            the same, of any size
    mails.csv                          texts with labels         classifier
    prices.csv                         texts with numbers        regressor
    sensors.csv --target flow          columns of numbers        forecaster
    shapes.ts, shapes_TRAIN.ts         series with classes       classifier
    words/{yes,no}/*.wav               sounds, class by folder   classifier
    digits/{0,1}/*.png                 images, class by folder   classifier, pixel by pixel
    digits/ --kind vision              the same                  vision model, by patches; also
                                                                 convolutional and swin
    verses.tsv --kind seq2seq          two texts, tab between    seq2seq
    photos.csv, photos/                files of images, texts    captioner; of columns of numbers
                                                                 with --kind captioner
    words.conll, --kind tagger         a word and a tag a line   tagger

Columns of a table are recognised by their types (`roles.py`); what is ambiguous is asked back.
"""

from __future__ import annotations

import hashlib
import stat
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from threefold.data.atomic_files import sha256_of
from threefold.data.preprocessing import Preprocessing
from threefold.data.readers import file_error, not_found, read_pairs
from threefold.data.table_formats import TABLE_SUFFIXES, refuse_unreadable, table_suffix
from threefold.data.tables import Table, header_options, read_table
from threefold.data.tagged_lines import TAG_SUFFIXES
from threefold.data.token_files import find_token_folder
from threefold.errors import AmbiguousError, ThreefoldError, nearest, option
from threefold.tasks.table import MODEL_KINDS, TEXT_KINDS
from threefold.tasks.task import Task
from threefold.tasks.user_data.arrays import (
    arrays_task,
    is_arrays,
    refuse_complex,
    task_from_arrays,
)
from threefold.tasks.user_data.datasets import dataset_task, is_dataset
from threefold.tasks.user_data.folder import folder_task
from threefold.tasks.user_data.pairs import RawPairs, pairs_task
from threefold.tasks.user_data.roles import read_roles
from threefold.tasks.user_data.settings import Reading, ReadSettings
from threefold.tasks.user_data.starting import as_known
from threefold.tasks.user_data.table import table_task
from threefold.tasks.user_data.tags import tags_task
from threefold.tasks.user_data.text import content_task, text_task
from threefold.tasks.user_data.text_roles import SOURCE_NAMES, TARGET_NAMES, image_columns
from threefold.tasks.user_data.token_folder import token_folder_task
from threefold.tasks.user_data.ts import ts_task
from threefold.tasks.user_data.windows import windows_task

__all__ = ["ReadSettings", "Reading", "files_of", "from_arrays", "user_task"]

MOST_FILES_LISTED = 1000  # of a folder; more are summarised by one checksum


def user_task(
    source: Any,
    settings: ReadSettings | None = None,
    *,
    preprocessing: Preprocessing | None = None,
    split: bool = True,
    skip_unknown: bool = False,
    start: Preprocessing | None = None,
) -> Task[Any]:
    """Make the task of a path, data frame, mapping of columns, list of texts, or arrays.

    preprocessing: that of a trained model; None fits one.  split=False: all examples in every
    split, to evaluate a model on all of a file.  skip_unknown: leave out examples whose label the
    model does not know.  start: the preprocessing of a model that training starts from.
    """
    settings = settings or ReadSettings()
    if start is not None:
        preprocessing = as_known(start, settings)
    reading = Reading(settings, preprocessing, split, skip_unknown, start)
    _check_kind(reading.settings.kind)
    if isinstance(source, (str, Path)):
        return _path_task(Path(source), reading)
    return _object_task(source, reading)


def _check_kind(kind: str | None) -> None:
    if kind is not None and kind not in MODEL_KINDS:
        raise ThreefoldError(f"unknown kind {kind!r}; {nearest(kind, MODEL_KINDS)}")


def from_arrays(
    x: Any,
    y: Any,
    *,
    horizon: int | None,
    splits: Mapping[str, tuple[Any, Any]],
    **options: Any,
) -> Task[Any]:
    """The task of `Task.from_arrays`."""
    unknown = set(splits) - {"valid", "test"}
    if unknown:
        raise ThreefoldError(f"splits: {sorted(unknown)}; expected 'valid' and 'test'")
    _check_kind(options["kind"])
    if y is None or horizon is not None or options["kind"] == "forecaster":
        return _forecasts_from_arrays(x, y, horizon, splits, options)
    return task_from_arrays(x, y, splits=splits, **options)


def _forecasts_from_arrays(
    x: Any, y: Any, horizon: int | None, splits: Mapping[str, Any], options: Mapping[str, Any]
) -> Task[Any]:
    if (y is None) == (horizon is None) or options["labels"] or options["vocabulary"]:
        raise ThreefoldError(
            "forecasts need one series x and a horizon, or windows x with their futures y and "
            'kind="forecaster"; neither has labels or a vocabulary'
        )
    if y is not None:
        return windows_task(x, y, options["name"], splits)
    refuse_complex("values", x)
    values = np.asarray(x, np.float64)
    values = values[:, None] if values.ndim == 1 else values
    if values.ndim != 2 or splits:
        raise ThreefoldError(
            f"a series is {np.shape(x)} with splits {list(splits)}; expected [time] or [time, "
            "channels], which is split by time"
        )
    columns = {f"x{i + 1}": values[:, i].tolist() for i in range(values.shape[1])}
    settings = ReadSettings(kind="forecaster", target=",".join(columns), horizon=horizon)
    task = table_task(read_table(columns), Reading(settings))
    return replace(task, name=options["name"], title=options["name"])


def _path_task(path: Path, reading: Reading) -> Task[Any]:
    kind = reading.kind
    _refuse_odd_name(path)
    if not path.exists():
        raise not_found(path)
    if (tokens := find_token_folder(path)) is not None:
        return token_folder_task(tokens, reading)
    if path.is_dir():
        for file in path.rglob("*"):
            _refuse_odd_name(file)
        captions = _table_of_images(path, reading)
        return folder_task(path, reading) if captions is None else table_task(captions, reading)
    if not stat.S_ISREG(path.stat().st_mode):
        raise ThreefoldError(
            f"{path}: not a regular file; expected a file or folder that can be read again "
            "(`threefold stream` reads pipes and devices)"
        )
    suffix = table_suffix(path)
    if suffix == ".ts":
        return ts_task(path, reading)
    if suffix in TAG_SUFFIXES or (kind == "tagger" and suffix not in TABLE_SUFFIXES):
        return tags_task(path, reading)
    if kind == "seq2seq" and not _names_columns(suffix, reading):
        return _lines_of_pairs(path, reading)
    if suffix in TABLE_SUFFIXES and kind not in TEXT_KINDS:
        return table_task(_read_table(path, reading), reading)
    refuse_unreadable(path)
    return text_task([path], path.name, reading)


def _table_of_images(path: Path, reading: Reading) -> Table | None:
    """The one table of a folder, if it names images; None otherwise."""
    tables = [file for file in path.iterdir() if table_suffix(file) in TABLE_SUFFIXES]
    if reading.kind == "captioner" and len(tables) != 1:
        raise ThreefoldError(
            f"{path}: {len(tables)} tables; expected one, with a column of image files and one of "
            "the texts that describe them, beside the images"
        )
    if len(tables) != 1 or reading.kind not in (None, "captioner"):
        return None
    try:
        table = _read_table(tables[0], reading)
    except ThreefoldError:
        if reading.kind == "captioner":
            raise
        return None
    return table if reading.kind == "captioner" or image_columns(table) else None


def _names_columns(suffix: str, reading: Reading) -> bool:
    """Whether pairs stand in named columns, rather than on both sides of a tab."""
    roles = None if reading.preprocessing is None else reading.preprocessing.roles
    named = reading.settings.target is not None or bool(roles and roles.texts)
    return suffix in TABLE_SUFFIXES and (named or suffix not in (".tsv", ".tab"))


def _lines_of_pairs(path: Path, reading: Reading) -> Task[Any]:
    settings = reading.settings
    settings.allow_only(f"{path.name}, pairs", "length", "vocabulary", "tokenizer", "header")
    rows = read_pairs(path)
    header = settings.header
    if header is None and reading.preprocessing is not None:
        header = reading.preprocessing.header
    if header is None and _may_be_names(rows):
        what = f"{path.name}: is the first line, {' and '.join(map(repr, rows[0]))}, a header?"
        raise AmbiguousError(what, header_options())
    rows = rows[1:] if header else rows
    sources, targets = zip(*rows, strict=True)
    places = [f"{path.name}, pair {number}" for number in range(1, len(rows) + 1)]
    return pairs_task(path.name, RawPairs(sources, targets, places), reading)


def _may_be_names(rows: Sequence[tuple[str, str]]) -> bool:
    """Whether the first pair are two words above texts of several words."""
    if not rows or any(len(text.split()) > 1 for text in rows[0]):
        return False
    below = [text for pair in rows[1:] for text in pair]
    if {text.lower() for text in rows[0]} & {*SOURCE_NAMES, *TARGET_NAMES}:
        return True
    return bool(below) and min(len(text.split()) for text in below) > 1


def _read_table(source: Any, reading: Reading) -> Table:
    """A table, with what was said about it for this file or for the training data."""
    settings, known = reading.settings, reading.preprocessing
    header, decimal = settings.header, settings.decimal
    usual = None if known is None else known.decimal
    if known is not None:
        header = known.has_header if header is None else header
    try:
        return read_table(source, header=header, decimal=decimal, usual_decimal=usual)
    except AmbiguousError as error:
        is_pairs = isinstance(source, Path) and table_suffix(source) in (".tsv", ".tab")
        if not is_pairs or settings.kind is not None:
            raise AmbiguousError.join([error, *_further_questions(source, settings)]) from error
        pairs = f"{option('kind', 'seq2seq')}    every line is a pair of texts"
        raise AmbiguousError(error.what, [*error.options, pairs]) from error


def _further_questions(source: Any, settings: ReadSettings) -> list[AmbiguousError]:
    """What else would be asked if the first line of a table is data."""
    try:
        read_roles(read_table(source, header=False, decimal=settings.decimal), settings)
    except AmbiguousError as error:
        asked = [(f"if the first line is data: {what}", c) for what, c in error.questions]
        return [AmbiguousError(what, choices) for what, choices in asked]
    except ThreefoldError:  # which depends on the answer
        pass
    return []


def _refuse_odd_name(path: Path) -> None:
    """Refuse a name that settings, which are UTF-8, cannot hold."""
    try:
        str(path).encode()
    except UnicodeEncodeError as error:
        raise file_error(path, None, "the name is not valid UTF-8; rename it") from error


def _object_task(source: Any, reading: Reading) -> Task[Any]:
    """Data that are in memory already."""
    if isinstance(source, str) or _is_texts(source):
        return content_task("\n".join(source).encode(), "texts", reading)
    if is_dataset(source):
        return dataset_task(source, reading)
    if is_arrays(source):
        return arrays_task(source, reading)
    if isinstance(source, np.ndarray):
        refuse_complex("values", source)
    if isinstance(source, np.ndarray) and source.ndim == 1:
        source = source[:, None]  # a series of one column
    if isinstance(source, np.ndarray):
        return table_task(_read_table(source, reading), reading)
    if isinstance(source, Mapping) or hasattr(source, "columns"):
        return table_task(_read_table(source, reading), reading)
    raise ThreefoldError(
        f"the data are a {type(source).__name__}; expected a path, a task's name, a data frame, a "
        "mapping of columns, an array of rows × columns, a list of texts, (inputs, targets) as "
        "arrays, or a torch Dataset"
    )


def _is_texts(source: Any) -> bool:
    is_list = isinstance(source, Sequence) and not isinstance(source, (str, bytes, tuple))
    return is_list and bool(source) and all(isinstance(text, str) for text in source)


def files_of(path: Path) -> dict[str, str]:
    """The SHA-256 of each file of a user's data, by name: these must not change during a run."""
    if path.is_file():
        return {path.name: sha256_of(path)}
    files = sorted(entry for entry in path.rglob("*") if entry.is_file())
    if len(files) <= MOST_FILES_LISTED:
        return {str(file.relative_to(path)): sha256_of(file) for file in files}
    checksum = hashlib.sha256()
    for file in files:
        checksum.update(f"{file.relative_to(path)} {sha256_of(file)}\n".encode())
    return {f"{len(files)} files": checksum.hexdigest()}
