"""A user's arrays: (inputs, targets), as scikit-learn takes them.

inputs    [n, length], [n, length, features], a list of arrays [length(, features)] of any
          lengths, or a list of texts
targets   n labels (texts or whole numbers): classifier; n numbers or [n, outputs]: regressor;
          a list of lists, one label per element: tagger
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from threefold.data.preprocessing import Chain
from threefold.data.preprocessing.text import Tokenize
from threefold.errors import ThreefoldError
from threefold.tasks.language_modelling import learn_tokenizer
from threefold.tasks.task import Task
from threefold.tasks.user_data.examples import ExampleData, RawExamples, examples_task
from threefold.tasks.user_data.settings import Reading
from threefold.tasks.user_data.table import MOST_TEXT_TOKENS, fit_numbers


def is_arrays(source: Any) -> bool:
    """Whether data are a pair of inputs and targets."""
    return isinstance(source, tuple) and len(source) == 2


def arrays_task(source: tuple[Any, Any], reading: Reading) -> Task[Any]:
    """The task of (inputs, targets)."""
    inputs, form = read_inputs(source[0])
    targets, kind = _read_targets(source[1], reading)
    if len(inputs) != len(targets):
        raise ThreefoldError(
            f"{len(inputs)} inputs and {len(targets)} targets; expected as many of each"
        )
    places = [f"example {number}" for number in range(1, len(inputs) + 1)]
    raw = RawExamples(inputs, targets, places)

    def fit(train: Sequence[Any]) -> Chain:
        settings = reading.settings
        if form == "text":
            tokenizer = learn_tokenizer(
                settings.tokenizer or "byte", train, settings.vocabulary or 4096
            )
            return Chain((Tokenize.by(tokenizer, settings.length or MOST_TEXT_TOKENS),))
        columns = [f"feature {number}" for number in range(1, train[0].shape[1] + 1)]
        return fit_numbers(train, columns, settings)

    facts = (("inputs", f"{len(inputs):,} {'texts' if form == 'text' else 'sequences'}"),)
    return examples_task(ExampleData("arrays", kind, form, raw, fit, facts=facts), reading)


def read_inputs(inputs: Any) -> tuple[list[Any], str]:
    """Inputs as texts, or as arrays [length, features], and which of both they are."""
    if len(inputs) == 0:
        raise ThreefoldError("no inputs; expected at least one sequence or text")
    if all(isinstance(row, str) for row in inputs):
        return list(inputs), "text"
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
    return rows, "series"


def _read_targets(targets: Any, reading: Reading) -> tuple[list[Any], str]:
    """Targets, and the kind of model that predicts them."""
    kind = reading.settings.kind or (reading.preprocessing and reading.preprocessing.kind)
    if kind == "tagger" or (len(targets) and isinstance(targets[0], (list, tuple))):
        return [[str(tag) for tag in row] for row in targets], "tagger"
    values = np.asarray(targets)
    if kind is None:
        kind = "regressor" if values.dtype.kind == "f" else "classifier"
    if kind == "regressor":
        return list(np.asarray(values, np.float64)), kind
    if values.dtype.kind == "f" and (values == values.round()).all():
        values = values.astype(np.int64)
    return [str(label) for label in values.tolist()], "classifier"
