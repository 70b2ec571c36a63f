"""Translation of sentences in byte-pair tokens, scored by BLEU.

    translation           In the beginning God created the heaven and the earth.
                          Am Anfang schuf Gott Himmel und Erde.
    translation-machine   Creakiness and atmosphere this film has, but so unfortunately does …
                          Knarren und Atmosphäre hat dieser Film, aber leider auch der Druck, …

Bible verses were translated by people (the King James Version, Luther 1912); whole chapters belong
to one split.  The other data set was translated by a machine, so a model learns its style and is
scored against it: 93,554 English sentences from the web, with German, French or Italian, joined by
the MD5 of the English text; vulgar ones are left out.  One sentence in twenty is for validation and
one for testing.  Solved: a BLEU of 20 for verses, 25 for machine translations.
Papineni et al. 2002, "BLEU".
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from threefold.data.fetch import require_cached
from threefold.data.readers import read_bytes, read_pairs, text_files
from threefold.data.tokenizers import BPETokenizer
from threefold.errors import ThreefoldError, nearest
from threefold.tasks.bible import verse_pairs
from threefold.tasks.pairs import FIRST_TOKEN, Pairs, pairs
from threefold.tasks.stored import check_bytes, data_folder
from threefold.tasks.table import SPLITS
from threefold.tasks.task import Compare, Numbers, Task, declare

Texts = Mapping[str, list[tuple[str, str]]]  # source and target, by split
HUMAN, MACHINE = "translation", "translation-machine"
TARGETS = {HUMAN: ("de",), MACHINE: ("de", "fr", "it")}
# Sentences with such words are left out.
COARSE = re.compile(
    r"\b(fuck|shit|bitch|bastard|cunt|dick(s|head)?\b|cock(s|sucker)?\b|puss(y|ies)\b|whore|slut|"
    r"nigg|fag(s|got)?\b|asshole|arse|tits?\b|rape|porn|wank|piss)",
    re.I,
)


@cache
def machine_pairs(language: str = "de") -> Texts:
    """English sentences and machine translations, split by the MD5 of the English text."""
    english = {_key(text): text for text in _sentences("nlp-corpus")}
    pairs_by_split: dict[str, list[tuple[str, str]]] = {split: [] for split in SPLITS}
    for translated, key in sorted(_sentences(f"{language}-corpus"), key=lambda row: str(row[1])):
        text = english.get(key)
        if text is not None and not COARSE.search(text):
            split = {18: "valid", 19: "test"}.get(int(key[:8], 16) % 20, "train")
            pairs_by_split[split].append((" ".join(text.split()), " ".join(translated.split())))
    name = MACHINE if language == "de" else f"{MACHINE}-{language}"
    check_bytes(name, json.dumps(pairs_by_split, ensure_ascii=False).encode())
    return pairs_by_split


def _sentences(package: str) -> list[Any]:
    files = text_files(require_cached(package) / "builds", ["*.json"])
    return [row for path in files for row in json.loads(read_bytes(path))]


def _key(text: str) -> str:
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()


def texts_of(name: str, languages: tuple[str, str] = ("en", "de")) -> Texts:
    """The sentences of a task as texts."""
    if name not in TARGETS:
        raise ThreefoldError(f"unknown translation {name!r}; {nearest(name, TARGETS)}")
    if languages[0] != "en" or languages[1] not in TARGETS[name]:
        raise ThreefoldError(
            f"{name}: from {languages[0]!r} to {languages[1]!r}; expected from 'en' to "
            f"{' or '.join(map(repr, TARGETS[name]))}, or a folder of parallel files"
        )
    return verse_pairs() if name == HUMAN else machine_pairs(languages[1])


def translation(
    folder: Path | None = None,
    *,
    name: str = HUMAN,
    languages: tuple[str, str] = ("en", "de"),
    vocabulary: int = 4096,
    length: int = 256,
) -> Task[Pairs]:
    """Byte pairs are learnt from the training split of each side; sentences have at most `length`.

    `folder` contains parallel text to use instead: train.en and train.de, valid.en, …, in any
    languages.
    """

    @cache
    def texts() -> Texts:
        return texts_of(name, languages) if folder is None else _texts_in(folder, languages)

    @cache
    def tokenizers() -> tuple[BPETokenizer, BPETokenizer]:
        sides = list(zip(*texts()["train"], strict=True))
        first, second = (BPETokenizer.learn(side, vocabulary - FIRST_TOKEN) for side in sides)
        return first, second

    def draw(split: str, numbers: Numbers) -> Pairs:
        chosen = [texts()[split][number] for number in numbers]
        rows = [
            [
                (FIRST_TOKEN + tokenizer.encode(text)[:length].astype(np.int64)).tolist()
                for text in side
            ]
            for tokenizer, side in zip(tokenizers(), zip(*chosen, strict=True), strict=True)
        ]
        references = [target for _, target in chosen]
        return pairs(name, rows[0], rows[1], vocabulary, vocabulary, references)

    def compare() -> Compare:
        score, second = _scorer(), tokenizers()[1]
        return lambda answers, right: score([_text(second, row) for row in answers], right)

    changes: dict[str, Any] = {"length": length, "vocabulary": vocabulary, "classes": vocabulary}
    if folder is not None or languages != ("en", "de"):
        changes["sizes"] = tuple(len(texts()[split]) for split in SPLITS)
    return replace(declare(name, draw, **changes), compare=compare)


def _texts_in(folder: Path, languages: tuple[str, str]) -> Texts:
    root = data_folder(folder, "")
    return {
        split: read_pairs(*(root / f"{split}.{language}" for language in languages))
        for split in SPLITS
    }


def bleu(answers: Sequence[str], references: Sequence[str]) -> float:
    """Corpus BLEU from 0 to 100 by sacreBLEU (Post 2018), of the extra threefold[translate]."""
    return _scorer()(answers, references)


def _scorer() -> Callable[[Sequence[str], Sequence[str]], float]:
    """BLEU as a function; a missing package is reported now, before training begins."""
    try:
        import sacrebleu
    except ImportError as error:
        raise ThreefoldError(
            "BLEU needs sacrebleu, which is not installed; run: pip install 'threefold[translate]'"
        ) from error
    return lambda answers, right: float(sacrebleu.corpus_bleu(list(answers), [list(right)]).score)


def _text(tokenizer: BPETokenizer, row: Sequence[int]) -> str:
    """The text of tokens, without BEGIN and END."""
    return tokenizer.decode([token - FIRST_TOKEN for token in row if token >= FIRST_TOKEN])
