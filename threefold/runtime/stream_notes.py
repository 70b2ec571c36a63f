"""What was odd in a stream of rows, as sentences for its summary."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence


def oddities(
    counts: Counter[str], missing: Counter[str], masked: Sequence[str] | None, binned: bool
) -> list[str]:
    """Sentences on what was odd.

    counts: of rows by what was odd.  missing: cells by column.  masked: the columns whose missing
    values a model was trained to see marked; None if none are marked.  binned: whether rows are
    averaged over steps of time.
    """
    notes = []
    if counts["missing"]:
        listed = ", ".join(f"{name} {count:,}" for name, count in missing.items())
        marked = "" if masked is None else _marked(missing, masked)
        notes.append(
            f"{counts['missing']:,} rows had missing or absurd values ({listed}), replaced by "
            f"the last value of the column{marked}"
        )
    if counts["skipped"]:
        notes.append(f"{counts['skipped']:,} lines were not rows of the table, and were left out")
    if counts["unsorted"]:
        did = "read as they came" if not binned else "left out"
        notes.append(f"{counts['unsorted']:,} rows were not in the order of time, and were {did}")
    if counts["untimed"]:
        did = "" if not binned else ", and were left out"
        notes.append(f"{counts['untimed']:,} rows had no time that could be read{did}")
    if counts["gaps"]:
        gaps = "one gap" if counts["gaps"] == 1 else f"{counts['gaps']:,} gaps"
        notes.append(f"{gaps} in time; rows were taken as equally spaced")
    return notes


def _marked(missing: Counter[str], masked: Sequence[str]) -> str:
    unmarked = [name for name in missing if name not in masked]
    if not unmarked:
        return ", and marked as missing"
    return (
        f"; {', '.join(unmarked)} had no missing values in training, so the model cannot be "
        "told that they are missing"
    )
