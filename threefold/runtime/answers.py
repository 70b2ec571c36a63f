"""The answers of a model: a list of dicts with a table to look at."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Sequence
from importlib import import_module
from io import StringIO
from pathlib import Path
from typing import Any

from threefold.data.atomic_files import write_text
from threefold.errors import ThreefoldError

MOST_ROWS_SHOWN = 20
JSON_LINES = (".jsonl", ".ndjson")


class Answers(list[dict[str, Any]]):
    """One dict per input, or per step of a forecast; `notes` say what to know before using them."""

    def __init__(
        self,
        rows: Iterable[dict[str, Any]],
        sources: Sequence[str] = (),
        notes: Sequence[str] = (),
    ) -> None:
        super().__init__(rows)
        self.sources, self.notes = list(sources), list(notes)

    def flat(self) -> list[dict[str, Any]]:
        """The answers without nested values, for tables: probabilities as columns, tags joined."""
        return [_flat(row) for row in self]

    def records(self) -> list[dict[str, Any]]:
        """The flat answers with their inputs, for files; a tagger's have one row per element."""
        if not any(self.sources):
            return self.flat()
        rows: list[dict[str, Any]] = []
        for source, answer in zip(self.sources, self, strict=True):
            rows += [{"input": source, **row} for row in _elements(answer)]
        return rows

    def to_pandas(self) -> Any:
        """A pandas data frame with one row per answer; needs pandas."""
        return import_module("pandas").DataFrame(self.flat())

    def __repr__(self) -> str:
        rows = [f"  {row}" for row in self[:MOST_ROWS_SHOWN]]
        more = len(self) - MOST_ROWS_SHOWN
        rows += [f"  … and {more:,} more"] if more > 0 else []
        return "\n".join([f"Answers({len(self)})", *rows])


def _elements(answer: dict[str, Any]) -> list[dict[str, Any]]:
    """One row, or one for each tag."""
    if not isinstance(answer.get("tags"), list):
        return [_flat(answer)]
    words = answer.get("words", [None] * len(answer["tags"]))
    pairs = enumerate(zip(words, answer["tags"], strict=True), 1)
    return [{"element": n, **({"word": w} if w else {}), "tag": tag} for n, (w, tag) in pairs]


def _flat(row: dict[str, Any]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, dict):
            values |= {f"p({key})": number for key, number in value.items()}
        else:
            values[name] = " ".join(map(str, value)) if isinstance(value, list) else value
    return values


def check_format(path: Path) -> None:
    """Refuse the name of a file whose format is unknown."""
    if path.suffix.lower() not in (".csv", *JSON_LINES):
        raise ThreefoldError(f"{path}: unknown format; expected a name that ends in .csv or .jsonl")


def _printable(text: str) -> str:
    return text.encode(errors="backslashreplace").decode()  # names of files may have any bytes


def write_answers(answers: Answers, path: Path) -> None:
    """Write a .csv file with a column per value, or a .jsonl file with an object per answer."""
    check_format(path)
    if path.suffix.lower() == ".csv":
        rows = answers.records()
        text = StringIO()
        header = list(dict.fromkeys(name for row in rows for name in row))
        table = csv.DictWriter(text, header, lineterminator="\n")
        table.writeheader()
        table.writerows(rows)
        write_text(path, _printable(text.getvalue()))
    else:
        lines = [json.dumps(row, ensure_ascii=False) for row in answers]
        write_text(path, _printable("\n".join(lines) + "\n"))
