"""A user's arrays: (inputs, targets), as scikit-learn takes them.

inputs    [n, length], [n, length, features], a list of arrays [length(, features)] of any
          lengths, or a list of texts
targets   n labels (texts or whole numbers): classifier; n numbers or [n, outputs]: regressor;
          a list of lists, one label per element: tagger
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from threefold.data.preprocessing import Chain
from threefold.data.preprocessing.text import TokenNumbers
from threefold.errors import ThreefoldError
from threefold.tasks.stored import Array
from threefold.tasks.task import Task
from threefold.tasks.user_data.examples import (
    LABELLED,
    ExampleData,
    RawExamples,
    examples_task,
)
from threefold.tasks.user_data.numbers import fit_numbers
from threefold.tasks.user_data.settings import Reading, ReadSettings
from threefold.tasks.user_data.text_inputs import fit_texts

ARRAY_KINDS = (*LABELLED, "regressor", "tagger")


def is_arrays(source: Any) -> bool:
    """Whether data are a pair of inputs and targets."""
    return isinstance(source, tuple) and len(source) == 2


def arrays_task(source: tuple[Any, Any], reading: Reading) -> Task[Any]:
    """The task of (inputs, targets)."""
    inputs, form = read_inputs(source[0])
    targets, kind = _read_targets(source[1], reading)
    raw = _raw_examples(inputs, targets)
    data = ExampleData("arrays", kind, form, raw, fit_inputs(form, reading), facts=_facts(raw))
    return examples_task(replace(data, notes=_missing_notes(raw)), reading)


def task_from_arrays(
    x: Any,
    y: Any,
    *,
    name: str,
    kind: str | None,
    splits: Mapping[str, tuple[Any, Any]],
    labels: Sequence[str],
    vocabulary: int,
) -> Task[Any]:
    """A task of sequences, each with a class, a number or a class per element."""
    reading = Reading(ReadSettings(kind=kind))
    parts = {}
    for split, (inputs, targets) in {"train": (x, y), **splits}.items():
        rows, form = (_read_tokens(inputs), "tokens") if vocabulary else read_inputs(inputs)
        answers, found = _read_targets(_named(targets, labels), reading)
        reading = Reading(ReadSettings(kind=found))  # the other splits are of the same kind
        parts[split] = _raw_examples(rows, answers, "" if split == "train" else f"{split}, ")
    fit = fit_inputs(form, reading, vocabulary)
    train = parts.pop("train")
    data = ExampleData(name, found, form, train, fit, given=parts, facts=_facts(train))
    return examples_task(replace(data, notes=_missing_notes(train)), reading)


def fit_inputs(
    form: str, reading: Reading, vocabulary: int = 0
) -> Callable[[Sequence[Any]], Chain]:
    """How the steps of texts, tokens or numbers are fitted to the training split."""
    settings = reading.settings

    def fit(train: Sequence[Any]) -> Chain:
        if form == "tokens":
            return Chain((TokenNumbers(vocabulary),))
        if form == "text":
            return fit_texts(reading.kind or "classifier", train, settings)
        columns = [f"feature {number}" for number in range(1, train[0].shape[1] + 1)]
        return fit_numbers(train, columns, settings)

    return fit


def _raw_examples(inputs: list[Any], targets: list[Any], where: str = "") -> RawExamples:
    if len(inputs) != len(targets):
        raise ThreefoldError(
            f"{where}{len(inputs)} inputs and {len(targets)} targets; expected as many of each"
        )
    places = [f"{where}example {number}" for number in range(1, len(inputs) + 1)]
    return RawExamples(inputs, targets, places)


def _facts(raw: RawExamples) -> tuple[tuple[str, str], ...]:
    what = "texts" if isinstance(raw.inputs[0], str) else "sequences"
    return (("inputs", f"{len(raw):,} {what}"),)


def _missing_notes(raw: RawExamples) -> tuple[str, ...]:
    """What to know about numbers that are NaN, which are filled."""
    counts = [0 if isinstance(x, str) else int(np.isnan(x).sum()) for x in raw.inputs]
    if not any(counts):
        return ()
    first = next(place for place, count in zip(raw.places, counts, strict=True) if count)
    total = sum(np.size(x) for x in raw.inputs)
    return (
        f"{sum(counts):,} of {total:,} numbers of the inputs are NaN (first: {first}); each is "
        "replaced by the value before it, and one more feature marks where",
    )


def _read_tokens(inputs: Any) -> list[Any]:
    if len(inputs) == 0:
        raise ThreefoldError("no inputs; expected at least one sequence of tokens")
    return [np.asarray(row) for row in inputs]


def _named(targets: Any, labels: Sequence[str]) -> Any:
    """Classes by their names, where names are given."""
    if not labels:
        return targets
    try:
        names = dict(enumerate(labels))
        return [
            names[row] if np.ndim(row) == 0 else [names[tag] for tag in row]
            for row in (np.asarray(row).tolist() for row in targets)
        ]
    except (LookupError, TypeError, ValueError) as error:
        raise ThreefoldError(
            f"labels has {len(labels)} names, {', '.join(map(repr, labels[:8]))}, but the targets "
            f"are not all whole numbers from 0 to {len(labels) - 1}; name every class"
        ) from error


def read_inputs(inputs: Any) -> tuple[list[Any], str]:
    """Inputs as texts, or as arrays [length, features], and which of both they are."""
    if len(inputs) == 0:
        raise ThreefoldError("no inputs; expected at least one sequence or text")
    if all(isinstance(row, str) for row in inputs):
        return list(inputs), "text"
    refuse_complex("inputs", inputs)
    try:
        rows = [np.asarray(row, np.float64) for row in inputs]
    except (TypeError, ValueError) as error:
        raise ThreefoldError(
            f"the inputs cannot be read as numbers ({error}); expected texts, or arrays [length] "
            "or [length, features]"
        ) from error
    rows = [row[:, None] if row.ndim == 1 else row for row in rows]
    widths = {row.shape[1:] for row in rows}
    if rows[0].ndim != 2 or len(widths) != 1 or min(map(len, rows)) < 1:
        shapes = sorted({row.shape for row in rows})[:3]
        raise ThreefoldError(
            f"the inputs have shapes {', '.join(map(str, shapes))}; expected [length] or "
            "[length, features] each, at least one element, the same number of features"
        )
    _refuse_unknown("inputs", rows)
    return rows, "series"


def refuse_complex(what: str, values: Any) -> None:
    """Refuse complex numbers, of which numpy would drop the imaginary parts."""
    if any(np.iscomplexobj(row) for row in values):
        raise ThreefoldError(
            f"the {what} are complex numbers; expected real ones, e.g. the real and imaginary "
            "parts as two columns"
        )


def _refuse_unknown(what: str, rows: Sequence[Array]) -> None:
    if not any(np.isfinite(row).any() for row in rows):
        raise ThreefoldError(f"the {what} are all NaN or infinite; expected finite numbers")


def _read_targets(targets: Any, reading: Reading) -> tuple[list[Any], str]:
    """Targets, and the kind of model that predicts them."""
    kind = reading.kind
    if kind is not None and kind not in ARRAY_KINDS:
        raise ThreefoldError(
            f"kind is {kind!r}, but arrays of inputs and targets are for "
            f"{', '.join(ARRAY_KINDS[:-1])} and {ARRAY_KINDS[-1]} models"
        )
    nested = len(targets) and isinstance(targets[0], (list, tuple))
    if kind == "tagger" or (kind is None and nested):
        return _read_tags(targets), "tagger"
    values = np.asarray(targets)
    if kind is None:
        kind = "regressor" if values.dtype.kind == "f" else "classifier"
    refuse_complex("targets", values)
    if kind == "regressor":
        numbers = np.asarray(values, np.float64)
        for number, row in enumerate(numbers, 1):
            refuse_missing_target(row, f"example {number}")
        return list(numbers), kind
    if values.dtype.kind == "f" and (values == values.round()).all():
        values = values.astype(np.int64)
    return [str(label) for label in values.tolist()], kind


def _read_tags(targets: Any) -> list[list[str]]:
    for number, row in enumerate(targets, 1):
        if isinstance(row, str) or np.ndim(row) != 1:
            raise ThreefoldError(
                f"example {number}: the target is {row!r}; a tagger needs a list of labels, one "
                "for each element (one label for a whole sequence: a classifier)"
            )
    return [[str(tag) for tag in row] for row in targets]


def refuse_missing_target(target: Array, place: str) -> None:
    """Refuse a number to learn that is NaN or infinite."""
    if not np.isfinite(target).all():
        raise ThreefoldError(
            f"{place}: the target is {np.asarray(target).tolist()}; expected finite numbers; leave "
            "out examples whose target is unknown"
        )
