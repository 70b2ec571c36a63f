"""A user's own data as a task: what a file or a folder holds is found out from its name.

    notes.txt, books/                text                      language, in bytes, characters, …
    mails.csv (text, label)          texts and what they are   classifier
    sensors.csv (numbers only)       a series                  forecaster of the first column
    shapes.ts, shapes_TRAIN.ts       series and classes        classifier
    words/{yes,no}/*.wav             sounds by folder          classifier
    digits/{0,1}/*.png               images by folder          classifier, pixel by pixel
    verses.tsv, kind seq2seq         two texts with a tab      seq2seq

Texts and series are split by place (90, 5 and 5 per cent; series 70, 10 and 20), examples by a
shuffle that is always the same (80, 10 and 10).
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from threefold.data.atomic_files import digest_of
from threefold.data.audio import read_wav
from threefold.data.images import read_image
from threefold.data.loaders import Batch
from threefold.data.random_by_address import permutation
from threefold.data.readers import (
    JSON_LINES,
    SEPARATORS,
    Table,
    read_bytes,
    read_pairs,
    read_table,
    read_text,
    text_files,
)
from threefold.data.tokenizer import Tokenizer
from threefold.data.tokenizers import (
    BPETokenizer,
    ByteTokenizer,
    CharacterTokenizer,
    WordTokenizer,
)
from threefold.data.ts_files import read_ts
from threefold.errors import ThreefoldError, nearest
from threefold.tasks.forecasting import Setting, standard, windows
from threefold.tasks.pairs import FIRST, Pairs, pairs
from threefold.tasks.stored import Array, StoredExamples, chosen, pick
from threefold.tasks.table import KINDS, SPLITS
from threefold.tasks.task import Corpus, Numbers, Task, rows_of

TEXTS = (".txt", ".md", ".text", ".log", ".tex", ".html", ".xml", ".json", ".py", ".c", ".abc")
IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".gif")
TOKENIZERS = ("byte", "character", "bpe", "word")
LONGEST = 4096  # elements of an example, unless said otherwise


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
    """The task of a file or folder; what is not given is chosen from its name and contents.

    tokenizer: how text is cut.  length: elements per example at most, or of a context.  target: the
    column of a table to predict.  horizon: steps to forecast.  sampling_rate: samples per second.
    """
    vocabulary = vocabulary or 4096
    if not path.exists():
        raise ThreefoldError(f"{path}: there is no such file or folder, and no task of that name")
    if kind and kind not in KINDS:
        raise ThreefoldError(f"unknown kind {kind!r}; {nearest(kind, KINDS)}")
    if path.is_dir():
        return _folder(path, tokenizer, vocabulary, length, sampling_rate)
    if kind == "seq2seq":
        return _translation(path, vocabulary, length)
    if path.suffix == ".ts":
        return _series(path, length)
    if path.suffix in (*SEPARATORS, *JSON_LINES) and kind != "language":
        return _table(path, target, length, horizon, kind)
    return language([path], path.name, tokenizer, vocabulary, length)


def files_of(path: Path) -> dict[str, str]:
    """The SHA-256 of each file of a user's data, by name: what must not change during a run."""
    if path.is_file():
        return {path.name: digest_of(path)}
    found = sorted(entry for entry in path.rglob("*") if entry.is_file())
    if len(found) <= 1000:
        return {str(entry.relative_to(path)): digest_of(entry) for entry in found}
    whole = hashlib.sha256()
    for entry in found:
        whole.update(f"{entry.relative_to(path)} {digest_of(entry)}\n".encode())
    return {f"{len(found)} files": whole.hexdigest()}


def _folder(
    path: Path,
    tokenizer: str | None,
    vocabulary: int,
    length: int | None,
    sampling_rate: int | None,
) -> Task[Any]:
    classes = sorted(entry for entry in path.iterdir() if entry.is_dir())
    for suffixes, read in (
        ((".wav",), lambda one: _sound(one, sampling_rate)),
        (IMAGES, lambda one: read_image(one, "L").reshape(-1, 1) / np.float32(255)),
    ):
        found = [
            (file, one.name)
            for one in classes
            for file in sorted(one.iterdir())
            if file.suffix.lower() in suffixes
        ]
        if found:
            rows = [read(file)[:length] for file, _ in found]
            return _labelled(path.name, rows, [label for _, label in found])
    files = text_files(path, [f"*{suffix}" for suffix in TEXTS])
    return language(files, path.name, tokenizer, vocabulary, length)


def _sound(path: Path, sampling_rate: int | None) -> Array:
    samples: Array = read_wav(path, sampling_rate).samples
    return samples.reshape(-1, 1).astype(np.float32)


# ------------------------------------------------------------------------------ language


def language(
    files: Sequence[Path], name: str, kind: str | None, vocabulary: int, length: int | None
) -> Task[Batch]:
    """Windows of a text; every file is read one after another."""
    kind, length = kind or "byte", length or 256
    if kind not in TOKENIZERS:
        raise ThreefoldError(f"{name}: unknown tokenizer {kind!r}; {nearest(kind, TOKENIZERS)}")

    @cache
    def corpus() -> Corpus:
        if kind == "byte":
            whole = np.frombuffer(b"\n".join(map(read_bytes, files)), np.uint8)
            return Corpus(dict(zip(SPLITS, _by_place(whole), strict=True)), ByteTokenizer())
        text = "\n".join(map(read_text, files))
        parts = dict(zip(SPLITS, _by_place(text), strict=True))
        tokenizer = _tokenizer(kind, text, parts["train"], vocabulary)
        return Corpus({split: tokenizer.encode(t) for split, t in parts.items()}, tokenizer)

    made = corpus()
    sizes = {split: (len(tokens) - 1) // length for split, tokens in made.tokens.items()}
    if min(sizes.values()) < 1:
        total = sum(map(len, made.tokens.values()))
        raise ThreefoldError(
            f"{name}: {total} tokens are too few: each part of 90, 5 and 5 per cent needs at least "
            f"{length + 1}; give more text, or a shorter length than {length}"
        )

    def draw(split: str, numbers: Numbers) -> Batch:
        tokens = made.tokens[split]
        rows = np.asarray(tokens[numbers[:, None] * length + np.arange(length + 1)], np.int64)
        return rows_of(rows[:, :-1], rows[:, 1:])

    size = made.tokenizer.vocabulary
    counts = np.bincount(made.tokens["train"], minlength=size) + 1.0
    chance = float(-np.log2(counts / counts.sum())[made.tokens["test"]].mean())
    return _task(
        name,
        draw,
        kind="language",
        domain="language",
        length=length,
        sizes=tuple(sizes[split] for split in SPLITS),
        metric="bits",
        chance=chance,
        vocabulary=size,
        classes=size,
        corpus=corpus,
    )


def _tokenizer(kind: str, text: str, training: str, vocabulary: int) -> Tokenizer:
    if kind == "character":
        return CharacterTokenizer(text)
    learn = BPETokenizer.learn if kind == "bpe" else WordTokenizer.learn
    return learn([part + "\n\n" for part in training.split("\n\n")], vocabulary)


def _by_place(whole: Any) -> tuple[Any, Any, Any]:
    first, second = int(len(whole) * 0.9), int(len(whole) * 0.95)
    return whole[:first], whole[first:second], whole[second:]


# -------------------------------------------------------------------------------- tables


def _table(
    path: Path, column: str | None, length: int | None, horizon: int | None, kind: str | None
) -> Task[Batch]:
    table = read_table(path)
    target = column or next((name for name in ("label", "class") if name in table.cells), "")
    if kind != "forecaster" and target and "text" in table.cells:
        texts = [
            np.frombuffer(text.encode()[: length or LONGEST], np.uint8)
            for text in table.texts("text")
        ]
        return _labelled(path.stem, texts, table.texts(target))
    if kind == "classifier":
        raise ThreefoldError(
            f"{path}: a classifier needs the columns text and label; the table has "
            f"{', '.join(table.cells)} (name the column of the labels with data.target)"
        )
    return _forecast(path, table, column, length, horizon)


def _forecast(
    path: Path, table: Table, column: str | None, length: int | None, horizon: int | None
) -> Task[Batch]:
    if column:
        table.column(column)
    names = [column, *(n for n in table.cells if n != column)] if column else list(table.cells)
    numeric = [name for name in names if _is_number(table.cells[name][0])]
    if not numeric or (column and numeric[0] != column):
        raise ThreefoldError(f"{path}: no column of numbers to forecast; it has {', '.join(names)}")
    values = np.array([table.numbers(name) for name in numeric]).T
    context = length or max(1, min(128, len(values) // 20))
    setting = Setting(lambda folder: values, context, horizon or max(1, context // 8), 0)
    splits, prepare = windows(values, setting), standard()

    def draw(split: str, numbers: Numbers) -> Batch:
        one = splits[split]
        inputs, targets = np.asarray(one.inputs)[numbers], np.asarray(one.targets)[numbers]
        return rows_of(*prepare(inputs, targets, splits))

    test = draw("test", np.arange(len(splits["test"])))
    chance = float((test.targets - test.inputs[:, -1:, 0]).abs().mean())
    return _task(
        path.stem,
        draw,
        kind="forecaster",
        domain="series",
        length=context,
        sizes=tuple(len(splits[split]) for split in SPLITS),
        metric="absolute_error",
        chance=chance,
        features=len(numeric),
    )


def _is_number(cell: Any) -> bool:
    try:
        float(cell)
    except (TypeError, ValueError):
        return False
    return True


# ----------------------------------------------------------------------- labelled examples


def _series(path: Path, length: int | None) -> Task[Batch]:
    found = read_ts(path)
    rows = [row[:length] for row in found.series]
    beside = path.with_name(path.name.replace("_TRAIN", "_TEST"))
    if beside == path or not beside.exists():
        return _labelled(path.stem, rows, found.labels)
    test = read_ts(beside)
    tested = [row[:length] for row in test.series]
    return _labelled(path.stem, rows, found.labels, (tested, test.labels))


def _labelled(
    name: str,
    rows: Sequence[Array],
    labels: Sequence[str],
    test: tuple[Sequence[Array], Sequence[str]] | None = None,
) -> Task[Batch]:
    """Examples of any lengths and their labels, in the order of their names."""
    classes = sorted({*labels, *(() if test is None else test[1])})
    number = {label: place for place, label in enumerate(classes)}
    order = permutation((0, len(rows)), len(rows))
    ends = (0.8, 0.9, 1.0) if test is None else (0.9, 1.0, 1.0)
    cuts = [0, *(int(len(rows) * part) for part in ends)]
    targets = np.array([number[label] for label in labels])
    splits = {
        split: StoredExamples(chosen(list(rows), order[a:b]), targets[order[a:b]])
        for split, a, b in zip(SPLITS, cuts, cuts[1:], strict=False)
    }
    if test is not None:
        splits["test"] = StoredExamples(
            list(test[0]), np.array([number[label] for label in test[1]])
        )
    if len(classes) < 2 or min(map(len, splits.values())) < 1:
        raise ThreefoldError(
            f"{name}: {len(rows)} examples of {len(classes)} classes; expected at least 2 classes, "
            "and enough examples for training, validation and test (ten or more)"
        )
    tokens = rows[0].ndim == 1

    def draw(split: str, numbers: Numbers) -> Batch:
        one = splits[split]
        inputs, lengths = pick(one.inputs, numbers)
        return rows_of(inputs, np.asarray(one.targets)[numbers], lengths)

    common = Counter(splits["test"].targets).most_common(1)[0][1]
    return _task(
        name,
        draw,
        kind="classifier",
        domain="text" if tokens else "series",
        length=max(map(len, rows)),
        sizes=tuple(len(splits[split]) for split in SPLITS),
        metric="accuracy",
        chance=common / len(splits["test"]),
        vocabulary=256 if tokens else 0,
        features=0 if tokens else rows[0].shape[1],
        classes=len(classes),
        labels=tuple(classes),
    )


def _translation(path: Path, vocabulary: int, length: int | None) -> Task[Pairs]:
    rows = read_pairs(path)
    if len(rows) < 10:
        raise ThreefoldError(f"{path}: {len(rows)} pairs are too few; expected ten or more")
    order = permutation((0, len(rows)), len(rows))
    cuts = [int(len(rows) * part) for part in (0, 0.8, 0.9, 1)]
    parts = {s: order[a:b] for s, a, b in zip(SPLITS, cuts, cuts[1:], strict=False)}
    learnt = [[rows[i][side] for i in parts["train"]] for side in (0, 1)]
    source, target = (BPETokenizer.learn(side, vocabulary - FIRST) for side in learnt)
    sizes = source.vocabulary + FIRST, target.vocabulary + FIRST

    def draw(split: str, numbers: Numbers) -> Pairs:
        picked = [rows[i] for i in parts[split][numbers]]
        sides = [
            [
                (FIRST + t.encode(pair[i])[: length or 256].astype(np.int64)).tolist()
                for pair in picked
            ]
            for i, t in enumerate((source, target))
        ]
        return pairs(path.stem, sides[0], sides[1], *sizes)

    return _task(
        path.stem,
        draw,
        kind="seq2seq",
        domain="text",
        length=length or 256,
        sizes=tuple(len(parts[split]) for split in SPLITS),
        metric="exact",
        chance=0.0,
        vocabulary=sizes[0],
        classes=sizes[1],
    )


def _task(name: str, draw: Callable[[str, Numbers], Any], **fields: Any) -> Task[Any]:
    return Task(
        name=name, make="user", title=name, solved=float("nan"), where="user", draw=draw, **fields
    )
