"""A user's parallel text: each example a source and its target."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from threefold.data.preprocessing import Chain, Preprocessing, Roles
from threefold.data.preprocessing.text import Tokenize
from threefold.errors import ThreefoldError
from threefold.tasks.language_modelling import learn_tokenizer
from threefold.tasks.pairs import FIRST_TOKEN, Pairs, pairs
from threefold.tasks.stored import Array
from threefold.tasks.table import SPLITS
from threefold.tasks.task import Numbers, Task, declare_user_task
from threefold.tasks.user_data.description import DataDescription, duplicates_note, list_options
from threefold.tasks.user_data.settings import Reading
from threefold.tasks.user_data.splits import shuffled_split

FEWEST_PAIRS = 10
MOST_TOKENS = 256  # of one side, unless `length` is given


class RawPairs(NamedTuple):
    """Sources, targets, and where each pair stands; notes are about how they were read."""

    sources: Sequence[str]
    targets: Sequence[str]
    places: Sequence[str]
    notes: Sequence[str] = ()


def pairs_task(
    name: str, rows: RawPairs, reading: Reading, roles: Roles | None = None
) -> Task[Pairs]:
    """Pairs of tokens; each side has its own tokenizer, learnt from the training split."""
    splits = _split(name, len(rows.sources), reading)
    preprocessing = reading.preprocessing or _fit(rows, splits["train"], reading, roles or Roles())
    sides = (preprocessing.inputs, preprocessing.outputs)
    sizes = [side.find(Tokenize).vocabulary for side in sides]

    def draw(split: str, numbers: Numbers) -> Pairs:
        picked = splits[split][numbers]
        texts = ([rows.sources[i] for i in picked], [rows.targets[i] for i in picked])
        sources, targets = (
            [side.apply(text).tolist() for text in column]
            for side, column in zip(sides, texts, strict=True)
        )
        return pairs(name, sources, targets, sizes[0], sizes[1])

    return declare_user_task(
        name,
        draw,
        kind="seq2seq",
        domain="text",
        length=preprocessing.inputs.find(Tokenize).length,
        sizes=tuple(len(splits[split]) for split in SPLITS),
        metric="exact",
        chance=0.0,
        vocabulary=sizes[0],
        classes=sizes[1],
        preprocessing=lambda: preprocessing,
        description=_describe(name, rows, splits, reading),
        raw=lambda split, n: (
            rows.places[int(splits[split][n])],
            rows.sources[int(splits[split][n])],
        ),
    )


def _split(name: str, count: int, reading: Reading) -> dict[str, Array]:
    if not reading.split:
        return dict.fromkeys(SPLITS, np.arange(count))
    if count < FEWEST_PAIRS:
        raise ThreefoldError(f"{name}: {count} pairs are too few; expected ten or more")
    return shuffled_split(count, ())


def _fit(rows: RawPairs, train: Array, reading: Reading, roles: Roles) -> Preprocessing:
    settings = reading.settings
    vocabulary, length = settings.vocabulary or 4096, settings.length or MOST_TOKENS
    chains = []
    for texts in (rows.sources, rows.targets):
        tokenizer = learn_tokenizer(
            settings.tokenizer or "bpe", [texts[i] for i in train], vocabulary - FIRST_TOKEN
        )
        chains.append(Chain((Tokenize.by(tokenizer, length, FIRST_TOKEN),)))
    header, decimal = settings.header, settings.decimal
    return Preprocessing(
        "seq2seq", "text", chains[0], chains[1], roles, header=header, decimal=decimal
    )


def _describe(
    name: str, rows: RawPairs, splits: dict[str, Array], reading: Reading
) -> DataDescription:
    facts = [("pairs", f"{len(rows.sources):,}"), ("first source", repr(rows.sources[0][:60]))]
    facts.append(("first target", repr(rows.targets[0][:60])))
    if not reading.split:
        return DataDescription(name, "seq2seq", tuple(facts), tuple(rows.notes))
    sizes = " / ".join(f"{len(splits[split]):,}" for split in SPLITS)
    facts.append(("split", f"{sizes} pairs (train / validation / test), shuffled"))
    texts = {split: [rows.sources[i] for i in splits[split]] for split in ("train", "test")}
    notes = (*rows.notes, *duplicates_note(texts["train"], texts["test"]))
    otherwise = list_options("target", "features", "kind")
    return DataDescription(name, "seq2seq", tuple(facts), notes, otherwise)
