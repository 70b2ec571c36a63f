"""A user's file or folder as a task; its kind is inferred from the name and the contents.

    notes.txt, books/                text                      language model (bytes, words, …)
    mails.csv (text, label)          texts with labels         classifier
    sensors.csv (numbers only)       a time series             forecaster of the first column
    shapes.ts, shapes_TRAIN.ts       series with classes       classifier
    words/{yes,no}/*.wav             sounds, class by folder   classifier
    digits/{0,1}/*.png               images, class by folder   classifier, pixel by pixel
    verses.tsv, kind seq2seq         two texts, tab between    seq2seq

Texts and series are split by position (90, 5 and 5 per cent; series 70, 10 and 20), examples by a
shuffle that is always the same (80, 10 and 10).
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from threefold.data.atomic_files import sha256_of
from threefold.data.readers import COLUMN_SEPARATORS, JSON_LINES_SUFFIXES
from threefold.errors import ThreefoldError, nearest
from threefold.tasks.table import MODEL_KINDS
from threefold.tasks.task import Task
from threefold.tasks.user_data.folder import folder_task
from threefold.tasks.user_data.labelled import ts_task
from threefold.tasks.user_data.pairs import pairs_task
from threefold.tasks.user_data.table import table_task
from threefold.tasks.user_data.text import text_task

__all__ = ["files_of", "user_task"]

MOST_FILES_LISTED = 1000  # of a folder; more are summarised by one checksum


def user_task(
    path: Path,
    *,
    kind: str | None = None,
    tokenizer: str | None = None,
    vocabulary: int | None = None,
    length: int | None = None,
    target: str | None = None,
    horizon: int | None = None,
    sampling_rate: int | None = None,
) -> Task[Any]:
    """Make the task of a file or folder; what is None is chosen from its name and contents.

    tokenizer: how text is cut into tokens.  length: maximum elements per example, or elements of a
    context.  target: the column of a table to predict.  horizon: time steps to forecast.
    sampling_rate: samples per second that WAV files must have.
    """
    vocabulary = vocabulary or 4096
    if not path.exists():
        raise ThreefoldError(f"{path}: file or folder not found, and no task has this name")
    if kind and kind not in MODEL_KINDS:
        raise ThreefoldError(f"unknown kind {kind!r}; {nearest(kind, MODEL_KINDS)}")
    if path.is_dir():
        return folder_task(path, tokenizer, vocabulary, length, sampling_rate)
    if kind == "seq2seq":
        return pairs_task(path, vocabulary, length)
    if path.suffix == ".ts":
        return ts_task(path, length)
    if path.suffix in (*COLUMN_SEPARATORS, *JSON_LINES_SUFFIXES) and kind != "language":
        return table_task(path, target, length, horizon, kind)
    return text_task([path], path.name, tokenizer, vocabulary, length)


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
