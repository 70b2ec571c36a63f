"""y = W_o φ(x) + b_o of the states x of a reservoir:  W_o in closed form, nothing else is learned.

What all reservoirs share: fitting series or labels in one pass with memory that does not grow with
their length, recursive least squares, predictions that continue from a state, scores.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from threefold.errors import ThreefoldError
from threefold.estimators.inputs import (
    ArrayLike,
    Series,
    has_several_series,
    match_array_type,
    one_hot_labels,
    pair_series,
    read_series,
)
from threefold.estimators.protocol import WhenClassifying
from threefold.estimators.ridge_estimator import RidgeEstimator, r_squared
from threefold.memory.state import State, join

# Elements whose states are in memory at the same time, whatever the length of a series.
PIECE_LENGTH = 1024


class ReservoirPiece(NamedTuple):
    """A piece of a series after it ran through the reservoir."""

    first: int  # index of its first element in the series
    features: Tensor  # [elements, features]
    state: State  # after this piece

    def after_wash_out(self, wash_out: int, targets: Series) -> tuple[Tensor, Tensor]:
        """Features and targets of the elements after the wash-out."""
        skip = min(max(0, wash_out - self.first), len(self.features))
        last = self.first + len(self.features)
        return self.features[skip:], targets.read(self.first + skip, last)


@dataclass(kw_only=True, eq=False)
class ReservoirEstimator(RidgeEstimator, ABC):
    """A reservoir with a read-out; a subclass draws it and runs it over a series."""

    wash_out: int = 100

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.wash_out >= 0:
            raise self._bad("wash_out", "0 or more")

    @abstractmethod
    def _prepare(self, inputs: int, outputs: int) -> None:
        """Draw the reservoir, unless its weights were set; then check their sizes."""

    @abstractmethod
    def _state_shapes(self, outputs: int) -> dict[str, tuple[int, ...]]:
        """The shape of each leaf of the state of one series."""

    @abstractmethod
    def _pieces(
        self,
        inputs: Series | None,
        teacher: Series | None,
        state: State,
        noise: torch.Generator | None = None,
    ) -> Iterator[ReservoirPiece]:
        """Run a series piece by piece."""

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """While the reservoir is fitted."""
        yield

    def fit(self, inputs: ArrayLike | None, targets: ArrayLike) -> Self:
        """Fit the read-out; inputs=None for a network that is driven by its feedback alone.

        A liquid that is silent or saturated is reported by a warning.
        """
        with self._watched():
            fit = self._fit_labels if self.classify else self._fit_series
            return fit(inputs, targets)

    def _fit_series(self, inputs: ArrayLike | None, targets: ArrayLike) -> Self:
        pairs = self._pairs(inputs, targets)
        self._prepare(pairs[0][0].size if pairs[0][0] else 0, pairs[0][1].size)
        folds, ends, seen = self._folds, [], 0
        total = sum(max(0, target.length - self.wash_out) for _, target in pairs)
        noise = torch.Generator().manual_seed(self.seed + 1)
        for series, target in pairs:
            for piece in self._pieces(series, target, self._empty_state(target.size), noise):
                features, known = piece.after_wash_out(self.wash_out, target)
                for fold, rows in _fold_slices(seen, len(known), total, folds.count):
                    folds.add(features[rows], known[rows], fold)
                seen += len(known)
            ends.append(piece.state)
        self._solve(folds)
        self._store_end(ends, targets)
        return self

    def partial_fit(
        self,
        inputs: ArrayLike | None,
        targets: ArrayLike,
        *,
        state: State | None = None,
        return_state: bool = False,
    ) -> Any:
        """Continue with more elements by recursive least squares, `forgetting` the older ones.

        A series starts with its wash-out, unless it continues from a `state`.  The offset is one
        more weight here, penalised like the others.
        """
        if self.classify:
            raise self._bad("classify", "False for partial_fit, which learns element by element")
        with self._watched():
            ends = self._fit_further(self._pairs(inputs, targets), state)
        end = self._store_end(ends, targets)
        return (self, end) if return_state else self

    def _fit_further(
        self, pairs: list[tuple[Series | None, Series]], state: State | None
    ) -> list[State]:
        """The states at the end of each series."""
        if "weight_in" not in self.tensors:
            self._prepare(pairs[0][0].size if pairs[0][0] else 0, pairs[0][1].size)
        ends = []
        for i, (series, target) in enumerate(pairs):
            start = self._row(state, i, len(pairs), target.size)
            for piece in self._pieces(series, target, start):
                features, known = piece.after_wash_out(0 if state else self.wash_out, target)
                recursion = self._recursion(features.shape[1], target.size)
                recursion.add(features, known, self.forgetting)
                self._store(recursion)
            ends.append(piece.state)
        return ends

    def _pairs(
        self, inputs: ArrayLike | None, targets: ArrayLike
    ) -> list[tuple[Series | None, Series]]:
        return list(pair_series(inputs, targets))

    def _fit_labels(self, inputs: ArrayLike | None, labels: ArrayLike) -> Self:
        inputs_list = self._several(inputs)
        classes, one_hot = one_hot_labels(labels, len(inputs_list))
        self._prepare(inputs_list[0].size, len(classes))
        folds = self._folds
        for i, series in enumerate(inputs_list):
            folds.add(self._label_features(series), one_hot[i : i + 1], i % folds.count)
        self._solve(folds, classes)
        return self

    def _several(self, inputs: ArrayLike | None) -> list[Series]:
        if inputs is None or not has_several_series(inputs):
            raise ThreefoldError(f"{self.name}: given one series, expected several to classify")
        return read_series("inputs", inputs)

    def _label_features(self, series: Series) -> Tensor:
        """The mean features after the wash-out, [1, features]."""
        if series.length <= self.wash_out:
            raise ThreefoldError(
                f"{series.name}: {series.length} elements, all within the wash-out of "
                f"{self.wash_out}; shorten the wash-out"
            )
        sums = [
            piece.features[max(0, self.wash_out - piece.first) :].sum(0, keepdim=True)
            for piece in self._pieces(series, None, self._empty_state(0))
        ]
        return torch.cat(sums).sum(0, keepdim=True) / (series.length - self.wash_out)

    def predict(
        self, inputs: ArrayLike, *, state: State | None = None, return_state: bool = False
    ) -> Any:
        """Outputs [L, O] of each series, or its label.

        Prediction continues from `state`; with `return_state` the new state is returned too.
        """
        return self._predict(inputs, None, state, return_state)

    def _predict(
        self,
        inputs: ArrayLike | None,
        teacher: ArrayLike | None,
        state: State | None,
        return_state: bool,
    ) -> Any:
        if self.classify:
            if return_state or not (teacher is None and state is None):
                raise ThreefoldError(
                    "predict: classification is of whole series and takes neither state nor teacher"
                )
            return self._labels(inputs, self._scores(inputs))
        teachers = None if teacher is None else read_series("teacher", teacher)
        pairs = _align(inputs, teachers)
        results, ends = [], []
        for i, (series, teacher_series) in enumerate(pairs):
            start = self._row(state, i, len(pairs), self.readout.shape[1])
            outputs, after = self._predict_one(series, teacher_series, start)
            results.append(match_array_type(_first(inputs, teacher), outputs))
            ends.append(after)
        several = has_several_series(_first(inputs, teacher))
        prediction = results if several else results[0]
        return (prediction, join(ends)) if return_state else prediction

    def _predict_one(
        self, series: Series | None, teacher: Series | None, state: State
    ) -> tuple[Tensor, State]:
        """The outputs of one series after a state, and the state after them."""
        parts = []
        for piece in self._pieces(series, teacher, state):
            parts.append(self._read_out(piece.features))
        return torch.cat(parts), piece.state

    @WhenClassifying
    def decision_function(self, inputs: ArrayLike | None) -> Any:
        """Scores [series, classes], the read-out of the mean features; the largest is the label."""
        return match_array_type(inputs, self._scores(inputs))

    def _scores(self, inputs: ArrayLike | None) -> Tensor:
        self._learned("readout")
        return self._read_out(
            torch.cat([self._label_features(series) for series in self._several(inputs)])
        )

    def score(self, inputs: ArrayLike | None, targets: ArrayLike) -> float:
        """R² after the wash-out (with feedback: of one-step predictions), or the accuracy."""
        if self.classify:
            return self._accuracy(targets, self._scores(inputs))
        predictions, expected = [], []
        for series, known in self._pairs(inputs, targets):
            start = self._empty_state(self.readout.shape[1])
            outputs, _ = self._predict_one(series, known if self._feedback_size else None, start)
            predictions.append(outputs[self.wash_out :])
            expected.append(known.read_all()[self.wash_out :])
        return r_squared(predictions, expected)

    @property
    def _feedback_size(self) -> int:
        """Number of outputs that are fed back."""
        return 0

    @property
    def state(self) -> State | None:
        """The state at the end of the last fit, one row per series."""
        names = [name for name in self.tensors if name.startswith("end.")]
        return {name.removeprefix("end."): self.tensors[name] for name in names} or None

    def _store_end(self, ends: list[State], targets: Any) -> State:
        """Store the states at the end of a fit, and whether the targets were tensors."""
        end = join(ends)
        self.tensors |= {f"end.{name}": leaf for name, leaf in end.items()}
        self._torch = isinstance(
            targets[0] if isinstance(targets, list | tuple) else targets, Tensor
        )
        return end

    def _check_size(self, inputs: int) -> None:
        expected = self._learned("weight_in").shape[1]
        if inputs != expected:
            raise ThreefoldError(
                f"inputs with {inputs} numbers per element, expected {expected}, the size of W_in"
            )

    def _empty_state(self, outputs: int) -> State:
        """The state before the first element, one row."""
        zeros = self._learned("weight_in").new_zeros
        return {name: zeros(1, *shape) for name, shape in self._state_shapes(outputs).items()}

    def _check_state(self, state: State, outputs: int, rows: int | None = None) -> None:
        """Raise unless a carried state fits."""
        leaves = state.items() if isinstance(state, dict) else [("state", state)]
        given = {name: tuple(getattr(leaf, "shape", ())) for name, leaf in leaves}
        shapes = self._state_shapes(outputs)
        rows = given.get(next(iter(shapes)), (0,))[0] if rows is None else rows
        expected = {name: (rows, *shape) for name, shape in shapes.items()}
        if given != expected:
            raise ThreefoldError(f"state is {given}, expected {expected}, as predict returns it")

    def _row(self, state: State | None, row: int, rows: int, outputs: int) -> State:
        """One row of a carried state, or the empty state."""
        if state is None:
            return self._empty_state(outputs)
        self._check_state(state, outputs, rows)
        return {name: leaf[row : row + 1] for name, leaf in state.items()}


def piece_ends(length: int) -> Iterator[tuple[int, int]]:
    """The first element of each piece of a series, and the first after it."""
    for first in range(0, length, PIECE_LENGTH):
        yield first, min(first + PIECE_LENGTH, length)


def _fold_slices(first: int, count: int, total: int, folds: int) -> Iterator[tuple[int, slice]]:
    """Cut elements first … first + count − 1 of `total` at the ends of equal folds."""
    start = 0
    while start < count:
        fold = (first + start) * folds // total
        end = -(-(fold + 1) * total // folds) - first  # the first element of the next fold
        yield fold, slice(start, min(end, count))
        start = min(end, count)


def _first(*arguments: ArrayLike | None) -> ArrayLike:
    """The first argument that is not None."""
    return next(argument for argument in arguments if argument is not None)


def _align(
    inputs: ArrayLike | None, teacher: list[Series] | None
) -> list[tuple[Series | None, Series | None]]:
    """Pairs of input series and teachers; one of the two may be absent."""
    if inputs is None and teacher is None:
        raise ThreefoldError("predict: no inputs were given")
    series = None if inputs is None else read_series("inputs", inputs)
    if series and teacher and [s.length for s in series] != [s.length for s in teacher]:
        raise ThreefoldError("predict: inputs and teacher differ in length")
    nothing: list[Series | None] = [None] * len(series or teacher or [])
    return list(zip(series or nothing, teacher or nothing, strict=True))
