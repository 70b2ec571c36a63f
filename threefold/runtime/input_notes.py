"""What a user should know about inputs before using the answers to them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from threefold.data.preprocessing import Chain, Preprocessing
from threefold.data.preprocessing.numbers import ABSURD, FillMissing
from threefold.data.preprocessing.text import WordNumbers
from threefold.runtime.raw_inputs import RawInput

MOST_UNKNOWN = 0.2  # of all words; more are told
MOST_SHOWN = 5  # unknown words


def input_notes(
    preprocessing: Preprocessing, rows: Sequence[RawInput], encoded: Sequence[Any]
) -> list[str]:
    """What was cut, is missing, or was not in the training data."""
    return [
        *_cut_notes(preprocessing.inputs, rows, encoded),
        *_missing_notes(preprocessing.inputs, rows),
        *_unknown_words(preprocessing.inputs, rows),
        *_unknown_categories(preprocessing, rows),
    ]


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
    """A note if many words are unknown; other tokenizers spell or refuse what they do not know."""
    step: WordNumbers | None = chain.find(WordNumbers)
    if step is None:
        return []
    words = [word for row in rows for word in row.value]
    unknown = [word for word in words if word not in step.numbers]
    if len(unknown) <= MOST_UNKNOWN * len(words):
        return []
    shown = ", ".join(list(dict.fromkeys(unknown))[:MOST_SHOWN])
    return [
        f"{len(unknown) / len(words):.0%} of the words ({len(unknown):,} of {len(words):,}) were "
        f"not in the training data, and are all read as one unknown word: {shown}"
        + (", …" if len(set(unknown)) > MOST_SHOWN else "")
    ]


def _unknown_categories(preprocessing: Preprocessing, rows: Sequence[RawInput]) -> list[str]:
    """A note for each column with categories that training has not seen: their code is 0."""
    notes = []
    for name, known in preprocessing.categories.items():
        place = preprocessing.roles.features.index(name)
        unknown = [row.source for row in rows if (np.asarray(row.value)[:, place] == 0).any()]
        if unknown:
            listed = ", ".join(known[:8]) + (", …" if len(known) > 8 else "")
            notes.append(
                f"{name}: {len(unknown):,} inputs have a category that training has not seen (the "
                f"first: {unknown[0]}), read as none of {listed}"
            )
    return notes
