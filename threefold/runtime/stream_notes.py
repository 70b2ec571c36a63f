"""What was odd in a stream of rows, as sentences for its summary."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence


def oddities(
    counts: Counter[str],
    missing: Counter[str],
    masked: Sequence[str] | None,
    binned: bool,
    unseen: Sequence[str] = (),
) -> list[str]:
    """Sentences on what was odd.

    counts: of rows by what was odd.  missing: cells by column.  masked: the columns whose missing
    values a model was trained to see marked; None if none are marked.  binned: whether rows are
    averaged over steps of time.  unseen: columns of which no value has been seen.
    """
    notes = []
    if counts["missing"]:
        listed = ", ".join(f"{name} {count:,}" for name, count in missing.items())
        marked = "" if masked is None else _marked(missing, masked)
        notes.append(
            f"{_rows(counts['missing'])} had missing or absurd values ({listed}), replaced by "
            f"the last value of the column{marked}"
        )
    if unseen:
        notes.append(
            f"{', '.join(unseen)} had no usable value so far: the answers rest on the mean of "
            "training in its place, and are worth little"
        )
    if counts["skipped"]:
        several = f"{counts['skipped']:,} lines were not rows of the table, and were left out"
        one = "1 line was not a row of the table, and was left out"
        notes.append(one if counts["skipped"] == 1 else several)
    if counts["unsorted"]:
        came = "it came" if counts["unsorted"] == 1 else "they came"
        did = f"read as {came}" if not binned else "left out"
        were = "was" if counts["unsorted"] == 1 else "were"
        rows = _rows(counts["unsorted"])
        notes.append(f"{rows} {were} not in the order of time, and {were} {did}")
    if counts["untimed"]:
        were = "was" if counts["untimed"] == 1 else "were"
        did = "" if not binned else f", and {were} left out"
        notes.append(f"{_rows(counts['untimed'])} had no time that could be read{did}")
    if counts["gaps"]:
        gaps = "one gap" if counts["gaps"] == 1 else f"{counts['gaps']:,} gaps"
        notes.append(f"{gaps} in time; rows were taken as equally spaced")
    return notes


def _rows(count: int) -> str:
    return "1 row" if count == 1 else f"{count:,} rows"


def _marked(missing: Counter[str], masked: Sequence[str]) -> str:
    unmarked = [name for name in missing if name not in masked]
    if not unmarked:
        return ", and marked as missing"
    return (
        f"; {', '.join(unmarked)} had no missing values in training, so the model cannot be "
        "told that they are missing"
    )
