"""Sequences as scikit-learn users have them: 2-D and 3-D arrays, data frames, lists of arrays."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.exceptions import DTypePromotionError
from numpy.typing import NDArray
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import (
    _check_feature_names,
    check_array,
    column_or_1d,
    validate_data,
)
from torch import Tensor

from threefold.data.preprocessing.numbers import POLICIES
from threefold.errors import ThreefoldError, nearest

Array = NDArray[Any]


class SequenceBatch(NamedTuple):
    """Sequences [N, L, D], zero after their end, and their lengths if these differ."""

    values: Tensor
    lengths: Tensor | None

    def __len__(self) -> int:
        return len(self.values)

    def rows(self) -> list[Array]:
        """Each sequence as an array [L, D] of its own length."""
        values = self.values.numpy()
        if self.lengths is None:
            return list(values)
        return [row[:length] for row, length in zip(values, self.lengths.tolist(), strict=True)]


def read_sequences(
    estimator: Any, data: Any, *, reset: bool, missing: str = "refuse"
) -> SequenceBatch:
    """Check the sequences of an estimator; `reset` while it is fitted, when their form is noted.

    data: [N, L] (each row is a sequence), [N, L, D], a data frame with one sequence per row (of
    numbers, or a column of lists for each channel), or a list of arrays [L] or [L, D] whose lengths
    may differ.  An estimator that was fitted on such a list answers sequences of any length, in
    whatever form they come.  missing: NaN is an error if it is "refuse".
    """
    if missing not in POLICIES:
        raise ThreefoldError(f"missing is {missing!r}; {nearest(str(missing), POLICIES)}")
    finite: Any = True if missing == "refuse" else "allow-nan"
    if _has_lists(data):
        _check_feature_names(estimator, data, reset=reset)
        batch = _ragged(estimator, _cells(data), finite)
        if reset:
            estimator.n_features_in_ = len(getattr(data, "columns", (0,)))
    elif (rows := _sequences_of_any_length(estimator, data, reset)) is not None:
        batch = _ragged(estimator, rows, finite)
        if reset:
            estimator.n_features_in_ = batch.values.shape[1]
    else:
        array = _validated(estimator, data, reset, finite)
        if array.ndim > 3:
            raise ThreefoldError(
                f"X is {array.shape}, expected [sequences, length] or [sequences, length, channels]"
            )
        values = torch.from_numpy(np.ascontiguousarray(array))
        batch = SequenceBatch(values.unsqueeze(2) if values.dim() == 2 else values, None)
    channels = batch.values.shape[2]
    if reset:
        estimator.n_channels_in_ = channels
        estimator.any_length_ = batch.lengths is not None
    elif channels != estimator.n_channels_in_:
        raise ThreefoldError(
            f"X has {channels} channels, but {type(estimator).__name__} was fitted on "
            f"{estimator.n_channels_in_}"
        )
    return batch


def _validated(estimator: Any, data: Any, reset: bool, finite: Any) -> Array:
    """The array of a table or of three axes, checked by scikit-learn; errors say what to do."""
    checks = {"allow_nd": True, "dtype": np.float64, "ensure_all_finite": finite}
    try:
        array: Array = validate_data(estimator, data, reset=reset, **checks)
    except (ValueError, TypeError) as error:
        first = str(error).partition("\n")[0]
        _refuse_gaps(estimator, error)
        times = isinstance(error, DTypePromotionError)
        cause = "times" if times else first
        if (times or "could not convert" in first) and (texts := _columns_without_numbers(data)):
            raise ThreefoldError(
                f"X has columns that are not numbers: {', '.join(texts)} ({cause}); leave them out"
            ) from error
        raise
    return array


def _refuse_gaps(estimator: Any, error: Exception) -> None:
    """Say what to do about NaN, if that is what scikit-learn complains of."""
    first = str(error).partition("\n")[0]
    if "contains NaN" in first:
        name = type(estimator).__name__
        told = f"Fill the gaps: {name} reads finite numbers only"
        if hasattr(estimator, "missing"):
            told = (
                'Fill the gaps, or say missing="carry" (repeat the last value) or "mask" '
                f"({name} is told to refuse NaN)"
            )
        raise ThreefoldError(f"{first} {told}") from error


def _columns_without_numbers(data: Any) -> list[str]:
    """The names of the columns of a data frame that cannot be read as numbers."""
    return [str(name) for name in getattr(data, "columns", ()) if not _is_numbers(data[name])]


def _is_numbers(column: Any) -> bool:
    """Whether the cells are numbers; times are not, though numpy makes numbers of them."""
    cells = np.asarray(column)
    try:
        return cells.dtype.kind not in "mM" and bool(np.asarray(cells, np.float64).size)
    except (TypeError, ValueError):
        return False


def checked_labels(y: Any, count: int) -> Array:
    """Labels [N] of any type, one for each sequence."""
    if y is None:
        raise ThreefoldError("this classifier requires y to be passed, but the target y is None")
    labels: Array = column_or_1d(y, warn=True)
    missing = [n for n, label in enumerate(labels.tolist()) if label is None or label != label]
    if missing:
        others = f", as are {len(missing) - 1} more labels" if len(missing) > 1 else ""
        raise ThreefoldError(
            f"y[{missing[0]}] is missing (None or NaN){others}; leave these examples out"
        )
    check_classification_targets(labels)
    if len(labels) != count:
        raise ThreefoldError(f"{count} sequences and {len(labels)} labels; expected as many")
    return labels


def check_numbers(y: Any, count: int) -> Array:
    """Targets of a regressor: finite numbers [N] or [N, outputs], one row for each sequence."""
    if y is None:
        raise ThreefoldError("this regressor requires y to be passed, but the target y is None")
    try:
        targets: Array = np.asarray(y, np.float64)
    except (TypeError, ValueError) as error:
        raise ThreefoldError(f"y cannot be read as numbers ({error})") from error
    if targets.ndim == 2 and targets.shape[1] == 1:
        targets = column_or_1d(targets, warn=True)
    if targets.ndim not in (1, 2) or not np.isfinite(targets).all():
        raise ThreefoldError(
            f"y is {targets.shape}; expected finite numbers, no NaN or inf, [N] or [N, outputs]"
        )
    if len(targets) != count:
        raise ThreefoldError(f"{count} sequences and {len(targets)} targets; expected as many")
    return targets


def _has_lists(data: Any) -> bool:
    """Whether a data frame or a column of one has lists or arrays as cells."""
    if hasattr(data, "columns"):
        return bool(len(data) and len(data.columns)) and _is_list(data[data.columns[0]])
    return hasattr(data, "to_list") and _is_list(data)


def _is_list(column: Any) -> bool:
    try:
        first = next(iter(column))
    except (TypeError, StopIteration):
        return False
    return hasattr(first, "__len__") and not isinstance(first, (str, bytes))


def _cells(data: Any) -> list[Array]:
    """Rows [L, channels] of a frame whose cells are lists, or of one such column."""
    if not hasattr(data, "columns"):
        return [np.asarray(cell, np.float64) for cell in data]
    columns = [[np.asarray(cell, np.float64) for cell in data[name]] for name in data.columns]
    rows = []
    for number, cells in enumerate(zip(*columns, strict=True)):
        lengths = {len(cell) for cell in cells}
        if len(lengths) > 1:
            raise ThreefoldError(
                f"row {number} of X has lists of {sorted(lengths)} elements; expected the same in "
                "all columns, each of which is a channel of the sequence"
            )
        rows.append(np.stack(cells, 1))
    return rows


def _sequences_of_any_length(estimator: Any, data: Any, reset: bool) -> Any:
    """The sequences as a list if their lengths may differ, else None."""
    if isinstance(data, (list, tuple)) and len(data):
        if not all(hasattr(row, "__len__") and not isinstance(row, (str, bytes)) for row in data):
            return None
        shapes = {np.shape(row) for row in data}
        arrays = all(isinstance(row, (np.ndarray, Tensor)) for row in data)
        if arrays or len(shapes) > 1 or any(len(shape) == 2 for shape in shapes):
            return data
    if reset or not getattr(estimator, "any_length_", False):
        return None
    array = np.asarray(data)
    return list(array) if array.ndim in (2, 3) and len(array) else None


def _ragged(estimator: Any, data: Any, finite: Any = True) -> SequenceBatch:
    rows = []
    for number, row in enumerate(data):
        if not len(row):
            raise ThreefoldError(f"X[{number}] is empty; expected at least one element")
        try:
            checked = check_array(
                np.asarray(row),
                ensure_2d=False,
                dtype=np.float64,
                input_name=f"X[{number}]",
                ensure_all_finite=finite,
            )
        except ValueError as error:
            _refuse_gaps(estimator, error)
            raise
        rows.append(torch.tensor(checked.reshape(len(checked), -1)))
    channels = {row.shape[1] for row in rows}
    if len(channels) > 1:
        raise ThreefoldError(f"sequences with {sorted(channels)} channels; expected the same")
    lengths = torch.tensor([len(row) for row in rows])
    padded = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
    return SequenceBatch(padded, lengths)
