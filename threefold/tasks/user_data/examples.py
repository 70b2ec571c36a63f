"""Examples of a user, each with a label, a number, or a tag per element: one task for all of them.

Examples are shuffled in an order that is always the same and split into 80, 10 and 10 per cent;
validation and test examples of the user's own are used as they are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from threefold.data.loaders import IGNORE, Batch
from threefold.data.preprocessing import Chain, Preprocessing, Roles
from threefold.data.preprocessing.numbers import ABSURD, Standardise
from threefold.data.preprocessing.text import Labels, Tokenize, TokenNumbers, WordNumbers
from threefold.data.random_by_address import permutation
from threefold.errors import ThreefoldError
from threefold.tasks.stored import Array, StoredExamples, pick_rows
from threefold.tasks.table import SPLITS
from threefold.tasks.task import Numbers, Task, declare_user_task, make_batch
from threefold.tasks.user_data.description import (
    DataDescription,
    absurd_notes,
    count_labels,
    duplicates_note,
    imbalance_note,
)
from threefold.tasks.user_data.settings import Reading, ReadSettings

FEWEST_EXAMPLES = 10
LABELLED = ("classifier", "hierarchical")  # kinds with one label per example


@dataclass(frozen=True)
class RawExamples:
    """Inputs as the user has them, what is to be predicted, and where each example stands."""

    inputs: Sequence[Any]
    targets: Sequence[Any]  # labels, numbers, or lists of tags
    places: Sequence[str]  # e.g. reviews.csv:17

    def __len__(self) -> int:
        return len(self.inputs)


@dataclass(frozen=True)
class ExampleData:
    """A set of examples and how to read them."""

    name: str
    kind: str  # classifier, hierarchical, regressor or tagger
    form: str
    examples: RawExamples
    fit_inputs: Callable[[Sequence[Any]], Chain]  # from the inputs of the training split
    given: Mapping[str, RawExamples] = field(default_factory=dict)  # valid and test of their own
    roles: Roles = field(default_factory=Roles)
    context: int | None = None  # rows of one example, if a table was cut into examples
    facts: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()
    otherwise: str = ""


def examples_task(data: ExampleData, reading: Reading) -> Task[Batch]:
    """Encode the examples, with steps fitted to the training split or those of a model."""
    splits = _split(data, reading)
    preprocessing = reading.preprocessing or _fit(data, splits["train"], reading.settings)
    splits, skipped = _known_labels(data, splits, preprocessing, reading)
    if reading.split:
        encoded = {name: _encode(raw, preprocessing) for name, raw in splits.items()}
    else:
        encoded = dict.fromkeys(SPLITS, _encode(splits["test"], preprocessing))
    first = encoded["train"].inputs[0]

    def draw(split: str, numbers: Numbers) -> Batch:
        examples = encoded[split]
        inputs, lengths = pick_rows(examples.inputs, numbers)
        targets, _ = pick_rows(examples.targets, numbers, IGNORE)
        return make_batch(inputs, targets, lengths)

    tokens = first.ndim == 1
    return declare_user_task(
        data.name,
        draw,
        kind=data.kind,
        domain="text" if tokens else "series",
        length=max(len(row) for row in encoded["train"].inputs),
        sizes=tuple(len(encoded[split]) for split in SPLITS),
        metric="absolute_error" if data.kind == "regressor" else "accuracy",
        chance=_chance(data.kind, encoded, preprocessing),
        vocabulary=_vocabulary(preprocessing) if tokens else 0,
        features=0 if tokens else first.shape[1],
        classes=len(preprocessing.labels),
        labels=preprocessing.labels,
        error_scale=_error_scale(preprocessing),
        preprocessing=lambda: preprocessing,
        description=_describe(data, splits, reading, preprocessing),
        raw=lambda split, n: (splits[split].places[n], splits[split].inputs[n]),
        skipped=skipped,
    )


def _split(data: ExampleData, reading: Reading) -> dict[str, RawExamples]:
    """80, 10 and 10 per cent of the shuffled examples, and those that are given."""
    if not reading.split:
        return dict.fromkeys(SPLITS, data.examples)
    count = len(data.examples)
    labelled = data.kind in LABELLED
    classes = len(set(map(str, data.examples.targets))) if labelled else 2
    cuts = split_cuts(count, data.given)
    if classes < 2 or (count < FEWEST_EXAMPLES and len(data.given) < 2):
        shown = f" of {classes} classes" if labelled else ""
        raise ThreefoldError(
            f"{data.name}: {count} examples{shown}; expected at least 2 classes, and "
            f"{FEWEST_EXAMPLES} examples or more for training, validation and test"
        )
    order = permutation((0, count), count)
    parts = zip(SPLITS, cuts, cuts[1:], strict=False)
    return {split: _pick(data.examples, order[a:b]) for split, a, b in parts} | dict(data.given)


def split_cuts(count: int, given: Collection[str]) -> list[int]:
    """Where `count` examples are cut into train, valid and test, of which some are given."""
    valid = (90 if "test" in given else 80) + (10 if "valid" in given else 0)
    test = 100 if "test" in given else 90
    return [0, *(count * part // 100 for part in (valid, test, 100))]


def _pick(raw: RawExamples, numbers: Array) -> RawExamples:
    return RawExamples(
        [raw.inputs[n] for n in numbers],
        [raw.targets[n] for n in numbers],
        [raw.places[n] for n in numbers],
    )


def _fit(data: ExampleData, train: RawExamples, settings: ReadSettings) -> Preprocessing:
    """Steps fitted to the training split; the labels are those of all examples."""
    parts = (data.examples, *data.given.values())
    every = [target for part in parts for target in part.targets]
    if data.kind == "regressor":
        numbers = np.array(train.targets, np.float64).reshape(len(train), -1)
        roles, count = data.roles, numbers.shape[1]
        names = [roles.label] if roles.label and count == 1 else roles.targets
        names = names or output_names(count)
        scale = Standardise.fit([numbers], names)
        _refuse_absurd_targets(scale, data.examples)
        output = Chain((scale,))
    elif data.kind == "tagger":
        output = Chain((Labels.fit(tag for tags in every for tag in tags),))
    else:
        output = Chain((Labels.fit(every),))
    inputs = data.fit_inputs(train.inputs)
    return Preprocessing(
        data.kind,
        data.form,
        inputs,
        output,
        data.roles,
        context=data.context,
        day_first=settings.day_first,
        header=settings.header,
        decimal=settings.decimal,
    )


def _refuse_absurd_targets(scale: Standardise, examples: RawExamples) -> None:
    """Refuse a number that no regressor can learn: beside it, all others are the same."""
    numbers = np.array(examples.targets, np.float64).reshape(len(examples), -1)
    absurd = np.argwhere(np.abs(scale.apply(numbers)) > ABSURD)
    if len(absurd):
        row, column = absurd[0].tolist()
        raise ThreefoldError(
            f"{examples.places[row]}: {scale.columns[column]} is {numbers[row, column]:g}, more "
            "than 10,000 deviations from the others; correct it, or leave the example out"
        )


def _known_labels(
    data: ExampleData,
    splits: dict[str, RawExamples],
    preprocessing: Preprocessing,
    reading: Reading,
) -> tuple[dict[str, RawExamples], tuple[str, ...]]:
    """The examples whose labels the model knows, and where the others are; if that was asked."""
    names = set(preprocessing.labels)
    if not reading.skip_unknown or not names:
        return splits, ()
    known, skipped = {}, {}
    for split, raw in splits.items():
        fits = np.array([_label_set(target) <= names for target in raw.targets], bool)
        known[split] = _pick(raw, np.flatnonzero(fits))
        skipped.update(dict.fromkeys(raw.places[n] for n in np.flatnonzero(~fits).tolist()))
        if not fits.any():
            raise ThreefoldError(
                f"{data.name}: no example has a label that the model knows; "
                f"{preprocessing.outputs.find(Labels).known(str(raw.targets[0]))}"
            )
    return known, tuple(skipped)


def _label_set(target: Any) -> set[str]:
    return set(target) if isinstance(target, (list, tuple)) else {target}


def output_names(count: int) -> list[str]:
    """Names of the numbers of a regressor whose data have none."""
    return ["value"] if count == 1 else [f"value_{i + 1}" for i in range(count)]


def _encode(raw: RawExamples, preprocessing: Preprocessing) -> StoredExamples:
    column = "" if preprocessing.roles.label is None else f", column {preprocessing.roles.label!r}"
    inputs = [
        _apply(preprocessing.inputs, x, place)
        for x, place in zip(raw.inputs, raw.places, strict=True)
    ]
    if preprocessing.kind == "tagger":
        pairs = zip(raw.targets, raw.places, inputs, strict=True)
        tags = [_apply(preprocessing.outputs, t, place + column)[: len(x)] for t, place, x in pairs]
        return StoredExamples(inputs, tags)
    if preprocessing.kind == "regressor":
        numbers = np.array(raw.targets, np.float64).reshape(len(raw), -1)
        scaled = preprocessing.outputs.apply(numbers)
        return StoredExamples(inputs, scaled[:, 0] if scaled.shape[1] == 1 else scaled)
    targets = [
        _apply(preprocessing.outputs, [label], place + column)[0]
        for label, place in zip(raw.targets, raw.places, strict=True)
    ]
    return StoredExamples(inputs, np.array(targets, np.int64))


def _apply(chain: Chain, value: Any, place: str) -> Any:
    try:
        return chain.apply(value)
    except ThreefoldError as error:
        message = str(error).removeprefix("example 1: ")
        raise (
            type(error)(f"{place}: {message}")
            if type(error) is ThreefoldError
            else ThreefoldError(f"{place}: {message}")
        ) from error


def _chance(kind: str, encoded: dict[str, StoredExamples], preprocessing: Preprocessing) -> float:
    """The score of always answering the commonest class, or the mean of the training split."""
    targets = encoded["test"].targets
    if kind == "regressor":  # the mean is 0 after scaling
        errors = np.abs(np.asarray(targets)).reshape(len(targets), -1)
        return float((errors * _error_scale(preprocessing)).mean())
    flat = np.concatenate([np.ravel(part) for part in targets])
    return Counter(flat.tolist()).most_common(1)[0][1] / len(flat)


def _vocabulary(preprocessing: Preprocessing) -> int:
    steps = (preprocessing.inputs.find(kind) for kind in (Tokenize, WordNumbers, TokenNumbers))
    return int(next(step for step in steps if step is not None).vocabulary)


def _error_scale(preprocessing: Preprocessing) -> tuple[float, ...]:
    """The deviation of each number, by which errors become those in original units."""
    scale = preprocessing.outputs.find(Standardise)
    return () if scale is None else scale.deviation


def _describe(
    data: ExampleData,
    splits: dict[str, RawExamples],
    reading: Reading,
    preprocessing: Preprocessing,
) -> DataDescription:
    facts, notes = list(data.facts), list(data.notes)
    scale = preprocessing.inputs.find(Standardise)
    if scale is not None:
        notes += absurd_notes(scale.absurd_counts(data.examples.inputs))
    if data.kind in LABELLED:
        facts.append(("classes", count_labels(data.examples.targets)))
        notes += imbalance_note(data.examples.targets)
    elif data.kind == "tagger":
        facts.append(
            ("tags", count_labels([tag for tags in data.examples.targets for tag in tags]))
        )
    else:
        numbers = np.array(data.examples.targets, np.float64)
        facts.append(("values", f"from {numbers.min():.4g} to {numbers.max():.4g}"))
    if reading.split:
        sizes = " / ".join(f"{len(splits[split]):,}" for split in SPLITS)
        own = " and ".join(split for split in SPLITS if split in data.given)
        how = f"shuffled; {own} of its own" if own else "shuffled"
        facts.append(("split", f"{sizes} examples (train / validation / test), {how}"))
        notes += duplicates_note(splits["train"].inputs, splits["test"].inputs)
    return DataDescription(data.name, data.kind, tuple(facts), tuple(notes), data.otherwise)
