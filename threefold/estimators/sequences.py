"""Sequences as scikit-learn users have them: 2-D and 3-D arrays, data frames, lists of arrays."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.utils.validation import check_array, validate_data
from torch import Tensor

from threefold.errors import ThreefoldError


class SequenceBatch(NamedTuple):
    """Sequences [N, L, D], zero after their end, and their lengths if these differ."""

    values: Tensor
    lengths: Tensor | None

    def __len__(self) -> int:
        return len(self.values)


def read_sequences(estimator: Any, data: Any, *, reset: bool) -> SequenceBatch:
    """Check the sequences of an estimator; `reset` while it is fitted, when their form is noted.

    data: [N, L] (each row is a sequence), [N, L, D], a data frame with one sequence per row, or a
    list of arrays [L] or [L, D] whose lengths may differ.
    """
    if _is_ragged(data):
        batch = _ragged(data)
        if reset:
            estimator.n_features_in_ = batch.values.shape[1]
    else:
        array = validate_data(estimator, data, reset=reset, allow_nd=True, dtype=np.float64)
        if array.ndim > 3:
            raise ThreefoldError(
                f"X is {array.shape}, expected [sequences, length] or [sequences, length, channels]"
            )
        values = torch.from_numpy(np.ascontiguousarray(array))
        batch = SequenceBatch(values.unsqueeze(2) if values.dim() == 2 else values, None)
    channels = batch.values.shape[2]
    if reset:
        estimator.n_channels_in_ = channels
    elif channels != estimator.n_channels_in_:
        raise ThreefoldError(
            f"X has {channels} channels, but {type(estimator).__name__} was fitted on "
            f"{estimator.n_channels_in_}"
        )
    return batch


def _is_ragged(data: Any) -> bool:
    """Whether data are a list of arrays, rather than one array or rows of numbers."""
    if not isinstance(data, (list, tuple)) or not len(data):
        return False
    if not all(hasattr(row, "__len__") and not isinstance(row, (str, bytes)) for row in data):
        return False
    shapes = {np.shape(row) for row in data}
    return len(shapes) > 1 or any(len(shape) == 2 for shape in shapes)


def _ragged(data: Any) -> SequenceBatch:
    rows = []
    for number, row in enumerate(data):
        checked = check_array(
            np.asarray(row), ensure_2d=False, dtype=np.float64, input_name=f"X[{number}]"
        )
        rows.append(torch.from_numpy(checked.reshape(len(checked), -1)))
    channels = {row.shape[1] for row in rows}
    if len(channels) > 1:
        raise ThreefoldError(f"sequences with {sorted(channels)} channels; expected the same")
    lengths = torch.tensor([len(row) for row in rows])
    padded = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
    return SequenceBatch(padded, lengths)
