"""A user's images, or rows of numbers, with the texts that describe them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch

from threefold.data.preprocessing import Chain, Preprocessing, Roles
from threefold.data.preprocessing.categories import column_values
from threefold.data.preprocessing.media import ReadPicture
from threefold.data.preprocessing.text import Tokenize
from threefold.data.tables import Table
from threefold.errors import ThreefoldError
from threefold.tasks.language_modelling import learn_tokenizer
from threefold.tasks.pairs import FIRST_TOKEN, Pairs, captions
from threefold.tasks.stored import Array
from threefold.tasks.table import SPLITS
from threefold.tasks.task import Numbers, Task, declare_user_task
from threefold.tasks.user_data.description import DataDescription, duplicates_note, list_options
from threefold.tasks.user_data.examples import apply_chain
from threefold.tasks.user_data.numbers import fit_numbers
from threefold.tasks.user_data.pairs import FEWEST_PAIRS, MOST_TOKENS
from threefold.tasks.user_data.pictures import picture_step
from threefold.tasks.user_data.roles import TableReading
from threefold.tasks.user_data.settings import Reading, ReadSettings
from threefold.tasks.user_data.splits import shuffled_split

SETTINGS = ("target", "features", "header", "decimal", "length", "vocabulary", "tokenizer")
CACHED_NUMBERS = 1 << 27  # of images that are kept in memory, half a gigabyte


class RawCaptions(NamedTuple):
    """Files of images or rows of numbers, their texts, and where each stands."""

    sources: Sequence[Any]
    texts: Sequence[str]
    places: Sequence[str]
    notes: Sequence[str]


def captions_task(table: Table, found: TableReading, reading: Reading) -> Task[Pairs]:
    """The task of a table: images or rows of numbers → texts."""
    settings, roles = reading.settings, found.roles
    of_images = roles.image is not None
    used = (*SETTINGS, "image_size" if of_images else "missing")
    settings.allow_only(f"{table.name}, {'images' if of_images else 'numbers'} with texts", *used)
    texts = table.texts(roles.label or "")
    places = [table.position(line) for line in table.line_numbers]
    if of_images:
        rows = RawCaptions(table.paths(roles.image or ""), texts, places, table.notes)
        splits = _split(table.name, rows.sources, reading)
        fit = lambda train: Chain((picture_step(table.name, train, settings),))  # noqa: E731
    else:
        columns = roles.features
        values = column_values(table, columns, found.categories, settings.missing)
        rows = RawCaptions([row[None, :] for row in values], texts, places, table.notes)
        splits = _split(table.name, range(len(texts)), reading)
        fit = lambda train: fit_numbers(train, columns, settings, found.categories)  # noqa: E731
    preprocessing = reading.preprocessing or _fit(rows, splits["train"], settings, roles, fit)
    return _declare(table.name, rows, splits, preprocessing, reading)


def _declare(
    name: str,
    rows: RawCaptions,
    splits: dict[str, Array],
    preprocessing: Preprocessing,
    reading: Reading,
) -> Task[Pairs]:
    step: Tokenize = preprocessing.outputs.find(Tokenize)
    first = apply_chain(preprocessing.inputs, rows.sources[0], rows.places[0])

    def encode_row(row: int) -> Array:
        source = apply_chain(preprocessing.inputs, rows.sources[row], rows.places[row])
        return np.asarray(source, np.float32)

    encode = lru_cache(max(1, CACHED_NUMBERS // first.size))(encode_row)

    def draw(split: str, numbers: Numbers) -> Pairs:
        picked = splits[split][numbers].tolist()
        sources = torch.from_numpy(np.stack([encode(row) for row in picked]))
        return captions(
            name, sources, [step.apply(rows.texts[i]).tolist() for i in picked], step.vocabulary
        )

    return declare_user_task(
        name,
        draw,
        kind="captioner",
        domain="vision" if preprocessing.form == "image" else "text",
        length=first[0].size if preprocessing.form == "image" else 1,
        features=first.shape[0] if preprocessing.form == "image" else first.shape[-1],
        sizes=tuple(len(splits[split]) for split in SPLITS),
        metric="exact",
        chance=_chance(rows.texts, splits),
        classes=step.vocabulary,
        preprocessing=lambda: preprocessing,
        description=_describe(name, rows, splits, preprocessing, reading),
        raw=lambda split, n: (
            rows.places[int(splits[split][n])],
            rows.sources[int(splits[split][n])],
        ),
    )


def _split(name: str, sources: Sequence[Any], reading: Reading) -> dict[str, Array]:
    """Rows of each split; an image with several texts is in one of them."""
    if not reading.split:
        return dict.fromkeys(SPLITS, np.arange(len(sources)))
    number_of: dict[Any, int] = {}
    numbers = np.array([number_of.setdefault(source, len(number_of)) for source in sources])
    if len(number_of) < FEWEST_PAIRS:
        raise ThreefoldError(
            f"{name}: {len(number_of)} examples are too few; expected {FEWEST_PAIRS} or more"
        )
    chosen = shuffled_split(len(number_of), ())
    by_source = np.argsort(numbers, kind="stable")
    starts = np.searchsorted(numbers[by_source], np.arange(len(number_of) + 1))
    return {
        split: np.concatenate([by_source[starts[i] : starts[i + 1]] for i in part])
        for split, part in chosen.items()
    }


def _fit(
    rows: RawCaptions,
    train: Array,
    settings: ReadSettings,
    roles: Roles,
    fit_inputs: Callable[[Sequence[Any]], Chain],
) -> Preprocessing:
    texts = [rows.texts[i] for i in train]
    name, vocabulary = settings.tokenizer or "word", settings.vocabulary or 4096
    tokenizer = learn_tokenizer(name, texts, vocabulary - FIRST_TOKEN)
    longest = max(len(tokenizer.encode(text)) for text in texts)
    length = settings.length or min(2 * longest, MOST_TOKENS)
    # The size of images follows from all of them, so that none is found later that does not fit.
    sources = rows.sources if roles.image else [rows.sources[i] for i in train]
    return Preprocessing(
        "captioner",
        "image" if roles.image else "row",
        fit_inputs(sources),
        Chain((Tokenize.by(tokenizer, length, FIRST_TOKEN),)),
        roles,
        header=settings.header,
        decimal=settings.decimal,
    )


def _chance(texts: Sequence[str], splits: dict[str, Array]) -> float:
    """How often the commonest text of the training split is right."""
    commonest = Counter(texts[i] for i in splits["train"]).most_common(1)[0][0]
    return float(np.mean([texts[i] == commonest for i in splits["test"]]))


def _describe(
    name: str,
    rows: RawCaptions,
    splits: dict[str, Array],
    preprocessing: Preprocessing,
    reading: Reading,
) -> DataDescription:
    read: ReadPicture | None = preprocessing.inputs.find(ReadPicture)
    if read is None:
        inputs = f"{len(rows.texts):,} rows of {', '.join(preprocessing.roles.features)}"
    else:
        colours = "grey" if read.colours == "L" else "colours"
        count = len(set(rows.sources))
        inputs = f"{count:,} images of {read.width} × {read.height} pixels, {colours}"
    facts = [("inputs", inputs), ("first text", repr(rows.texts[0][:60]))]
    if not reading.split:
        return DataDescription(name, "captioner", tuple(facts), tuple(rows.notes))
    sizes = " / ".join(f"{len(splits[split]):,}" for split in SPLITS)
    facts.append(("split", f"{sizes} examples (train / validation / test), shuffled"))
    notes = list(rows.notes)
    if read is None:
        notes += duplicates_note(*([rows.sources[i] for i in splits[s]] for s in ("train", "test")))
    return DataDescription(
        name, "captioner", tuple(facts), tuple(notes), list_options("target", "features", "kind")
    )
