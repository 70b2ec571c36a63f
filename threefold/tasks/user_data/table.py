"""A user's table: forecasters, classifiers, regressors, taggers or translators, by its columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from threefold.data.column_types import describe_column
from threefold.data.preprocessing import FORMS, Chain, Preprocessing, Roles
from threefold.data.preprocessing.categories import column_values
from threefold.data.preprocessing.numbers import (
    RowAsSequence,
    Truncate,
)
from threefold.data.preprocessing.text import WordNumbers
from threefold.data.tables import Table
from threefold.data.time_stamps import day_first_in, read_times, time_format_of
from threefold.errors import ThreefoldError, nearest, option, setting
from threefold.tasks.stored import Array
from threefold.tasks.table import TEXT_KINDS
from threefold.tasks.task import Task
from threefold.tasks.user_data.captions import captions_task
from threefold.tasks.user_data.description import category_facts, list_names, list_options
from threefold.tasks.user_data.examples import ExampleData, RawExamples, examples_task
from threefold.tasks.user_data.numbers import fit_numbers
from threefold.tasks.user_data.pairs import RawPairs, pairs_task
from threefold.tasks.user_data.roles import TableReading, read_roles
from threefold.tasks.user_data.series import forecasting_task, refuse_missing
from threefold.tasks.user_data.settings import Reading, ReadSettings
from threefold.tasks.user_data.starting import ordered_like
from threefold.tasks.user_data.text_inputs import fit_texts
from threefold.tasks.user_data.unlabelled import split_unlabelled

MOST_WORDS = 25_000
TABLE_SETTINGS = ("target", "features", "header", "decimal", "length", "pretrain")
GROUP_SETTINGS = (*TABLE_SETTINGS, "time_column", "group_column", "day_first")
LONGEST_CUT = 128  # rows of one example, where a table of tagged rows is cut into examples


def table_task(table: Table, reading: Reading) -> Task[Any]:
    """The task of a table, whose kind follows from the settings and the columns."""
    reading.settings.refuse_repeated()
    if reading.preprocessing is None and (sign := table.shown_decimal()) is not None:
        # Later tables need not show it, so it is saved with the model.
        table.decimal = sign
        reading = replace(reading, settings=replace(reading.settings, decimal=sign))
    found = _known_roles(table, reading) or _read_roles(table, reading)
    table = _without_empty_texts(table, found)
    if found.kind == "forecaster":
        return forecasting_task(table, found, reading)
    if found.kind == "captioner":
        return captions_task(table, found, reading)
    if found.kind == "seq2seq":
        reading.settings.allow_only(
            f"{table.name}, pairs of texts",
            *(*TABLE_SETTINGS, "vocabulary", "tokenizer"),
        )
        (source,), target = found.roles.texts, found.roles.label or ""
        texts = table.texts(source), table.texts(target)
        rows = RawPairs(*texts, _places(table), table.notes)
        return pairs_task(table.name, rows, reading, found.roles)
    if not reading.settings.pretrain:
        return examples_task(_examples(table, found, reading.settings), reading)
    table, rest = split_unlabelled(table, found)
    data = _examples(table, found, reading.settings)
    if len(rest) and reading.preprocessing is None:
        data = replace(data, unlabelled=_examples(rest, found, reading.settings).examples)
    return examples_task(data, reading)


def _without_empty_texts(table: Table, found: TableReading) -> Table:
    """Without the rows that have no text to read or, of a pair, none to write; with a note."""
    if found.kind == "tagger" or not found.roles.texts:
        return table
    columns = [join_texts(table, found.roles.texts)]
    if found.kind == "seq2seq":
        columns.append(join_texts(table, [found.roles.label or ""]))
    full = [all(row) for row in zip(*columns, strict=True)]
    if all(full):
        return table
    if not any(full):
        raise table.error(None, f"every text is empty ({list_names(found.roles.texts)})")
    kept = table.rows([i for i, is_full in enumerate(full) if is_full])
    first = table.position(table.line_numbers[full.index(False)])
    kept.notes.append(f"rows without a text are left out: {full.count(False):,}, first {first}")
    return kept


def _read_roles(table: Table, reading: Reading) -> TableReading:
    """Roles from the settings and the columns; those of a model to start from, if they fit."""
    start, settings = reading.start, reading.settings
    if start is None:
        return read_roles(table, settings)
    same_kind = settings.kind in (None, start.kind) and start.kind not in TEXT_KINDS
    told = settings.target is not None or settings.features is not None
    # The name of a column of texts does not matter, those of columns of numbers do.
    fits = not (start.roles.texts and missing_columns(table, start.roles, with_labels=True))
    if same_kind and not told and start.roles != Roles() and fits:
        check_columns(table, start.roles, with_labels=True)
        return known_reading(table, start)
    found = read_roles(table, replace(settings, kind=reading.kind))
    return found._replace(roles=ordered_like(start, found.roles))


def _known_roles(table: Table, reading: Reading) -> TableReading | None:
    """The roles of the columns that a trained model expects, checked against the table."""
    if reading.preprocessing is None:
        return None
    roles = reading.preprocessing.roles
    if not (roles.texts or roles.targets or roles.features or roles.image):
        trained = FORMS[reading.preprocessing.form]
        raise ThreefoldError(
            f"{table.name}: a table, but the model was trained on {trained} that were not in a "
            "table; give such data"
        )
    check_columns(table, roles, with_labels=True)
    return known_reading(table, reading.preprocessing)


def known_reading(table: Table, known: Preprocessing) -> TableReading:
    """The roles of the columns that a trained model expects."""
    roles = known.roles
    names = [*roles.texts, *roles.targets, *roles.features]
    facts = {name: describe_column(table, name) for name in names}
    return TableReading(known.kind, roles, {}, facts, known.categories)


def check_columns(table: Table, roles: Roles, *, with_labels: bool) -> None:
    """Refuse a table that lacks a column of the model's training data."""
    wanted, missing = _wanted(roles, with_labels), missing_columns(table, roles, with_labels)
    if missing:
        hint = nearest(missing[0], table.cells)
        raise ThreefoldError(
            f"{table.name}: the column{'s'[: len(missing) - 1]} {', '.join(missing)} "
            f"{'is' if len(missing) == 1 else 'are'} missing; the model was trained on "
            f"{', '.join(wanted)}, the table has {', '.join(table.cells)}"
            + (f": {hint}" if hint.startswith("did you mean") else "")
        )


def missing_columns(table: Table, roles: Roles, with_labels: bool) -> list[str]:
    """The columns of the model's training data that a table lacks."""
    return [name for name in _wanted(roles, with_labels) if name not in table.cells]


def _wanted(roles: Roles, with_labels: bool) -> list[str]:
    wanted = [*roles.texts, *roles.features, roles.time, roles.group, roles.series, roles.image]
    wanted += [roles.label, *roles.targets] if with_labels else []
    return [name for name in wanted if name]


def _examples(table: Table, found: TableReading, settings: ReadSettings) -> ExampleData:
    """Examples of a classifier, regressor or tagger."""
    context = _cut_length(table, found, settings)
    if found.roles.texts and found.kind != "tagger":
        raw, form, fit = _text_examples(table, found, settings)
    elif found.kind == "tagger" or found.roles.group is not None:
        raw, form, fit = _grouped_examples(table, found, settings, context)
    else:
        raw, form, fit = _row_examples(table, found, settings)
    inputs = found.roles.texts or found.roles.features
    targets = (found.roles.label,) if found.roles.label else found.roles.targets
    facts = [("inputs", list_names(inputs)), ("target", list_names(targets))]
    facts += category_facts(found.categories)
    if found.dropped:
        facts.append(("not used", list_names([f"{n} ({w})" for n, w in found.dropped.items()])))
    otherwise = list_options("kind", "target", "features", "group_column")
    return ExampleData(
        table.name,
        found.kind,
        form,
        raw,
        fit,
        roles=found.roles,
        context=context,
        day_first=_day_first(table, found.roles.time, settings),
        facts=(*facts, *_missing_facts(table, found, settings)),
        notes=tuple(table.notes),
        otherwise=otherwise,
    )


def _day_first(table: Table, column: str | None, settings: ReadSettings) -> bool | None:
    """How dates are written, so that new ones need not be asked about."""
    if column is None:
        return None
    return day_first_in(time_format_of(table, column, day_first=settings.day_first).text)


def _cut_length(table: Table, found: TableReading, settings: ReadSettings) -> int | None:
    """Rows of one example, where a table of tagged rows has no groups; else None."""
    if found.kind != "tagger" or found.roles.group is not None:
        return None
    return settings.length or max(1, min(LONGEST_CUT, len(table) // 20))


def _missing_facts(
    table: Table, found: TableReading, settings: ReadSettings
) -> list[tuple[str, str]]:
    columns = [(name, found.facts[name].missing) for name in found.roles.features]
    counts = ", ".join(f"{name} {count:,}" for name, count in columns if count)
    if not counts:
        return []
    if settings.missing == "refuse":
        refuse_missing(table, found, found.roles.features)
    how = {"carry": "filled"}.get(settings.missing or "", "filled and marked")
    return [("missing", f"{counts}; {how} ({setting('data.missing', 'mask|carry|refuse')})")]


def _text_examples(table: Table, found: TableReading, settings: ReadSettings) -> Any:
    settings.allow_only(f"{table.name}, texts", *TABLE_SETTINGS, "tokenizer", "vocabulary")
    raw = RawExamples(join_texts(table, found.roles.texts), _targets(table, found), _places(table))
    return raw, "text", lambda texts: fit_texts(found.kind, texts, settings)


def join_texts(table: Table, columns: Sequence[str]) -> list[str]:
    """The texts of several columns, joined by a line break; "" where all of them are empty."""
    parts = [table.texts(name, allow_empty=True) for name in columns]
    return ["\n".join(row) if any(row) else "" for row in zip(*parts, strict=True)]


def _row_examples(table: Table, found: TableReading, settings: ReadSettings) -> Any:
    """Every row is a sequence of numbers, each on the scale of its column."""
    settings.allow_only(f"{table.name}, rows of numbers", *TABLE_SETTINGS, "missing")
    columns = found.roles.features
    rows = column_values(table, columns, found.categories, settings.missing)
    raw = RawExamples([row[None, :] for row in rows], _targets(table, found), _places(table))

    def fit(train: Sequence[Array]) -> Chain:
        steps = fit_numbers(train, columns, settings, found.categories).steps
        cut = [step for step in steps if isinstance(step, Truncate)]
        numbers = [step for step in steps if step not in cut]
        return Chain((*numbers, RowAsSequence(), *cut))

    return raw, "row", fit


def _grouped_examples(
    table: Table, found: TableReading, settings: ReadSettings, context: int | None
) -> Any:
    """Rows of one group are a sequence, in the order of time."""
    settings.allow_only(f"{table.name}, groups of rows", *GROUP_SETTINGS, "missing", "vocabulary")
    groups = group_rows(table, found.roles, context, settings.day_first)
    targets = _targets(table, found)
    chosen: list[Any] = [[targets[row] for row in rows] for rows in groups.values()]
    if found.kind != "tagger":
        chosen = [_only(labels, table, name) for labels, name in zip(chosen, groups, strict=True)]
    places = [table.position(table.line_numbers[rows[0]]) for rows in groups.values()]
    if found.roles.texts:
        words = table.texts(found.roles.texts[0])
        sequences: list[Any] = [[words[row] for row in rows] for rows in groups.values()]
        vocabulary = settings.vocabulary or MOST_WORDS
        fit = lambda train: Chain((WordNumbers.fit(train, vocabulary, settings.length),))  # noqa: E731
        return RawExamples(sequences, chosen, places), "words", fit
    columns = found.roles.features
    values = column_values(table, columns, found.categories, settings.missing)
    sequences = [values[rows] for rows in groups.values()]
    raw = RawExamples(sequences, chosen, places)
    return raw, "series", lambda train: fit_numbers(train, columns, settings, found.categories)


def group_rows(
    table: Table, roles: Roles, context: int | None, day_first: bool | None = None
) -> dict[str, list[int]]:
    """The row numbers of every group, in the order of time; without groups, `context` rows each."""
    order: Sequence[int] = range(len(table))
    if roles.time is not None:
        times = read_times(table, roles.time, day_first=day_first)
        order = np.argsort(times, kind="stable").tolist()
    if roles.group is None:
        size = context or len(table)
        parts = [list(order[first : first + size]) for first in range(0, len(order), size)]
        return {table.position(table.line_numbers[rows[0]]): rows for rows in parts}
    names = table.labels(roles.group)
    groups: dict[str, list[int]] = {name: [] for name in dict.fromkeys(names)}
    for row in order:
        groups[names[row]].append(int(row))
    return groups


def _targets(table: Table, found: TableReading) -> list[Any]:
    label = found.roles.label or ""
    if found.kind != "regressor":
        return table.labels(label, f"; {option('pretrain')} learns from rows without a label, too")
    columns = [table.complete_numbers(name) for name in found.roles.targets or (label,)]
    return columns[0].tolist() if label else np.stack(columns, 1).tolist()  # type: ignore[no-any-return]


def _only(labels: Sequence[Any], table: Table, group: str) -> Any:
    if len(set(labels)) > 1:
        raise ThreefoldError(
            f"{table.name}: the rows of group {group!r} have different labels ({labels[0]!r}, "
            f"{next(x for x in labels if x != labels[0])!r}); "
            f"{option('kind', 'tagger')} has a label per row"
        )
    return labels[0]


def _places(table: Table) -> list[str]:
    return [table.position(line) for line in table.line_numbers]
