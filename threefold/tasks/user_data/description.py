"""How a user's data were understood: shown before training and by `threefold data check`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from threefold.errors import option, setting

MOST_SHOWN = 8
FEWEST_OF_A_CLASS = 3  # examples; of a class with fewer, all are for training


@dataclass(frozen=True)
class DataDescription:
    """What was found in the data, what was decided, and how to decide otherwise."""

    name: str
    kind: str
    facts: tuple[tuple[str, str], ...]  # (what, value) in the order of reading
    notes: tuple[str, ...] = ()  # what a user should know before trusting the result
    otherwise: str = ""  # options that change the reading

    def lines(self) -> list[tuple[str, str]]:
        """Facts, notes and options as pairs to print."""
        rows = [("kind", self.kind), *self.facts, *(("note", note) for note in self.notes)]
        return [*rows, ("to change", self.otherwise)] if self.otherwise else rows

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        facts = {what.replace(" ", "_"): value for what, value in self.facts}
        return {"name": self.name, "kind": self.kind, **facts, "notes": list(self.notes)}


def list_names(names: Sequence[str]) -> str:
    """Names separated by commas, the first few of many."""
    shown = ", ".join(names[:MOST_SHOWN])
    return shown if len(names) <= MOST_SHOWN else f"{shown} and {len(names) - MOST_SHOWN} more"


def list_options(*names: str) -> str:
    """Options that change how data are read, as the user spells them."""
    return ", ".join(map(option, names))


def count_labels(labels: Sequence[str]) -> str:
    """The classes with their counts, the commonest first."""
    counts = Counter(labels).most_common()
    shown = ", ".join(f"{name} {count:,}" for name, count in counts[:MOST_SHOWN])
    rest = len(counts) - MOST_SHOWN
    return f"{len(counts)}: {shown}" + (f" and {rest} more" if rest > 0 else "")


def category_facts(categories: Mapping[str, Sequence[str]]) -> list[tuple[str, str]]:
    """The columns of categories, and what they become."""
    if not categories:
        return []
    shown = "; ".join(f"{name}: {list_names(known)}" for name, known in categories.items())
    return [("categories", f"{shown} (each an input of 0 and 1)")]


def imbalance_note(labels: Sequence[str]) -> tuple[str, ...]:
    """A note if the commonest class is at least five times as frequent as the rarest."""
    counts = Counter(labels).most_common()
    (commonest, most), (rarest, fewest) = counts[0], counts[-1]
    if most < 5 * fewest:
        return ()
    return (
        f"the classes are imbalanced: {commonest} has {most:,} examples, {rarest} {fewest:,}; look "
        "at the recall of each class (`threefold evaluate`), or weigh them: "
        f"{setting('training.class_weights', 'balanced')}",
    )


def rare_note(labels: Sequence[str]) -> tuple[str, ...]:
    """A note if classes have too few examples to be tested."""
    rare = [name for name, count in Counter(labels).items() if count < FEWEST_OF_A_CLASS]
    if not rare:
        return ()
    return (
        f"{len(rare):,} classes have fewer than {FEWEST_OF_A_CLASS} examples, which are all for "
        f"training, so they are not tested: {list_names(rare)}",
    )


def absurd_notes(counts: Mapping[str, int]) -> list[str]:
    """A note for each column with numbers that are too far from the others to be believed."""
    return [
        f"{name}: {count:,} number{'s' * (count > 1)} more than 10,000 deviations from the others, "
        f"read as missing; correct {'them' if count > 1 else 'it'} in the data"
        for name, count in counts.items()
    ]


def duplicates_note(train: Sequence[Any], test: Sequence[Any]) -> tuple[str, ...]:
    """A note if examples of the test split are also in the training split."""
    seen = {_key(example) for example in train}
    count = sum(_key(example) in seen for example in test)
    if not count:
        return ()
    return (
        f"{count:,} of {len(test):,} test examples are also in the training split; scores are "
        "optimistic: remove the duplicates",
    )


def _key(example: Any) -> Any:
    return example.tobytes() if hasattr(example, "tobytes") else str(example)
