"""Phoneme error of g2p-en's weights on CMUdict: `python -m threefold.lab.studies.g2p`.

    error = Σ edits between answer and pronunciation / Σ phonemes,  stress counted

A word with several pronunciations is held to the nearest; words that are not letters only are left
out.  Weights and dictionary come by `threefold data fetch g2p-en` and `… fetch phonemes`.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from threefold.data.random_by_address import permutation
from threefold.models.pretrained.g2p import BEGIN, END, PHONEMES, encode_words, load_g2p
from threefold.models.seq2seq import Seq2Seq
from threefold.runtime.generation import generate
from threefold.tasks.phonemes import dictionary, edit_distance, read_dictionary

LONGEST = 20  # phonemes, as the package has it


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


def pronounce(model: Seq2Seq, words: list[str], beams: int | None = None) -> list[list[str]]:
    """Phonemes of each word, greedily or with beams."""
    source, mask = encode_words(words)
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


def main() -> None:
    """Print the errors over some words of the dictionary, or all."""
    parser = argparse.ArgumentParser(
        prog="python -m threefold.lab.studies.g2p", description=__doc__
    )
    parser.add_argument("dictionary", type=Path, nargs="?", help="CMUdict as text")
    parser.add_argument("--weights", type=Path, help="checkpoint20.npz")
    parser.add_argument("--words", type=int, default=5000, help="drawn at random; 0: all")
    parser.add_argument("--beams", type=int)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    model = load_g2p(given.weights)
    words = read_dictionary(given.dictionary) if given.dictionary else dictionary()[1]
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
