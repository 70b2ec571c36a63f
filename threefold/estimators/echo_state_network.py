"""y = W_o [u; x; x²] + b_o of reservoir states x:  W_o in closed form, nothing else is learned.

One pass over the series, with memory that does not grow with their length.
Jaeger 2001, "The echo state approach to analysing and training recurrent neural networks";
Jaeger & Haas 2004, "Harnessing nonlinearity".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from threefold.errors import ThreefoldError
from threefold.estimators.driven_reservoir import DrivenReservoir
from threefold.estimators.inputs import (
    Array,
    ArrayLike,
    Series,
    has_several_series,
    match_array_type,
    one_hot_labels,
    pair_series,
    read_series,
)
from threefold.estimators.protocol import WhenClassifying
from threefold.estimators.ridge_estimator import r_squared
from threefold.memory.state import State, join


@dataclass(kw_only=True, eq=False)
class EchoStateNetwork(DrivenReservoir):
    """Map series [L, I] to series [L, O], or with `classify` series to labels; in float64.

    Series are numpy arrays or tensors, one or a list of any lengths.  W has a fraction `density` of
    nonzero weights, drawn from `distribution`, and is scaled to `spectral_radius`; `input_scale`,
    `bias_scale` and `feedback_scale` (0: no output feedback) are the largest absolute weights of
    W_in, b and W_fb.  The read-out sees the states, with `direct` also the inputs, with `squares`
    also the squared states.  While fitting, the feedback is the previous target (teacher forcing),
    uniform noise of ±`noise` is added inside φ, and the first `wash_out` elements of each series
    are skipped.  Labels are predicted from the mean features, which are 0 for symmetric series
    without a bias or squares.  With fewer elements than features the solution is unique only for a
    regularisation above 0; without one it is refused.

    >>> import numpy as np
    >>> wave = np.sin(0.2 * np.arange(1000))
    >>> network = EchoStateNetwork(units=50, seed=1).fit(wave[:-1], wave[1:])
    >>> ahead = network.generate(20)  # continues where the series ended
    >>> bool(np.abs(ahead[:, 0] - np.sin(0.2 * np.arange(1000, 1020))).max() < 0.01)
    True
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.classify and self.feedback_scale > 0:
            raise self._bad("feedback_scale", "0 with classify: labels cannot be fed back")

    def states(self, inputs: Array) -> Any:
        """All states [L, units] of one series from the empty state, without feedback."""
        (series,) = read_series("inputs", inputs)
        if not self.tensors:
            self._prepare(series.size, 0)
        if self._feedback_size:
            raise ThreefoldError("states: this network feeds its outputs back; use predict")
        pieces = self._pieces(series, None, self._empty_state(0))
        first = series.size if self.direct else 0
        return match_array_type(
            inputs, torch.cat([p.features[:, first : first + self.units] for p in pieces])
        )

    def fit(self, inputs: ArrayLike | None, targets: ArrayLike) -> Self:
        """Fit the read-out; inputs=None for a network that is driven by its feedback alone."""
        if self.classify:
            return self._fit_labels(inputs, targets)
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
        pairs = self._pairs(inputs, targets)
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
        end = self._store_end(ends, targets)
        return (self, end) if return_state else self

    def _pairs(
        self, inputs: ArrayLike | None, targets: ArrayLike
    ) -> list[tuple[Series | None, Series]]:
        if inputs is None and not self.feedback_scale > 0 and not self._fixed:
            raise ThreefoldError(
                f"{self.name}: nothing drives the reservoir; give inputs or a feedback_scale"
            )
        return list(pair_series(inputs, targets))

    def _fit_labels(self, inputs: ArrayLike | None, labels: ArrayLike) -> Self:
        inputs_list = self._several(inputs)
        classes, one_hot = one_hot_labels(labels, len(inputs_list))
        self._prepare(inputs_list[0].size, len(classes))
        folds = self._folds
        for i, series in enumerate(inputs_list):
            folds.add(self._mean_features(series), one_hot[i : i + 1], i % folds.count)
        self._solve(folds, classes)
        return self

    def _several(self, inputs: ArrayLike | None) -> list[Series]:
        if inputs is None or not has_several_series(inputs):
            raise ThreefoldError(f"{self.name}: given one series, expected several to classify")
        return read_series("inputs", inputs)

    def _mean_features(self, series: Series) -> Tensor:
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
        self,
        inputs: ArrayLike | None,
        *,
        teacher: ArrayLike | None = None,
        state: State | None = None,
        return_state: bool = False,
    ) -> Any:
        """Outputs [L, O] of each series, or its label.

        Prediction continues from `state`; with `return_state` the new state is returned too.  A
        network with feedback gets its own outputs back, or those of the `teacher`.
        """
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
        if self._feedback_size and teacher is None:
            assert series is not None
            self._check_size(series.size)
            outputs, state = self._run_free(series.read_all().unsqueeze(0), state, series.length)
            return outputs[0], state
        parts = []
        for piece in self._pieces(series, teacher, state):
            parts.append(self._read_out(piece.features))
        output = parts[-1][-1:] if teacher is None else piece.state["output"]
        return torch.cat(parts), {"memory": piece.state["memory"], "output": output}

    @WhenClassifying
    def decision_function(self, inputs: ArrayLike | None) -> Any:
        """Scores [series, classes], the read-out of the mean features; the largest is the label."""
        return match_array_type(inputs, self._scores(inputs))

    def _scores(self, inputs: ArrayLike | None) -> Tensor:
        self._learned("readout")
        return self._read_out(
            torch.cat([self._mean_features(series) for series in self._several(inputs)])
        )

    def generate(
        self, steps: int, *, inputs: Array | None = None, state: State | None = None
    ) -> Any:
        """Run free for `steps` elements after a state, or after the series of the last fit.

        With feedback weights each output is fed back, and inputs [steps, I] may be given too;
        without, each output is the next input.  Returns [steps, O], or [B, steps, O] for a state
        of B rows.
        """
        start = self.state if state is None else state
        if start is None or steps < 1:
            raise ThreefoldError(
                f"generate: {steps} steps after {'no state' if start is None else 'a state'}; "
                "expected at least 1 step, after fit or with a state returned by predict"
            )
        self._check_state(start, self.readout.shape[1])
        driven = None if inputs is None else read_series("inputs", inputs)[0].read_all()
        expected = self._learned("weight_in").shape[1]
        fits = expected == 0 if self._feedback_size else expected == self.readout.shape[1]
        if driven is None and not fits:
            raise ThreefoldError(
                f"generate: {self.readout.shape[1]} outputs cannot be the {expected} inputs of "
                f"the next element; give inputs [{steps}, {expected}], or fit the next inputs as "
                "targets"
            )
        if driven is not None and driven.shape != (steps, expected):
            raise ThreefoldError(
                f"generate: inputs are {tuple(driven.shape)}, expected ({steps}, {expected})"
            )
        rows = len(start["memory"])
        outputs, _ = self._run_free(
            None if driven is None else driven.expand(rows, -1, -1), start, steps
        )
        result = outputs[0] if rows == 1 else outputs
        return match_array_type(inputs, result) if inputs is not None or not self._torch else result

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
        raise ThreefoldError(
            "predict: neither inputs nor a teacher were given; call generate to run free"
        )
    series = None if inputs is None else read_series("inputs", inputs)
    if series and teacher and [s.length for s in series] != [s.length for s in teacher]:
        raise ThreefoldError("predict: inputs and teacher differ in length")
    nothing: list[Series | None] = [None] * len(series or teacher or [])
    return list(zip(series or nothing, teacher or nothing, strict=True))
