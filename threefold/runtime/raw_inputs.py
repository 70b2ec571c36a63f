"""A user's inputs for a trained model: texts, files, folders, data frames, arrays → raw examples.

Each example keeps its source (a file and a line, or its number) for answers and error messages.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from threefold.data.audio import Sound
from threefold.data.preprocessing import Preprocessing
from threefold.data.preprocessing.categories import column_values
from threefold.data.preprocessing.numbers import FillMissing
from threefold.data.readers import read_lines, read_text, text_files
from threefold.data.table_formats import TABLE_SUFFIXES, table_suffix
from threefold.data.tables import Table, read_table
from threefold.data.ts_files import read_ts
from threefold.errors import ThreefoldError
from threefold.runtime.table_forecasts import asked_of_model
from threefold.tasks.user_data.folder import SOUND_SUFFIXES, TEXT_SUFFIXES
from threefold.tasks.user_data.pictures import IMAGE_SUFFIXES
from threefold.tasks.user_data.table import check_columns, group_rows, join_texts
from threefold.tasks.user_data.tags import read_words

_CELLS = (str, int, float, np.generic)  # of one row that is given as a mapping
LONGEST_NAME = 256  # characters of a text that may be the name of a file
TEXT_PATTERNS = [f"*{suffix}" for suffix in TEXT_SUFFIXES]


class RawInput(NamedTuple):
    """One input, where it comes from, and the cells of its table by column."""

    value: Any
    source: str
    columns: Mapping[str, Any] = {}


class RawInputs(list[RawInput]):
    """Inputs, and what was noticed while their tables were read."""

    notes: Sequence[str] = ()


def read_raw_inputs(preprocessing: Preprocessing, inputs: Any) -> RawInputs:
    """The examples in anything that a user may give; a list may mix files and values."""
    readers = {
        "text": _texts,
        "file": _whole_files,
        "words": _word_lists,
        "tokens": _tokens,
        "row": _rows,
        "series": _series,
        "sound": _media(SOUND_SUFFIXES),
        "image": _media(IMAGE_SUFFIXES),
    }
    rows: list[RawInput] = []
    tables: list[Table] = []
    for value in _each(inputs, preprocessing.form):
        if _is_table(value) and _reads_tables(preprocessing, value):
            value = _table(_columns_of(value), preprocessing)
            tables.append(value)
        rows += readers[preprocessing.form](value, preprocessing)
    if not rows:
        raise ThreefoldError("no inputs; expected at least one")
    read = RawInputs(
        row if row.source else row._replace(source=f"input {number}")
        for number, row in enumerate(rows, 1)
    )
    read.notes = list(dict.fromkeys(note for table in tables for note in table.notes))
    return read


def _each(inputs: Any, form: str) -> Iterable[Any]:
    """The members of a list of inputs; a single input is a list of one."""
    if isinstance(inputs, Tensor):
        wide = inputs.float() if inputs.dtype is torch.bfloat16 else inputs
        inputs = wide.numpy(force=True)
    if isinstance(inputs, np.ndarray) and inputs.ndim == (3 if form == "series" else 4):
        return list(inputs)
    if isinstance(inputs, np.ndarray) and form in ("series", "tokens") and inputs.ndim == 2:
        return list(inputs)  # rows are sequences, as in scikit-learn
    if (
        form == "tokens"
        and isinstance(inputs, Iterable)
        and all(isinstance(token, int) for token in inputs)
    ):
        return [inputs]
    single = isinstance(inputs, (str, bytes, Path, Mapping, np.ndarray, Sound, Table))
    if single or hasattr(inputs, "columns"):
        return [inputs]
    if (
        form == "words"
        and inputs
        and all(isinstance(word, str) and " " not in word for word in inputs)
    ):
        return [list(inputs)]
    if not isinstance(inputs, Iterable):
        raise ThreefoldError(
            f"the inputs are {inputs!r}; expected one input, a list of them, or a table"
        )
    return list(inputs)


def _reads_tables(preprocessing: Preprocessing, value: Any) -> bool:
    """Whether a table has examples for the model, not for instance the text of one."""
    if preprocessing.form == "file":
        return not isinstance(value, Path)
    if preprocessing.form == "series":
        return bool(preprocessing.roles.features)
    return preprocessing.form in ("text", "words", "row")


def _is_table(value: Any) -> bool:
    if isinstance(value, Path):
        return table_suffix(value) in TABLE_SUFFIXES
    return isinstance(value, (Table, Mapping)) or hasattr(value, "columns")


def _columns_of(value: Any) -> Any:
    """A mapping of single cells, e.g. {"text": "a film", "year": 1968}, as a table of one row."""
    if not isinstance(value, Mapping) or not value:
        return value
    if any(cell is not None and not isinstance(cell, _CELLS) for cell in value.values()):
        return value
    return {name: [cell] for name, cell in value.items()}


def _table(value: Any, preprocessing: Preprocessing) -> Table:
    header, decimal = preprocessing.has_header, preprocessing.decimal
    table = value if isinstance(value, Table) else None
    table = table or read_table(value, header=header, usual_decimal=decimal, of_model=True)
    check_columns(table, preprocessing.roles, with_labels=False)
    return table


def _refuse_without_texts(table: Table, preprocessing: Preprocessing) -> None:
    if not preprocessing.roles.texts:
        raise ThreefoldError(
            f"{table.name}: the model was trained on texts that were not in a table; give the "
            "texts themselves, or a file with one text per line"
        )


def _texts(value: Any, preprocessing: Preprocessing) -> list[RawInput]:
    if isinstance(value, Table):
        _refuse_without_texts(value, preprocessing)
        texts = join_texts(value, preprocessing.roles.texts)
        return [RawInput(t, _place(value, n), _cells(value, n)) for n, t in enumerate(texts)]
    if isinstance(value, Path) and value.is_dir():
        return _whole_files(value, preprocessing)
    if isinstance(value, Path):
        lines = [(number, text) for number, text in read_lines(value) if text.strip()]
        places = [f"{value.name}:{number}" for number, _ in lines]
        return [RawInput(t, p, {"text": t}) for p, (_, t) in zip(places, lines, strict=True)]
    if value is None or (isinstance(value, float) and math.isnan(value)):
        value = ""  # as pandas has a missing text
    if not isinstance(value, str):
        raise _wrong(value, "texts", "a text, a Path to a file, or a table")
    if len(value) < LONGEST_NAME and Path(value).suffix and Path(value).is_file():
        raise ThreefoldError(f"{value!r} is a file; to read it, give pathlib.Path({value!r})")
    return [RawInput(value, "", {"text": value})]


def _whole_files(value: Any, preprocessing: Preprocessing) -> list[RawInput]:
    """Texts, each as long as a file, of files and folders."""
    if not isinstance(value, Path):
        return _texts(value, preprocessing)
    files = text_files(value, TEXT_PATTERNS) if value.is_dir() else [value]
    return [RawInput(read_text(file), str(file)) for file in files]


def _word_lists(value: Any, preprocessing: Preprocessing) -> list[RawInput]:
    if isinstance(value, Table):
        _refuse_without_texts(value, preprocessing)
        words = value.texts(preprocessing.roles.texts[0])
        groups = _groups(value, preprocessing)
        own = _group_cells(value, groups, with_lists=True)
        return [
            RawInput([words[n] for n in rows], name, own[name]) for name, rows in groups.items()
        ]
    if isinstance(value, Path):
        return [RawInput(sentence, place) for sentence, place in read_words(value)]
    if isinstance(value, str):
        return [RawInput(value.split(), "")]
    if isinstance(value, Sequence) and all(isinstance(word, str) for word in value):
        return [RawInput(list(value), "")]
    raise _wrong(value, "words", "a list of words, a text, a Path to a file, or a table")


def _tokens(value: Any, preprocessing: Preprocessing) -> list[RawInput]:
    if isinstance(value, (str, Path)):
        raise _wrong(value, "tokens", "a list or an array of integers")
    tokens = value.numpy(force=True) if isinstance(value, Tensor) else np.asarray(value)
    return [RawInput(tokens, "")]


def _series(value: Any, preprocessing: Preprocessing) -> list[RawInput]:
    roles = preprocessing.roles
    if isinstance(value, Path) and value.suffix.lower() == ".ts":
        content = read_ts(value, labelled=False)
        return [RawInput(x, f"{value.name}, series {n}") for n, x in enumerate(content.series, 1)]
    if _is_table(value) and not roles.features:
        raise _wrong(value, "sequences that were not in a table", "arrays, or a .ts file")
    if isinstance(value, Table):
        rows = _values(value, preprocessing)
        groups = _groups(value, preprocessing)
        own = _group_cells(value, groups, with_lists=preprocessing.kind == "tagger")
        return [RawInput(rows[n], name, own[name]) for name, n in groups.items()]
    if isinstance(value, (str, Path)):
        raise _wrong(value, "sequences of numbers", "an array, a .ts file or a table")
    try:
        array = np.asarray(value, np.float64)
    except (TypeError, ValueError) as error:
        raise _wrong(value, "sequences of numbers", f"an array ({error})") from error
    return [RawInput(array[:, None] if array.ndim == 1 else array, "")]


def _groups(table: Table, preprocessing: Preprocessing) -> dict[str, list[int]]:
    roles, context, day_first = preprocessing.roles, preprocessing.context, preprocessing.day_first
    return asked_of_model(preprocessing, lambda: group_rows(table, roles, context, day_first))


def _rows(value: Any, preprocessing: Preprocessing) -> list[RawInput]:
    """Rows of numbers, one answer for each."""
    names = preprocessing.roles.features
    if isinstance(value, Table):
        rows = _values(value, preprocessing)
        return [
            RawInput(row[None, :], _place(value, n), _cells(value, n)) for n, row in enumerate(rows)
        ]
    if preprocessing.categories:
        columns = ", ".join(preprocessing.categories)
        raise _wrong(value, f"rows of a table with categories ({columns})", "a table")
    expected = f"a table, or {len(names)} numbers: {', '.join(names)}"
    if isinstance(value, (str, Path)):
        raise _wrong(value, "rows of a table", expected)
    try:
        array = np.asarray(value, np.float64)
    except (TypeError, ValueError) as error:
        raise _wrong(value, "rows of a table", expected) from error
    if array.ndim > 2 or array.shape[-1:] != (len(names),):
        raise _wrong(value, "rows of a table", expected)
    return [RawInput(row[None, :], "") for row in np.atleast_2d(array)]


def _media(suffixes: Sequence[str]) -> Any:
    def read(value: Any, preprocessing: Preprocessing) -> list[RawInput]:
        if _is_table(value) and preprocessing.roles.image:
            table = _table(value, preprocessing)
            paths = table.paths(preprocessing.roles.image)
            return [RawInput(p, str(p), _cells(table, n)) for n, p in enumerate(paths)]
        if isinstance(value, (str, Path)):
            if value == "":  # Path("") would be the current folder
                raise ThreefoldError("an input is empty; expected a file or a folder")
            path = Path(value)
            if not path.exists():
                raise ThreefoldError(f"{path}: file or folder not found")
            files = sorted(path.rglob("*")) if path.is_dir() else [path]
            chosen = [f for f in files if f.is_file() and f.suffix.lower() in suffixes]
            if not chosen:
                what = "sounds" if suffixes is SOUND_SUFFIXES else "images"
                raise _wrong(path, what, f"{', '.join(suffixes)} files")
            return [RawInput(file, str(file)) for file in chosen]
        if suffixes is SOUND_SUFFIXES and not isinstance(value, Sound):
            expected = "a path, or Sound(samples, rate) of threefold.data.audio"
            raise _wrong(value, "sounds", expected)
        return [RawInput(value, "")]

    return read


def _values(table: Table, preprocessing: Preprocessing) -> np.ndarray[Any, Any]:
    """The columns that the model reads: numbers, and codes of categories."""
    fill = preprocessing.inputs.find(FillMissing)
    policy = None if fill is None else fill.policy
    return column_values(table, preprocessing.roles.features, preprocessing.categories, policy)


def _place(table: Table, row: int) -> str:
    return table.position(table.line_numbers[row])


def _cells(table: Table, row: int) -> dict[str, Any]:
    return {name: cells[row] for name, cells in table.cells.items()}


def _group_cells(
    table: Table, groups: Mapping[str, list[int]], *, with_lists: bool = False
) -> dict[str, dict[str, Any]]:
    """By group: the columns that have one cell in every group; the cells of others as lists."""
    own: dict[str, dict[str, Any]] = {name: {} for name in groups}
    for column, cells in table.cells.items():
        parts = {name: [cells[row] for row in rows] for name, rows in groups.items()}
        is_single = all(part.count(part[0]) == len(part) for part in parts.values())
        for name, part in parts.items():
            if is_single or with_lists:
                own[name][column] = part[0] if is_single else part
    return own


def _wrong(value: Any, trained: str, expected: str) -> ThreefoldError:
    shown = str(value) if isinstance(value, Path) else repr(value)[:60]
    return ThreefoldError(f"the model was trained on {trained}, not {shown}; expected {expected}")
