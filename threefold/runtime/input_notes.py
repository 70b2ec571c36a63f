"""What a user should know about inputs before using the answers to them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from threefold.data.preprocessing import Chain
from threefold.data.preprocessing.numbers import ABSURD, FillMissing
from threefold.data.preprocessing.text import Tokenize, WordNumbers
from threefold.data.tokenizers import WordTokenizer
from threefold.runtime.raw_inputs import RawInput

MOST_UNKNOWN = 0.2  # of all words; more are told
MOST_SHOWN = 5  # unknown words


def input_notes(chain: Chain, rows: Sequence[RawInput], encoded: Sequence[Any]) -> list[str]:
    """What was cut, is missing, or was not in the training data."""
    return [
        *_empty_notes(rows, encoded),
        *_cut_notes(chain, rows, encoded),
        *_missing_notes(chain, rows),
        *_unknown_words(chain, rows),
    ]


def _empty_notes(rows: Sequence[RawInput], encoded: Sequence[Any]) -> list[str]:
    """A note if inputs have no elements, so that there is nothing to answer."""
    empty = [row.source for row, elements in zip(rows, encoded, strict=True) if not len(elements)]
    if not empty:
        return []
    many = f"{len(empty):,} inputs are empty (the first: {empty[0]}); their answers are"
    return [f"{many if len(empty) > 1 else f'{empty[0]} is empty; its answer is'} left empty"]


def _cut_notes(chain: Chain, rows: Sequence[RawInput], encoded: Sequence[Any]) -> list[str]:
    """A note if inputs are longer than those of training, of which only the beginning was read."""
    steps: list[Any] = list(chain.steps)
    limit = next((s.length for s in steps if getattr(s, "length", None)), None)
    whole = Chain(tuple(replace(s, length=None) if hasattr(s, "length") else s for s in steps))
    full = [(r, e) for r, e in zip(rows, encoded, strict=True) if limit and len(e) == limit]
    cut = [row for row, elements in full if len(whole.apply(row.value)) > len(elements)]
    if not cut:
        return []
    return [
        f"{len(cut):,} inputs are longer than the {limit:,} elements that the model was trained to "
        f"read (the first: {cut[0].source}); only their beginning was read"
    ]


def _missing_notes(chain: Chain, rows: Sequence[RawInput]) -> list[str]:
    """A note if numbers are missing in columns that lacked none in training."""
    fill: FillMissing | None = chain.find(FillMissing)
    if fill is None:
        return []
    unmarked = [i for i, name in enumerate(fill.columns) if name not in fill.masked]
    gone = [~(np.abs(chain.steps[0].apply(row.value)) <= ABSURD)[:, unmarked] for row in rows]
    first = next((row.source for row, cells in zip(rows, gone, strict=True) if cells.any()), None)
    if first is None:
        return []
    counts = np.sum([cells.sum(0) for cells in gone], 0).tolist()
    names = [fill.columns[i] for i in unmarked]
    listed = ", ".join(f"{n} {count:,}" for n, count in zip(names, counts, strict=True) if count)
    return [
        f"numbers are missing or absurd in {sum(bool(cells.any()) for cells in gone):,} inputs "
        f"({listed}; the first: {first}) and were replaced by the last value of the input, or by "
        "the mean of the training data, which had none missing there"
    ]


def _unknown_words(chain: Chain, rows: Sequence[RawInput]) -> list[str]:
    """A note if many words are unknown to a model that reads words."""
    numbers: WordNumbers | None = chain.find(WordNumbers)
    if numbers is not None:
        words = [word for row in rows for word in row.value]
        unknown = [word for word in words if word not in numbers.numbers]
        fate = "were not in the training data, and are all read as one unknown word"
        return _unknown_note(words, unknown, fate)
    step: Tokenize | None = chain.find(Tokenize)
    if step is None or not isinstance(step.tokenizer, WordTokenizer):
        return []  # other tokenizers spell or refuse what they do not know
    texts = [part for row in rows for part in step.parts(row.value)]
    words = [word for text in texts for word in step.tokenizer.words_of(text)]
    unknown = [word for text in texts for word in step.tokenizer.unknown_words(text)]
    fate = "are not in the vocabulary of the model, which reads their bytes instead"
    return _unknown_note(words, unknown, fate)


def _unknown_note(words: Sequence[str], unknown: Sequence[str], fate: str) -> list[str]:
    """What becomes of unknown words, if there are many."""
    if len(unknown) <= MOST_UNKNOWN * len(words):
        return []
    shown = ", ".join(list(dict.fromkeys(unknown))[:MOST_SHOWN])
    more = ", …" if len(set(unknown)) > MOST_SHOWN else ""
    share = f"{len(unknown) / len(words):.0%} of the words ({len(unknown):,} of {len(words):,})"
    return [f"{share} {fate}: {shown}{more}"]
