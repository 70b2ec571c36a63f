"""y = W_o φ(W x + b) + b_o:  W and b random and fixed, W_o in closed form.

An echo state network without the recurrence: the inputs are rows of numbers instead of series.
Huang, Zhu & Siew 2006, "Extreme learning machine: Theory and applications".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from threefold.errors import ThreefoldError, nearest
from threefold.estimators.inputs import (
    Array,
    ArrayLike,
    Series,
    match_array_type,
    one_hot_labels,
    read_series,
)
from threefold.estimators.protocol import WhenClassifying
from threefold.estimators.ridge_estimator import RidgeEstimator, r_squared
from threefold.memory.cell import ACTIVATIONS
from threefold.memory.spectrum import random_matrix

# Rows whose features are in memory at the same time.
PIECE_ROWS = 1024


@dataclass(kw_only=True, eq=False)
class ExtremeLearningMachine(RidgeEstimator):
    """Map rows [N, I] to rows [N, O], or with `classify` to one label each; computed in float64.

    `input_scale` and `bias_scale` are the largest absolute random weights, for standardised inputs;
    with `direct` the read-out sees the inputs too.  With fewer rows than features the solution is
    unique only for a regularisation above 0.

    >>> import numpy as np
    >>> x = np.linspace(-2, 2, 200)
    >>> machine = ExtremeLearningMachine(units=40, input_scale=3.0, bias_scale=6.0)
    >>> machine = machine.fit(x, np.sin(3 * x))
    >>> bool(np.abs(machine.predict(x)[:, 0] - np.sin(3 * x)).max() < 0.01)
    True
    """

    units: int = 500
    input_scale: float = 1.0
    bias_scale: float = 1.0
    activation: str = "tanh"
    distribution: str = "uniform"
    direct: bool = False

    drawn = ("weight_in", "bias")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.units < 1:
            raise self._bad("units", "at least 1")
        if self.activation not in ACTIVATIONS:
            known = nearest(str(self.activation), ACTIVATIONS)
            raise ThreefoldError(f"{self.name}: unknown activation {self.activation!r}; {known}")

    def draw(self, inputs: int) -> None:
        """Draw the hidden layer for rows of `inputs` numbers; the seed determines it."""
        options: dict[str, Any] = {
            "generator": torch.Generator().manual_seed(self.seed),
            "distribution": self.distribution,
        }
        self.tensors = {
            "weight_in": self.input_scale * random_matrix(self.units, inputs, **options),
            "bias": self.bias_scale * random_matrix(1, self.units, **options)[0],
        }

    def fit(self, inputs: Array, targets: ArrayLike) -> Self:
        """Fit the read-out in one pass; with `classify`, targets are labels [N]."""
        rows = _rows("inputs", inputs)
        classes, target_rows = self._targets(rows.length, targets)
        if not self._fixed:
            self.draw(rows.size)
        folds = self._folds
        for first, features in self._pieces(rows):
            known = target_rows.read(first, first + len(features))
            for fold in range(folds.count):
                part = slice((fold - first) % folds.count, None, folds.count)
                folds.add(features[part], known[part], fold)
        self._solve(folds, classes)
        return self

    def partial_fit(self, inputs: Array, targets: ArrayLike) -> Self:
        """Continue with more rows by recursive least squares; here the offset is penalised too."""
        if self.classify:
            raise self._bad("classify", "False for partial_fit, which does not know all classes")
        rows = _rows("inputs", inputs)
        _, target_rows = self._targets(rows.length, targets)
        if "weight_in" not in self.tensors:
            self.draw(rows.size)
        for first, features in self._pieces(rows):
            recursion = self._recursion(features.shape[1], target_rows.size)
            known = target_rows.read(first, first + len(features))
            recursion.add(features, known, self.forgetting)
            self._store(recursion)
        return self

    def predict(self, inputs: Array) -> Any:
        """Outputs [N, O], or one label per row."""
        scores = self._scores(inputs)
        return self._labels(inputs, scores) if self.classify else match_array_type(inputs, scores)

    @WhenClassifying
    def decision_function(self, inputs: Array) -> Any:
        """The read-out [N, O]; with `classify`, the largest output of a row is its label."""
        return match_array_type(inputs, self._scores(inputs))

    def _scores(self, inputs: Array) -> Tensor:
        rows = _rows("inputs", inputs)
        return torch.cat([self._read_out(features) for _, features in self._pieces(rows)])

    def score(self, inputs: Array, targets: ArrayLike) -> float:
        """R², or with `classify` the accuracy."""
        outputs = self._scores(inputs)
        if self.classify:
            return self._accuracy(targets, outputs)
        _, target_rows = self._targets(len(outputs), targets)
        return r_squared([outputs], [target_rows.read_all()])

    @torch.no_grad()
    def _pieces(self, rows: Series) -> Iterator[tuple[int, Tensor]]:
        """The index of the first row of each piece, and the features of its rows."""
        weight, function = self._learned("weight_in"), ACTIVATIONS[self.activation]
        if rows.size != weight.shape[1]:
            raise ThreefoldError(
                f"inputs with {rows.size} numbers per row, expected {weight.shape[1]} as in fit"
            )
        for first in range(0, rows.length, PIECE_ROWS):
            x = rows.read(first, min(first + PIECE_ROWS, rows.length))
            hidden = torch.addmm(self.tensors["bias"], x, weight.T)
            hidden = hidden if function is None else function(hidden)
            yield first, torch.cat([x, hidden], 1) if self.direct else hidden

    def _targets(self, rows: int, targets: ArrayLike) -> tuple[list[Any] | None, Series]:
        if self.classify:
            classes, one_hot = one_hot_labels(targets, rows)
            return classes, Series("targets", one_hot)
        known = _rows("targets", targets)
        if known.length != rows:
            raise ThreefoldError(f"inputs have {rows} rows, targets have {known.length}")
        return None, known


def _rows(name: str, data: ArrayLike) -> Series:
    arrays = read_series(name, data)
    if len(arrays) != 1:
        raise ThreefoldError(f"{name}: {len(arrays)} arrays, expected one of rows [N, size]")
    return arrays[0]
