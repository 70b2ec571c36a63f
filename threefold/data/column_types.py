"""What each column of a table holds: numbers, times, categories or texts, with its odd cells."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from threefold.data.cells import (
    is_blank,
    is_missing,
    label_of,
    resembles_number,
    text_of,
    usable_number,
)
from threefold.data.tables import Table
from threefold.data.time_formats import TimeFormat, detect_format, times_in

ColumnType = Literal["number", "time", "category", "text", "list", "empty"]

SHARE = 0.95  # of the cells that are present decide the type of a column; the others are odd
DISTINCT_CAP = 100_000
LONGEST_CATEGORY = 64  # characters
SHOWN = 5  # odd cells and examples
SHOWN_COUNTS = 20
# Names of columns whose integers only number the rows.
NUMBER_OF_ROW = re.compile(r"(?i:(.*[_ -])?(id|index|idx|row|row[_ ]?number))|.*[a-z]ID")
FEWEST_IDENTIFIERS = 10  # cells; fewer may all differ by chance


@dataclass
class ColumnFacts:
    """What a column holds.

    whole: integers only.  index: a counter in equal steps.  identifier: short codes or single words
    that hardly ever repeat, or different integers under a name such as id.  counts: the
    commonest values, if few.  odd: (line, cell) of cells that do not fit the type; odd_count of
    them.
    minimum, maximum: of numbers, or of times in seconds since 1970.  time_format: of times.
    """

    name: str
    type: ColumnType
    count: int
    missing: int = 0
    first_missing: int | None = None
    distinct: int = 0
    whole: bool = False
    minimum: float | None = None
    maximum: float | None = None
    constant: bool = False
    index: bool = False
    identifier: bool = False
    counts: list[tuple[str, int]] = field(default_factory=list)
    odd: list[tuple[int, Any]] = field(default_factory=list)
    odd_count: int = 0
    examples: list[str] = field(default_factory=list)
    time_format: TimeFormat | None = None


def describe(table: Table) -> dict[str, ColumnFacts]:
    """What every column of a table holds."""
    return {name: describe_column(table, name) for name in table.cells}


def describe_column(table: Table, name: str) -> ColumnFacts:
    """What one column of a table holds."""
    lines, column = table.line_numbers, table.column(name)
    missing = [i for i, cell in enumerate(column) if is_missing(cell)]
    absent = set(missing)
    present = [(lines[i], cell) for i, cell in enumerate(column) if i not in absent]
    cells = [cell for _, cell in present]
    form = detect_format(name, cells, SHARE)
    values = _value_counts(cells)
    facts = ColumnFacts(name, _type_of(cells, values, form), len(column), time_format=form)
    if facts.type == "text":
        missing = [i for i in missing if is_blank(column[i])]
    facts.missing = len(missing)
    facts.first_missing = lines[missing[0]] if missing else None
    facts.examples = list(dict.fromkeys(text_of(cell) for cell in cells[:100]))[:SHOWN]
    facts.distinct, facts.constant = min(len(values), DISTINCT_CAP), len(values) == 1
    if facts.type in ("text", "category"):
        facts.identifier = _are_identifiers(len(cells), values)
    if facts.type == "category" or len(values) <= SHOWN_COUNTS:
        facts.counts = values.most_common(SHOWN_COUNTS)
    if facts.type == "number":
        decimal, grouped = table.decimal_of(name), table.is_grouped(name)
        numbers = [usable_number(cell, decimal, grouped=grouped) for cell in cells]
        _measure(facts, present, numbers)
        numbered = facts.whole and len(values) == len(cells) >= FEWEST_IDENTIFIERS
        facts.identifier = numbered and bool(NUMBER_OF_ROW.fullmatch(name))
    elif form:
        _measure(facts, present, times_in(cells, form))
    return facts


def _type_of(cells: Sequence[Any], values: Counter[str], form: TimeFormat | None) -> ColumnType:
    if not cells:
        return "empty"
    if form:
        return "time"
    if sum(isinstance(cell, list | dict) for cell in cells) > len(cells) / 2:
        return "list"
    odd = sum(not resembles_number(cell) for cell in cells)
    # In a short column a single odd cell is more than 5 %.
    if odd <= (1 - SHARE) * len(cells) or (odd == 1 and len(cells) > 3):
        return "number"
    return "category" if _are_categories(len(cells), values) else "text"


def _are_categories(count: int, values: Counter[str]) -> bool:
    """Few short values, of which most occur more than once or all are single words."""
    if len(values) > max(20, count // 20):
        return False
    short = all(len(value) <= LONGEST_CATEGORY for value in values)
    return short and (2 * len(values) <= count or all(len(v.split()) == 1 for v in values))


def _are_identifiers(count: int, values: Counter[str]) -> bool:
    """Single words or codes that (almost) all differ; scripts without spaces may be sentences."""
    if count < FEWEST_IDENTIFIERS or len(values) < SHARE * count:
        return False
    codes = sum(v.isascii() and len(v) <= LONGEST_CATEGORY and len(v.split()) == 1 for v in values)
    return codes >= SHARE * len(values)


def _value_counts(cells: Sequence[Any]) -> Counter[str]:
    """How often each value occurs, by its label."""
    # Lists have no hash, and the hash of True is that of 1.
    slow = any(isinstance(cell, bool | list | dict) for cell in cells)
    values: Counter[str] = Counter()
    for cell, count in Counter(map(text_of, cells) if slow else cells).items():
        values[label_of(cell)] += count
    return values


def _measure(
    facts: ColumnFacts, present: Sequence[tuple[int, Any]], values: Sequence[float | None]
) -> None:
    """Range, odd cells and whether the values are a counter."""
    odd = [row for row, value in zip(present, values, strict=True) if value is None]
    facts.odd, facts.odd_count = odd[:SHOWN], len(odd)
    numbers = [value for value in values if value is not None]
    if not numbers:
        return
    facts.minimum, facts.maximum = min(numbers), max(numbers)
    facts.whole = facts.type == "number" and not odd and all(n.is_integer() for n in numbers)
    facts.distinct = min(len(set(numbers)) + len(odd), DISTINCT_CAP)
    facts.index = facts.type == "number" and not facts.missing and not odd and _is_counter(numbers)


def _is_counter(numbers: Sequence[float]) -> bool:
    """At least four values that grow in equal steps."""
    if len(numbers) < 4 or numbers[0] >= numbers[-1]:
        return False
    step = (numbers[-1] - numbers[0]) / (len(numbers) - 1)
    slack = 1e-6 * step + 1e-12 * max(abs(numbers[0]), abs(numbers[-1]))
    return all(abs(number - numbers[0] - i * step) <= slack for i, number in enumerate(numbers))
