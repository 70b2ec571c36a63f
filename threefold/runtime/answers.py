"""The answers of a model: a list of dicts with a table to look at."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from io import StringIO
from pathlib import Path
from typing import Any

from threefold.data.atomic_files import write_text
from threefold.data.cells import text_of
from threefold.errors import ThreefoldError

MOST_ROWS_SHOWN = 20
JSON_LINES = (".jsonl", ".ndjson")
PROBABILITY = "probability_"  # and the name of the class
COLUMNS = {  # of a record, by the names in an answer; others are several predicted numbers
    **dict.fromkeys(("label", "value", "text", "tags"), "prediction"),
    "probability": "probability",
    "words": "word",
}


class Answers(list[dict[str, Any]]):
    """One dict per input, or per step of a forecast; `notes` say what to know before using them.

    sources: where each input comes from.  columns: what the user's table has beside each input.
    """

    def __init__(
        self,
        rows: Iterable[dict[str, Any]],
        sources: Sequence[str] = (),
        columns: Sequence[Mapping[str, Any]] = (),
        notes: Sequence[str] = (),
    ) -> None:
        super().__init__(rows)
        self.sources, self.columns, self.notes = list(sources), list(columns), list(notes)

    def records(self) -> list[dict[str, Any]]:
        """One flat row per answer: its input, the input's own columns, then the prediction.

        An own column that is named like one of the prediction becomes input_<name>.
        """
        if not self.sources:  # a forecast, whose rows have no input of their own
            return [dict(answer) for answer in self]
        records = []
        for source, columns, answer in zip(self.sources, self.columns, self, strict=True):
            predicted = _flat(answer)
            if columns:
                predicted.pop("word", None)  # a column of the table
            records.append({"input": source, **_own(columns, predicted), **predicted})
        return records

    def to_json(self) -> list[dict[str, Any]]:
        """One object per answer: its input, the input's own columns, then the answer as it is."""
        if not self.sources:
            return [dict(answer) for answer in self]
        inputs = zip(self.sources, self.columns, self, strict=True)
        return [{"input": name, **_own(own, answer), **answer} for name, own, answer in inputs]

    def table(self) -> list[dict[str, Any]]:
        """The records as rows of a table: those of a tagger have one row for each element."""
        return [row for record in self.records() for row in _elements(record)]

    def to_pandas(self) -> Any:
        """The records as a pandas data frame; needs pandas."""
        return import_module("pandas").DataFrame(self.records())

    def __repr__(self) -> str:
        rows = [f"  {row}" for row in self[:MOST_ROWS_SHOWN]]
        more = len(self) - MOST_ROWS_SHOWN
        rows += [f"  … and {more:,} more"] if more > 0 else []
        return "\n".join([f"Answers({len(self)})", *rows])


def _own(columns: Mapping[str, Any], predicted: Mapping[str, Any]) -> dict[str, Any]:
    """An input's own columns; one that is named like a part of the prediction is renamed."""
    taken = {"input", "element", *predicted}
    return {f"input_{n}" if n in taken else n: _plain(v) for n, v in columns.items()}


def _elements(record: dict[str, Any]) -> list[dict[str, Any]]:
    """One row, or one for each member of its lists."""
    lists = {name: value for name, value in record.items() if isinstance(value, list)}
    if not lists:
        return [record]
    single = {name: value for name, value in record.items() if name not in lists}
    members = zip(*lists.values(), strict=True)
    return [
        {**single, "element": number, **dict(zip(lists, values, strict=True))}
        for number, values in enumerate(members, 1)
    ]


def _flat(answer: dict[str, Any]) -> dict[str, Any]:
    """An answer under the names of columns."""
    values: dict[str, Any] = {}
    for name, value in answer.items():
        if isinstance(value, dict):
            values |= {f"{PROBABILITY}{label}": number for label, number in value.items()}
        else:
            values[COLUMNS.get(name, f"prediction_{name}")] = value
    return values


def _plain(cell: Any) -> Any:
    """A cell of the user's table as JSON has it."""
    if isinstance(cell, list):
        return [_plain(one) for one in cell]
    if isinstance(cell, float) and not math.isfinite(cell):
        return None
    return cell if cell is None or isinstance(cell, (str, int, float)) else text_of(cell)


def check_format(path: Path) -> None:
    """Refuse the name of a file whose format is unknown."""
    if path.suffix.lower() not in (".csv", *JSON_LINES):
        raise ThreefoldError(f"{path}: unknown format; expected a name that ends in .csv or .jsonl")


def _printable(text: str) -> str:
    return text.encode(errors="backslashreplace").decode()  # names of files may have any bytes


def write_answers(answers: Answers, path: Path) -> None:
    """Write a .csv file with a row per answer or tag, or a .jsonl file with an answer per line."""
    check_format(path)
    if path.suffix.lower() == ".csv":
        rows = answers.table()
        text = StringIO()
        header = list(dict.fromkeys(name for row in rows for name in row))
        table = csv.DictWriter(text, header, lineterminator="\n")
        table.writeheader()
        table.writerows(rows)
        write_text(path, _printable(text.getvalue()))
    else:
        lines = [json.dumps(row, ensure_ascii=False) for row in answers.records()]
        write_text(path, _printable("\n".join(lines) + "\n"))
