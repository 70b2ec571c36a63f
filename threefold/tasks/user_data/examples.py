"""Examples of a user, each with a label, a number, or a tag per element: one task for all of them.

Examples are shuffled and split into 80, 10 and 10 per cent, of every class if there are classes;
validation and test examples of the user's own are used as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from threefold.data.loaders import IGNORE, Batch
from threefold.data.preprocessing import Chain, Preprocessing, Roles
from threefold.data.preprocessing.numbers import ABSURD, Standardise
from threefold.data.preprocessing.text import (
    Labels,
    Tokenize,
    TokenNumbers,
    WordNumbers,
    WordPieces,
)
from threefold.errors import ThreefoldError, setting
from threefold.tasks.baselines import majority_score
from threefold.tasks.stored import Array, StoredExamples, pick_rows
from threefold.tasks.table import IMAGE_KINDS, SPLITS
from threefold.tasks.task import Numbers, Task, declare_user_task, make_batch
from threefold.tasks.user_data.description import (
    DataDescription,
    absurd_notes,
    count_labels,
    duplicates_note,
    imbalance_note,
    rare_note,
)
from threefold.tasks.user_data.settings import Reading
from threefold.tasks.user_data.splits import shuffled_split, stratified_split
from threefold.tasks.user_data.starting import kept_inputs, kept_outputs

FEWEST_EXAMPLES = 10
FEWEST_PATCHES, MOST_PATCHES = 16, 1024  # of a picture
MOST_PATCH = 16  # pixels on each side
LABELLED = ("classifier", "hierarchical")  # kinds with one label per example
CLASSIFYING = (*LABELLED, *IMAGE_KINDS)  # kinds that predict one class of an example


@dataclass(frozen=True)
class RawExamples:
    """Inputs as the user has them, what is to be predicted, and where each example stands."""

    inputs: Sequence[Any]
    targets: Sequence[Any]  # labels, numbers, or lists of tags
    places: Sequence[str]  # e.g. reviews.csv:17
    weights: Array | None = None  # how much each example counts in training

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
    unlabelled: RawExamples | None = None  # without targets, to pretrain on
    given: Mapping[str, RawExamples] = field(default_factory=dict)  # valid and test of their own
    roles: Roles = field(default_factory=Roles)
    context: int | None = None  # rows of one example, if a table was cut into examples
    day_first: bool | None = None  # in dates such as 01/02/2024
    facts: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()
    otherwise: str = ""


def examples_task(data: ExampleData, reading: Reading) -> Task[Batch]:
    """Encode the examples, with steps fitted to the training split or those of a model."""
    splits = _split(data, reading)
    preprocessing = reading.preprocessing or _fit(data, splits["train"], reading)
    splits, skipped = _known_labels(data, splits, preprocessing, reading)
    whole = {} if reading.split else dict.fromkeys(SPLITS, _encode(splits["test"], preprocessing))
    encoded = whole or {name: _encode(raw, preprocessing) for name, raw in splits.items()}
    first = encoded["train"].inputs[0]

    def draw(split: str, numbers: Numbers) -> Batch:
        examples = encoded[split]
        inputs, lengths = pick_rows(examples.inputs, numbers)
        targets, _ = pick_rows(examples.targets, numbers, IGNORE)
        weights = splits[split].weights
        return make_batch(inputs, targets, lengths, None if weights is None else weights[numbers])

    tokens = first.ndim == 1
    shape = _picture_fields(data, first) if data.kind in IMAGE_KINDS else {}
    chance, chance_name = _chance(data.kind, encoded, preprocessing)
    fields: dict[str, Any] = {
        "domain": "text" if tokens else "series",
        "length": max(len(row) for row in encoded["train"].inputs),
        "features": 0 if tokens else first.shape[1],
        **shape,
    }
    return declare_user_task(
        data.name,
        draw,
        kind=data.kind,
        sizes=tuple(len(encoded[split]) for split in SPLITS),
        metric="absolute_error" if data.kind == "regressor" else "accuracy",
        chance=chance,
        chance_name=chance_name,
        vocabulary=_vocabulary(preprocessing) if tokens else 0,
        classes=len(preprocessing.labels),
        labels=preprocessing.labels,
        error_scale=_error_scale(preprocessing),
        preprocessing=lambda: preprocessing,
        description=_describe(data, splits, reading, preprocessing),
        raw=lambda split, n: (splits[split].places[n], splits[split].inputs[n]),
        pretraining=_pretraining(data, encoded["train"], preprocessing),
        skipped=skipped,
        **fields,
    )


def _picture_fields(data: ExampleData, picture: Array) -> dict[str, Any]:
    """The size of a task of pictures [channels, height, width], and of the patches of its model."""
    channels, height, width = picture.shape
    shape = {"domain": "vision", "features": channels}
    if data.kind != "vision":
        # As published for large images; enough patches for two windows a side in small ones.
        patches = [n for n in (1, 2, 4) if min(height, width) >= 8 * n]
        options = {"patch": max(patches, default=1)} if data.kind == "swin" else {}
        return {**shape, "length": height * width, "model_options": options}
    divisors = [n for n in range(1, MOST_PATCH + 1) if height % n == width % n == 0]
    enough = [n for n in divisors if height * width >= FEWEST_PATCHES * n * n]
    patch = max(enough, default=1)
    if height * width > MOST_PATCHES * patch * patch:
        sides = [max(MOST_PATCH, round(side / MOST_PATCH) * MOST_PATCH) for side in (width, height)]
        raise ThreefoldError(
            f"{data.name}: images of {width} × {height} pixels cannot be cut into at most "
            f"{MOST_PATCHES:,} equal squares; scale them: "
            f"{setting('data.image_size', f'{sides[0]}x{sides[1]}')}"
        )
    return {
        **shape,
        "length": height * width // patch**2,
        "model_options": {"patch": patch},
    }


def _split(data: ExampleData, reading: Reading) -> dict[str, RawExamples]:
    """80, 10 and 10 per cent of the examples, and those that are given."""
    if not reading.split:
        return dict.fromkeys(SPLITS, data.examples)
    count = len(data.examples)
    classes = len(set(map(str, data.examples.targets))) if data.kind in CLASSIFYING else 2
    if classes < 2 or (count < FEWEST_EXAMPLES and len(data.given) < 2):
        shown = f" of {classes} classes" if data.kind in CLASSIFYING else ""
        raise ThreefoldError(
            f"{data.name}: {count} examples{shown}; expected at least 2 classes, and "
            f"{FEWEST_EXAMPLES} examples or more for training, validation and test"
        )
    numbers = _class_split(data) or shuffled_split(count, data.given)
    return {s: _pick(data.examples, part) for s, part in numbers.items()} | dict(data.given)


def _class_split(data: ExampleData) -> dict[str, Numbers] | None:
    """The split of every class; None if there are no classes, or too small ones."""
    if data.kind not in CLASSIFYING:
        return None
    return stratified_split(list(map(str, data.examples.targets)), data.given)


def _pick(raw: RawExamples, numbers: Array) -> RawExamples:
    return RawExamples(
        [raw.inputs[n] for n in numbers],
        [raw.targets[n] for n in numbers],
        [raw.places[n] for n in numbers],
        None if raw.weights is None else raw.weights[numbers],
    )


def _fit(data: ExampleData, train: RawExamples, reading: Reading) -> Preprocessing:
    """Steps fitted to the training split, or those of a model to start from where they fit."""
    settings, start = reading.settings, reading.start
    if start is None:
        more = () if data.unlabelled is None else data.unlabelled.inputs
        inputs = data.fit_inputs([*train.inputs, *more])
    else:
        inputs = kept_inputs(start, data.name, data.kind, data.form, data.roles, settings)
    return Preprocessing(
        data.kind,
        data.form,
        inputs,
        _fit_outputs(data, train, start),
        data.roles,
        context=data.context,
        day_first=data.day_first,
        header=settings.header,
        decimal=settings.decimal,
    )


def _pretraining(
    data: ExampleData, train: StoredExamples, preprocessing: Preprocessing
) -> list[Array]:
    """The inputs of the training split, and those without a target; none without the latter."""
    if data.unlabelled is None:
        return []
    pairs = zip(data.unlabelled.inputs, data.unlabelled.places, strict=True)
    return [*train.inputs, *(apply_chain(preprocessing.inputs, x, place) for x, place in pairs)]


def _fit_outputs(data: ExampleData, train: RawExamples, start: Preprocessing | None) -> Chain:
    """Labels of all examples, or the scale of the numbers of the training split."""
    parts = (data.examples, *data.given.values())
    every = [target for part in parts for target in part.targets]
    roles, numeric = data.roles, data.kind == "regressor"
    named = (roles.label,) if roles.label and numeric else roles.targets
    if start is not None and (kept := kept_outputs(start, data.kind, every, named)) is not None:
        return kept
    if data.kind == "tagger":
        return Chain((Labels.fit(tag for tags in every for tag in tags),))
    if not numeric:
        return Chain((Labels.fit(every),))
    numbers = np.array(train.targets, np.float64).reshape(len(train), -1)
    scale = Standardise.fit([numbers], named or output_names(numbers.shape[1]))
    refuse_absurd_targets(scale, data.examples)
    return Chain((scale,))


def refuse_absurd_targets(scale: Standardise, examples: RawExamples) -> None:
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
        apply_chain(preprocessing.inputs, x, place)
        for x, place in zip(raw.inputs, raw.places, strict=True)
    ]
    if preprocessing.kind == "tagger":
        pairs = zip(raw.targets, raw.places, inputs, strict=True)
        tags = [
            apply_chain(preprocessing.outputs, t, place + column)[: len(x)] for t, place, x in pairs
        ]
        if (pieces := preprocessing.inputs.find(WordPieces)) is not None:
            tags = [pieces.spread(*pair, IGNORE) for pair in zip(raw.inputs, tags, strict=True)]
        return StoredExamples(inputs, tags)
    if preprocessing.kind == "regressor":
        numbers = np.array(raw.targets, np.float64).reshape(len(raw), -1)
        scaled = preprocessing.outputs.apply(numbers)
        return StoredExamples(inputs, scaled[:, 0] if scaled.shape[1] == 1 else scaled)
    targets = [
        apply_chain(preprocessing.outputs, [label], place + column)[0]
        for label, place in zip(raw.targets, raw.places, strict=True)
    ]
    return StoredExamples(inputs, np.array(targets, np.int64))


def apply_chain(chain: Chain, value: Any, place: str) -> Any:
    """What a chain makes of a value; errors begin with its place."""
    try:
        return chain.apply(value)
    except ThreefoldError as error:
        message = str(error).removeprefix("example 1: ")
        raise (
            type(error)(f"{place}: {message}")
            if type(error) is ThreefoldError
            else ThreefoldError(f"{place}: {message}")
        ) from error


def _chance(
    kind: str, encoded: dict[str, StoredExamples], preprocessing: Preprocessing
) -> tuple[float, str]:
    """The score on the test split of an answer learnt without the inputs, and its name."""
    targets = encoded["test"].targets
    if kind == "regressor":  # the mean is 0 after scaling
        errors = np.abs(np.asarray(targets)).reshape(len(targets), -1)
        return float((errors * _error_scale(preprocessing)).mean()), "the mean of training"
    train, test = (
        np.concatenate([np.ravel(part) for part in encoded[split].targets])
        for split in ("train", "test")
    )
    return majority_score(train, test), "the commonest answer of training"


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
    if data.kind in CLASSIFYING:
        facts.append(("classes", count_labels(data.examples.targets)))
        fitted = reading.preprocessing is None  # else it is too late to weigh classes
        notes += imbalance_note(data.examples.targets) if fitted else ()
        notes += rare_note(data.examples.targets) if reading.split else ()
    elif data.kind == "tagger":
        facts.append(
            ("tags", count_labels([tag for tags in data.examples.targets for tag in tags]))
        )
    else:
        numbers = np.array(data.examples.targets, np.float64)
        facts.append(("values", f"from {numbers.min():.4g} to {numbers.max():.4g}"))
    if data.unlabelled is not None:
        facts.append(("unlabelled", f"{len(data.unlabelled):,} examples, to pretrain on"))
    if reading.split:
        sizes = " / ".join(f"{len(splits[split]):,}" for split in SPLITS)
        own = " and ".join(split for split in SPLITS if split in data.given)
        how = "shuffled" if _class_split(data) is None else "stratified by class, shuffled"
        how = f"{how}; {own} of its own" if own else how
        facts.append(("split", f"{sizes} examples (train / validation / test), {how}"))
        notes += duplicates_note(splits["train"].inputs, splits["test"].inputs)
    return DataDescription(data.name, data.kind, tuple(facts), tuple(notes), data.otherwise)
