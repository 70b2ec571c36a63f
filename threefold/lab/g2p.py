"""Phoneme error of g2p-en's weights on CMUdict: `python -m threefold.lab.g2p dictionary`.

    error = Σ edits between answer and pronunciation / Σ phonemes,  stress counted

A word with several pronunciations is held to the nearest.  The dictionary is CMUdict as text, old
layout or new; words that are not letters only are left out.
"""

from __future__ import annotations

import argparse
import re
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from threefold.data.draws import permutation
from threefold.errors import ThreefoldError
from threefold.models.g2p import BEGIN, END, PHONEMES, load_g2p, spell
from threefold.models.seq2seq import Seq2Seq
from threefold.runtime.generation import generate

LONGEST = 20  # phonemes, as the package has it

Pronunciations = dict[str, list[list[str]]]


@dataclass(frozen=True)
class Errors:
    """What was counted over words."""

    words: int
    wrong: int  # words with at least one mistake
    edits: int
    phonemes: int

    @property
    def phoneme_error(self) -> float:
        return self.edits / self.phonemes

    @property
    def word_error(self) -> float:
        return self.wrong / self.words


def read_dictionary(path: Path) -> Pronunciations:
    """Pronunciations by word, from CMUdict's text."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise ThreefoldError(f"{path}: cannot be read ({error.strerror})") from error
    found: Pronunciations = defaultdict(list)
    for line in text.splitlines():
        entry = re.fullmatch(r"([a-z]+)(?:\(\d+\))?\s+((?:[A-Z]+[012]?\s*)+)(?:#.*)?", line, re.I)
        if entry:
            found[entry[1].lower()].append(entry[2].split())
    if not found:
        raise ThreefoldError(f"{path}: no line such as 'abbey AE1 B IY0'; expected CMUdict as text")
    return dict(found)


def pronounce(model: Seq2Seq, words: list[str], beams: int | None = None) -> list[list[str]]:
    """Phonemes of each word, greedily or with beams."""
    source, mask = spell(words)
    with torch.no_grad():
        state = model.encode(source, mask=mask)
    begin = torch.full((len(words), 1), BEGIN)
    if beams is None:
        made = generate(model, begin, state, temperature=0, stop=END, max_tokens=LONGEST)
    else:
        made = generate(model, begin, state, beams=beams, stop=END, max_tokens=LONGEST)
    return [[PHONEMES[token] for token in row if token != END] for row in made.rows()]


def measure(
    model: Seq2Seq, words: Mapping[str, list[list[str]]], beams: int | None = None
) -> Errors:
    """The errors over all words, a few hundred at a time."""
    listed = sorted(words, key=lambda word: (len(word), word))
    wrong = edits = phonemes = 0
    for begin in range(0, len(listed), 256):
        part = listed[begin : begin + 256]
        for word, answer in zip(part, pronounce(model, part, beams), strict=True):
            distance, length = min((edit_distance(answer, one), len(one)) for one in words[word])
            wrong += distance > 0
            edits += distance
            phonemes += length
    return Errors(len(listed), wrong, edits, phonemes)


def edit_distance(one: Sequence[str], other: Sequence[str]) -> int:
    """Fewest insertions, deletions and replacements (Levenshtein 1965)."""
    row = np.arange(len(other) + 1)
    for i, a in enumerate(one, 1):
        before, row = row, np.empty_like(row)
        row[0] = i
        for j, b in enumerate(other, 1):
            row[j] = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (a != b))
    return int(row[-1])


def main() -> None:
    """Print the errors over some words of the dictionary, or all."""
    parser = argparse.ArgumentParser(prog="python -m threefold.lab.g2p", description=__doc__)
    parser.add_argument("dictionary", type=Path)
    parser.add_argument("--weights", type=Path, help="the wheel or checkpoint20.npz")
    parser.add_argument("--words", type=int, default=5000, help="drawn at random; 0: all")
    parser.add_argument("--beams", type=int)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    model, words = load_g2p(given.weights), read_dictionary(given.dictionary)
    names = sorted(words)
    chosen = permutation((given.seed,), len(names))[: given.words or len(names)]
    start = time.perf_counter()
    errors = measure(model, {names[i]: words[names[i]] for i in chosen}, given.beams)
    print(
        f"{errors.words} words: phoneme error {errors.phoneme_error:.2%}, "
        f"word error {errors.word_error:.2%}, {time.perf_counter() - start:.0f} s"
    )


if __name__ == "__main__":
    main()
