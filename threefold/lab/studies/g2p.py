"""Phoneme error of g2p-en's weights on CMUdict: `threefold lab g2p`.

    error = Σ edits between answer and pronunciation / Σ phonemes,  including stress

A word with several pronunciations is compared with the nearest one; words that contain anything but
letters are left out.  `threefold data fetch g2p-en` downloads the weights, and
`threefold data fetch phonemes` the dictionary.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from threefold.data.random_by_address import permutation
from threefold.models.pretrained.g2p import BEGIN, END, PHONEMES, encode_words, load_g2p
from threefold.models.seq2seq import Seq2Seq
from threefold.runtime.generation import generate
from threefold.tasks.phonemes import dictionary, edit_distance, read_dictionary

MAX_PHONEMES = 20  # per word, as in the package


@dataclass(frozen=True)
class Errors:
    """Counts over all words."""

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
    """The phonemes of each word, by greedy or beam search."""
    source, mask = encode_words(words)
    with torch.no_grad():
        state = model.encode(source, mask=mask)
    begin = torch.full((len(words), 1), BEGIN)
    search: dict[str, Any] = {"temperature": 0.0} if beams is None else {"beams": beams}
    generated = generate(model, begin, state, stop=END, max_tokens=MAX_PHONEMES, **search)
    return [[PHONEMES[token] for token in row if token != END] for row in generated.rows()]


def measure(
    model: Seq2Seq, words: Mapping[str, list[list[str]]], beams: int | None = None
) -> Errors:
    """The errors over all words, in batches of 256."""
    listed = sorted(words, key=lambda word: (len(word), word))
    wrong = edits = phonemes = 0
    for begin in range(0, len(listed), 256):
        batch = listed[begin : begin + 256]
        for word, answer in zip(batch, pronounce(model, batch, beams), strict=True):
            distance, length = min((edit_distance(answer, one), len(one)) for one in words[word])
            wrong += distance > 0
            edits += distance
            phonemes += length
    return Errors(len(listed), wrong, edits, phonemes)


def report(
    file: Path | None = None,
    *,
    weights: Path | None = None,
    count: int = 5000,
    beams: int | None = None,
    seed: int = 0,
) -> str:
    """The errors over `count` words of a dictionary (0: all of it) as a line of text."""
    model = load_g2p(weights)
    words = read_dictionary(file) if file else dictionary()[1]
    names = sorted(words)
    chosen = permutation((seed,), len(names))[: count or len(names)]
    start = time.perf_counter()
    errors = measure(model, {names[i]: words[names[i]] for i in chosen}, beams)
    return (
        f"{errors.words} words: phoneme error {errors.phoneme_error:.2%}, "
        f"word error {errors.word_error:.2%}, {time.perf_counter() - start:.0f} s"
    )
