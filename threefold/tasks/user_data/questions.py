"""Helpers for the questions that are asked back when data can be read in several ways."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

import numpy as np

from threefold.data.column_types import ColumnFacts
from threefold.data.preprocessing.numbers import absurd_numbers
from threefold.tasks.stored import Array

MOST_NUMERIC_CLASSES = 20
DEVIATIONS = 3  # of a correlation by chance; fewer are not taken as an order in time
FEWEST_PAIRS = 8
PAIR_SUFFIXES = (".tsv", ".tab", ".tsv.gz", ".tab.gz")


def name_columns(**columns: str) -> str:
    """Options that name columns, quoted for a shell where they need it."""
    named = columns.items()
    return " ".join(f"--{key.replace('_', '-')} {shlex.quote(name)}" for key, name in named)


def tagging_options(
    facts: Mapping[str, ColumnFacts], numbers: Sequence[str], labels: Sequence[str]
) -> list[str]:
    """Words and their tags in two columns, with the number of the sentence in a third."""
    groups = [name for name in numbers if facts[name].whole and not facts[name].index]
    categories = [name for name in labels if facts[name].type == "category"]
    if len(categories) < 2 or not groups:
        return []
    words, tags = categories[:2]
    named = name_columns(target=tags, features=words, group_column=groups[0])
    return [f"--kind tagger {named}    a tag for each word"]


def row_options(target: ColumnFacts) -> list[str]:
    """What the rows of a table without times may be."""
    name = name_columns(target=target.name)
    options = [
        f"--kind regressor {name}     every row is one example, in any order",
        f"--kind forecaster {name}    the rows follow one another in time",
    ]
    if target.whole and target.distinct <= MOST_NUMERIC_CLASSES:
        options.insert(1, f"--kind classifier {name}    the numbers are classes")
    return options


def neighbours_correlate(values: Array) -> bool:
    """Whether neighbouring values are correlated more than those of shuffled rows would be."""
    values = np.where(absurd_numbers(values), np.nan, values)
    pairs = np.stack([values[:-1], values[1:]])
    pairs = pairs[:, np.isfinite(pairs).all(0)]
    count = pairs.shape[1]
    if count < FEWEST_PAIRS or (pairs == pairs[:, :1]).all(1).any():
        return True
    return bool(abs(np.corrcoef(pairs)[0, 1]) > DEVIATIONS / np.sqrt(count))


def label_options(
    facts: Mapping[str, ColumnFacts], numbers: Sequence[str], labels: Sequence[str], timed: bool
) -> list[str]:
    """What to do with columns of numbers beside what may be a label."""
    others = [name for name in numbers if name not in labels]
    options = tagging_options(facts, numbers, labels)
    label = name_columns(target=labels[0])
    options += [f"--kind classifier {label}    each row is one example"]
    options += [f"--kind tagger {label}        each row has a label, in order"]
    options += [f"--kind forecaster {name_columns(target=name)}" for name in others[:4]]
    if not timed and len(others) > 1:
        options.append(f"--kind regressor {name_columns(target=others[-1])}")
    if facts[labels[0]].type == "category" and timed:
        options += [name_columns(series_column=labels[0], target=name) for name in others[:1]]
    return options


def forecast_options(usable: Sequence[str], timed: bool) -> list[str]:
    """Which of several columns to forecast."""
    options = [name_columns(target=name) for name in usable[:8]]
    options.append(f"{name_columns(target=','.join(usable[:8]))}    all of them")
    if not timed:
        last = name_columns(target=usable[-1])
        options.append(f"--kind regressor {last}    every row is one example, in any order")
    return options


def number_options(target: str) -> list[str]:
    """Whether a column of few whole numbers holds classes or quantities."""
    return [
        f"--kind classifier {name_columns(target=target)}    they are classes",
        f"--kind regressor {name_columns(target=target)}     they are quantities",
    ]


def text_options(texts: Sequence[str]) -> list[str]:
    """Which of several columns of text to read."""
    options = [name_columns(features=name) for name in texts[:6]]
    return [*options, f"{name_columns(features=','.join(texts[:6]))}    joined"]


def unlabelled_options(table: str, texts: Sequence[str], others: Sequence[str]) -> list[str]:
    """What to do with texts beside which no column looks like labels."""
    options = [name_columns(target=name) for name in others]
    if len(texts) > 1:
        pair = name_columns(features=texts[0], target=texts[1])
        options.append(f"--kind seq2seq {pair}    to translate")
        if table.lower().endswith(PAIR_SUFFIXES):
            options.append("--kind seq2seq    to translate; the first line is a pair, too")
    return [*options, "--kind language"][:8]
