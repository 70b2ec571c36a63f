"""Helpers for the questions that are asked back when data can be read in several ways."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import groupby

import numpy as np

from threefold.data.cells import is_missing, text_of
from threefold.data.column_types import ColumnFacts
from threefold.data.preprocessing import Roles
from threefold.data.preprocessing.numbers import absurd_numbers
from threefold.data.tables import Table
from threefold.data.time_stamps import time_format_of
from threefold.errors import AmbiguousError, ThreefoldError, option, option_name, options
from threefold.tasks.stored import Array
from threefold.tasks.user_data.settings import join_names

MOST_NUMERIC_CLASSES = 20
MOST_COLUMNS, FEWEST_JOINED = 12, 4  # that a message lists; of one type that it joins
DEVIATIONS = 3  # of a correlation by chance; fewer are not taken as an order in time
FEWEST_PAIRS = 8
PAIR_SUFFIXES = (".tsv", ".tab", ".tsv.gz", ".tab.gz")


def name_columns(**values: str | Sequence[str]) -> str:
    """Options that name columns, as the user spells them."""
    lists = {key: [value] if isinstance(value, str) else value for key, value in values.items()}
    named = {
        key: join_names(names) if key in ("target", "features") else names[0]
        for key, names in lists.items()
    }
    return options(**named)


def choice(meaning: str, **values: str | Sequence[str]) -> str:
    """Options, and what they mean."""
    return f"{name_columns(**values)}    {meaning}"


def date_questions(
    table: Table, time: str, day_first: bool | None, *, sure: bool
) -> list[AmbiguousError]:
    """Whether 01/02/2024 begins with the day; sure: whether the times are read in any case."""
    try:
        time_format_of(table, time, day_first=day_first)
    except AmbiguousError as error:
        what = error.what if sure else f"only if rows are read in the order of time: {error.what}"
        return [AmbiguousError(what, error.options)]
    except ThreefoldError:
        if sure:
            raise
    return []


def tagging_options(
    facts: Mapping[str, ColumnFacts], numbers: Sequence[str], labels: Sequence[str]
) -> list[str]:
    """Words and their tags in two columns, with the number of the sentence in a third."""
    groups = [name for name in numbers if facts[name].whole and not facts[name].index]
    categories = [name for name in labels if facts[name].type == "category"]
    if len(categories) < 2 or not groups:
        return []
    words, tags = categories[:2]
    named = {"target": tags, "features": words, "group_column": groups[0]}
    return [choice("a tag for each word", kind="tagger", **named)]


def row_options(target: ColumnFacts) -> list[str]:
    """What the rows of a table without times may be."""
    choices = [
        choice("every row is one example, in any order", kind="regressor", target=target.name),
        choice("the rows follow one another in time", kind="forecaster", target=target.name),
    ]
    if target.whole and target.distinct <= MOST_NUMERIC_CLASSES:
        choices.insert(1, choice("the numbers are classes", kind="classifier", target=target.name))
    return choices


def neighbours_correlate(values: Array) -> bool:
    """Whether neighbouring values are correlated more than those of shuffled rows would be."""
    values = np.where(absurd_numbers(values), np.nan, values)
    pairs = np.stack([values[:-1], values[1:]])
    pairs = pairs[:, np.isfinite(pairs).all(0)]
    count = pairs.shape[1]
    if count < FEWEST_PAIRS or (pairs == pairs[:, :1]).all(1).any():
        return True
    return bool(abs(np.corrcoef(pairs)[0, 1]) > DEVIATIONS / np.sqrt(count))


def list_types(facts: Mapping[str, ColumnFacts]) -> str:
    """The columns with their types; of many, neighbours of one type together."""
    names = list(facts)
    if len(names) <= MOST_COLUMNS:
        return ", ".join(f"{name} ({facts[name].type})" for name in names)
    runs = [list(run) for _, run in groupby(names, lambda name: facts[name].type)]
    shown = [_run_of_columns(run, facts[run[0]].type) for run in runs[:MOST_COLUMNS]]
    rest = sum(map(len, runs[MOST_COLUMNS:]))
    return ", ".join(shown) + (f" and {rest} more" if rest else "")


def _run_of_columns(names: Sequence[str], kind: str) -> str:
    """Neighbouring columns of one type: t0 … t79 (80 numbers)."""
    if len(names) < FEWEST_JOINED:
        return ", ".join(f"{name} ({kind})" for name in names)
    several = {"category": "categories"}.get(kind, f"{kind}s")
    return f"{names[0]} … {names[-1]} ({len(names)} {several})"


def label_options(
    facts: Mapping[str, ColumnFacts],
    numbers: Sequence[str],
    labels: Sequence[str],
    timed: bool,
    given: Sequence[str] = (),
) -> list[str]:
    """What to do with columns of numbers beside what may be a label; given: targets to keep."""
    others = [name for name in numbers if name not in labels]
    rows = "each row is one example"
    choices = [choice(rows, kind="classifier", target=label) for label in labels[:4]]
    choices += [choice("each row has a label, in order", kind="tagger", target=labels[0])]
    if given:
        return choices
    choices += [name_columns(kind="forecaster", target=name) for name in others[:4]]
    choices += tagging_options(facts, numbers, labels)
    if not timed and len(others) > 1:
        choices.append(name_columns(kind="regressor", target=others[-1]))
    if facts[labels[0]].type == "category" and timed:
        choices += [name_columns(series_column=labels[0], target=name) for name in others[:1]]
    return choices


def forecast_options(usable: Sequence[str], timed: bool) -> list[str]:
    """Which of several columns to forecast."""
    choices = [name_columns(target=name) for name in usable[:8]]
    choices.append(choice("all of them", target=usable[:8]))
    if not timed:
        rows = "every row is one example, in any order"
        choices.append(choice(rows, kind="regressor", target=usable[-1]))
    return choices


def number_options(target: str) -> list[str]:
    """Whether a column of few whole numbers holds classes or quantities."""
    return [
        choice("they are classes", kind="classifier", target=target),
        choice("they are quantities", kind="regressor", target=target),
    ]


def text_options(
    texts: Sequence[str], targets: Sequence[str], beside: Sequence[str], kind: str
) -> list[str]:
    """Which columns to read: texts, or the numbers and categories beside them."""
    known = {"target": targets} if targets else {}
    choices = [name_columns(features=name, **known) for name in texts[:6]]
    if len(texts) > 1:
        choices.append(choice("joined", features=texts[:6], **known))
    if beside:
        choices.append(choice("without the text", kind=kind, features=beside, **known))
    return choices


def same_in_groups(table: Table, group: str, name: str) -> bool:
    """Whether a column has one value per group; empty cells do not count."""
    pairs = zip(table.column(group), table.column(name), strict=True)
    values = {(text_of(key), text_of(cell)) for key, cell in pairs if not is_missing(cell)}
    return len(values) == len({key for key, _ in values})


def group_options(
    table: Table, facts: Mapping[str, ColumnFacts], group: str, names: Sequence[str]
) -> list[str]:
    """What to predict for rows in groups: one value per group first, then one per row."""
    per_group, per_row = [], []
    for name in names:
        column, same = facts[name], same_in_groups(table, group, name)
        classes = column.type != "number" or (
            column.whole and column.distinct <= MOST_NUMERIC_CLASSES
        )
        if same and classes:
            per_group.append(choice("a label for each group", kind="classifier", target=name))
        if same and column.type == "number":
            per_group.append(choice("a number for each group", kind="regressor", target=name))
        if not same and classes:
            per_row.append(choice("a label for each row", kind="tagger", target=name))
        if not same and not classes:
            what = f"numbers in time, instead of {option_name('group_column')}"
            named = {"series_column": group, "target": name}
            per_row.append(choice(what, kind="forecaster", **named))
    return [*per_group, *per_row][:8]


def unlabelled_options(table: str, texts: Sequence[str], others: Sequence[str]) -> list[str]:
    """What to do with texts beside which no column looks like labels."""
    choices = [name_columns(target=name) for name in others]
    if len(texts) == 1 and others:
        choices.append(choice("to write the text of each row", kind="captioner", target=texts[0]))
    if len(texts) > 1:
        pair = {"features": texts[0], "target": texts[1]}
        choices.append(choice("to translate", kind="seq2seq", **pair))
        if table.lower().endswith(PAIR_SUFFIXES):
            choices.append(choice("to translate; the first line is a pair, too", kind="seq2seq"))
    return [*choices, option("kind", "language")][:8]


def refuse_mixed_series(table: Table, roles: Roles, facts: Mapping[str, ColumnFacts]) -> None:
    """Ask back if rows of several series seem to follow one another: each time once per name."""
    cells = {name: list(map(text_of, column)) for name, column in table.cells.items()}
    times = Counter(cells[roles.time]) if roles.time is not None else Counter()
    rows_per_time = max(times.values(), default=1)
    if rows_per_time < 2 or 2 * len(table) < len(times) * (rows_per_time + 1):
        return
    for name in roles.features:
        names = facts[name].type == "category" or facts[name].whole
        if not names or facts[name].missing or facts[name].distinct != rows_per_time:
            continue
        if len(set(zip(cells[str(roles.time)], cells[name], strict=True))) == len(table):
            raise AmbiguousError(
                f"{table.name}: every {roles.time} is there up to {rows_per_time:,} times, once "
                f"for each {name}: several series, or one?",
                [
                    choice("a series each", series_column=name, target=roles.targets),
                    choice("one series", target=roles.targets, features=roles.features),
                ],
            )
