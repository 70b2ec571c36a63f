"""y = W_o φ(W x + b) + b_o:  W and b random and fixed, W_o in closed form.

An echo state network without the recurrence: rows of numbers instead of series.
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
from threefold.estimators.ridge_estimator import RidgeEstimator, r_squared
from threefold.memory.cell import ACTIVATIONS
from threefold.memory.reservoir import draw

# Rows whose features are held at once.
PIECE_ROWS = 1024


@dataclass(kw_only=True, eq=False)
class ExtremeLearningMachine(RidgeEstimator):
    """From rows [N, I] to rows [N, O], or with `classify` to a label each; computed in float64.

    `input_scale` and `bias_scale` are the largest of the random weights, for standardised inputs;
    with `direct` the read-out sees the inputs too.  With fewer rows than features the ridge has one
    answer for a regularisation above 0.

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
            known = nearest(self.activation, ACTIVATIONS)
            raise ThreefoldError(f"{self.name}: unknown activation {self.activation!r}; {known}")

    def draw(self, inputs: int) -> None:
        """A hidden layer for so many numbers a row; the same seed draws the same."""
        options: dict[str, Any] = {
            "generator": torch.Generator().manual_seed(self.seed),
            "distribution": self.distribution,
        }
        self.tensors = {
            "weight_in": self.input_scale * draw(self.units, inputs, **options),
            "bias": self.bias_scale * draw(1, self.units, **options)[0],
        }

    def fit(self, inputs: Array, targets: ArrayLike) -> Self:
        """Learn the read-out in one pass; with `classify`, targets are labels [N]."""
        rows = _rows("inputs", inputs)
        classes, wanted = self._targets(rows.length, targets)
        if not self._fixed:
            self.draw(rows.size)
        folds = self._folds
        for first, features in self._pieces(rows):
            known = wanted.piece(first, first + len(features))
            for fold in range(folds.count):
                mine = slice((fold - first) % folds.count, None, folds.count)
                folds.add(features[mine], known[mine], fold)
        self._solve(folds, classes)
        return self

    def partial_fit(self, inputs: Array, targets: ArrayLike) -> Self:
        """Learn from more rows by recursive least squares; the offset is penalised here too."""
        if self.classify:
            raise self._bad("classify", "False for partial_fit: the classes must be known at once")
        rows = _rows("inputs", inputs)
        _, wanted = self._targets(rows.length, targets)
        if "weight_in" not in self.tensors:
            self.draw(rows.size)
        for first, features in self._pieces(rows):
            recursion = self._recursion(features.shape[1], wanted.size)
            known = wanted.piece(first, first + len(features))
            recursion.add(features, known, self.forgetting)
            self._keep(recursion)
        return self

    def predict(self, inputs: Array) -> Any:
        """Outputs [N, O], or a label for each row."""
        scores = self.decision_function(inputs)
        return self._labels(inputs, scores) if self.classify else match_array_type(inputs, scores)

    def decision_function(self, inputs: Array) -> Tensor:
        """The read-out [N, O] itself; of labels the largest is the answer."""
        rows = _rows("inputs", inputs)
        return torch.cat([self._read_out(features) for _, features in self._pieces(rows)])

    def score(self, inputs: Array, targets: ArrayLike) -> float:
        """R², or with `classify` the accuracy."""
        made = self.decision_function(inputs)
        if self.classify:
            return self._accuracy(targets, made)
        _, wanted = self._targets(len(made), targets)
        return r_squared([made], [wanted.whole()])

    @torch.no_grad()
    def _pieces(self, rows: Series) -> Iterator[tuple[int, Tensor]]:
        """The first row of each piece, and the features of its rows."""
        weight, function = self._learned("weight_in"), ACTIVATIONS[self.activation]
        if rows.size != weight.shape[1]:
            raise ThreefoldError(
                f"inputs of {rows.size} numbers a row, expected {weight.shape[1]} as learned from"
            )
        for first in range(0, rows.length, PIECE_ROWS):
            x = rows.piece(first, min(first + PIECE_ROWS, rows.length))
            hidden = torch.addmm(self.tensors["bias"], x, weight.T)
            hidden = hidden if function is None else function(hidden)
            yield first, torch.cat([x, hidden], 1) if self.direct else hidden

    def _targets(self, rows: int, targets: ArrayLike) -> tuple[list[Any] | None, Series]:
        if self.classify:
            classes, wanted = one_hot_labels(targets, rows)
            return classes, Series("targets", wanted)
        known = _rows("targets", targets)
        if known.length != rows:
            raise ThreefoldError(f"inputs of {rows} rows and targets of {known.length}")
        return None, known


def _rows(what: str, given: ArrayLike) -> Series:
    found = read_series(what, given)
    if len(found) != 1:
        raise ThreefoldError(f"{what}: {len(found)} arrays, expected one of rows [N, size]")
    return found[0]
