"""y = W_o [u; x; x²] + b_o of a reservoir's states x:  W_o in closed form, nothing else is learned.

One pass over the series, in memory that does not grow with their length.
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
from threefold.estimators.ridge_estimator import r_squared
from threefold.memory.state import State, join


@dataclass(kw_only=True, eq=False)
class EchoStateNetwork(DrivenReservoir):
    """From series [L, I] to series [L, O], or with `classify` from series to labels; in float64.

    Series are numpy arrays or tensors, one or a list of any lengths.  W has `density` of its
    numbers not 0, drawn from `distribution`, and is scaled to `spectral_radius`; `input_scale`,
    `bias_scale` and `feedback_scale` (0: no feedback of the output) are the largest weights of the
    others.  The read-out sees the states, with `direct` the inputs, with `squares` the squared
    states.  While fitting, feedback is the target before (teacher forcing), uniform noise of
    ±`noise` is added inside φ, and the first `wash_out` elements of each series are not learned
    from.  Labels are read from the mean features, which of symmetric series are 0 without a bias or
    squares.  With fewer elements than features the ridge has one answer for a regularisation above
    0; without one it is refused.

    >>> import numpy as np
    >>> wave = np.sin(0.2 * np.arange(1000))
    >>> network = EchoStateNetwork(units=50, seed=1).fit(wave[:-1], wave[1:])
    >>> ahead = network.generate(20)  # goes on where the series ended
    >>> bool(np.abs(ahead[:, 0] - np.sin(0.2 * np.arange(1000, 1020))).max() < 0.01)
    True
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.classify and self.feedback_scale > 0:
            raise self._bad("feedback_scale", "0 with classify: a label is no feedback")

    def states(self, inputs: Array) -> Any:
        """All states [L, units] of one series from the empty state; no feedback."""
        (series,) = read_series("inputs", inputs)
        if not self.tensors:
            self._prepare(series.size, 0)
        if self._fed:
            raise ThreefoldError("states: this network feeds its outputs back; use predict")
        pieces = self._pieces(series, None, self._start(0))
        first = series.size if self.direct else 0
        return match_array_type(
            inputs, torch.cat([p.features[:, first : first + self.units] for p in pieces])
        )

    def fit(self, inputs: ArrayLike | None, targets: ArrayLike) -> Self:
        """Learn the read-out; `inputs` None for a network that lives on its feedback alone."""
        if self.classify:
            return self._fit_labels(inputs, targets)
        both = self._both(inputs, targets)
        self._prepare(both[0][0].size if both[0][0] else 0, both[0][1].size)
        folds, ends, seen = self._folds, [], 0
        total = sum(max(0, wanted.length - self.wash_out) for _, wanted in both)
        noise = torch.Generator().manual_seed(self.seed + 1)
        for series, wanted in both:
            for piece in self._pieces(series, wanted, self._start(wanted.size), noise):
                features, known = piece.beyond(self.wash_out, wanted)
                for fold, rows in _cuts(seen, len(known), total, folds.count):
                    folds.add(features[rows], known[rows], fold)
                seen += len(known)
            ends.append(piece.state)
        self._solve(folds)
        self._end(ends, targets)
        return self

    def partial_fit(
        self,
        inputs: ArrayLike | None,
        targets: ArrayLike,
        *,
        state: State | None = None,
        return_state: bool = False,
    ) -> Any:
        """Learn from more elements by recursive least squares, `forgetting` the older ones.

        A series begins with its wash-out, unless it goes on from a `state`.  The offset is one more
        weight here, penalised like the others.
        """
        if self.classify:
            raise self._bad("classify", "False for partial_fit, which learns element by element")
        both = self._both(inputs, targets)
        if "weight_in" not in self.tensors:
            self._prepare(both[0][0].size if both[0][0] else 0, both[0][1].size)
        ends = []
        for i, (series, wanted) in enumerate(both):
            start = self._row(state, i, len(both), wanted.size)
            for piece in self._pieces(series, wanted, start):
                features, known = piece.beyond(0 if state else self.wash_out, wanted)
                recursion = self._recursion(features.shape[1], wanted.size)
                recursion.add(features, known, self.forgetting)
                self._keep(recursion)
            ends.append(piece.state)
        end = self._end(ends, targets)
        return (self, end) if return_state else self

    def _both(
        self, inputs: ArrayLike | None, targets: ArrayLike
    ) -> list[tuple[Series | None, Series]]:
        if inputs is None and not self.feedback_scale > 0 and not self._fixed:
            raise ThreefoldError(
                f"{self.name}: without inputs nothing drives it; give inputs, or a feedback_scale"
            )
        return list(pair_series(inputs, targets))

    def _fit_labels(self, inputs: ArrayLike | None, labels: ArrayLike) -> Self:
        several = self._several(inputs)
        classes, wanted = one_hot_labels(labels, len(several))
        self._prepare(several[0].size, len(classes))
        folds = self._folds
        for i, series in enumerate(several):
            folds.add(self._mean(series), wanted[i : i + 1], i % folds.count)
        self._solve(folds, classes)
        return self

    def _several(self, inputs: ArrayLike | None) -> list[Series]:
        if inputs is None or not has_several_series(inputs):
            raise ThreefoldError(f"{self.name}: one series, expected several to be classified")
        return read_series("inputs", inputs)

    def _mean(self, series: Series) -> Tensor:
        """The mean of the features behind the wash-out, [1, features]."""
        if series.length <= self.wash_out:
            raise ThreefoldError(
                f"{series.what}: {series.length} elements, all within the wash-out of "
                f"{self.wash_out}; shorten it"
            )
        sums = [
            piece.features[max(0, self.wash_out - piece.first) :].sum(0, keepdim=True)
            for piece in self._pieces(series, None, self._start(0))
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
        """Outputs [L, O] of each series, or the label of each.

        They go on from `state`, which `return_state` gives beside the outputs.  A network with
        feedback hears its own outputs, or, element after element, those of the `teacher`.
        """
        if self.classify:
            if return_state or not (teacher is None and state is None):
                raise ThreefoldError("predict: a label is of a whole series, without a state")
            return self._labels(inputs, self.decision_function(inputs))
        known = None if teacher is None else read_series("teacher", teacher)
        both = _align(inputs, known)
        made, ends = [], []
        for i, (series, told) in enumerate(both):
            at = self._row(state, i, len(both), self.readout.shape[1])
            outputs, after = self._answer(series, told, at)
            made.append(match_array_type(_first(inputs, teacher), outputs))
            ends.append(after)
        answer = made if has_several_series(_first(inputs, teacher)) else made[0]
        return (answer, join(ends)) if return_state else answer

    def _answer(
        self, series: Series | None, teacher: Series | None, state: State
    ) -> tuple[Tensor, State]:
        if self._fed and teacher is None:
            assert series is not None
            self._check_size(series.size)
            outputs, state = self._free(series.whole().unsqueeze(0), state, series.length)
            return outputs[0], state
        parts = []
        for piece in self._pieces(series, teacher, state):
            parts.append(self._read_out(piece.features))
        output = parts[-1][-1:] if teacher is None else piece.state["output"]
        return torch.cat(parts), {"memory": piece.state["memory"], "output": output}

    def decision_function(self, inputs: ArrayLike | None) -> Tensor:
        """Scores [series, classes]: the read-out of the mean features; the largest is the label."""
        return self._read_out(torch.cat([self._mean(series) for series in self._several(inputs)]))

    def generate(
        self, steps: int, *, inputs: Array | None = None, state: State | None = None
    ) -> Any:
        """Run free for `steps` elements after a state, or after the series of the last fit.

        With feedback weights each output is fed back, and inputs [steps, I] may go with it;
        without, each output is the next input.  [steps, O], or [B, steps, O] of a state of B rows.
        """
        at = self.state if state is None else state
        if at is None or steps < 1:
            raise ThreefoldError(
                f"generate: {steps} steps after {'no state' if at is None else 'a state'}; "
                "expected at least 1 step, after fit or with the state that predict returns"
            )
        self._check_state(at, self.readout.shape[1])
        driven = None if inputs is None else read_series("inputs", inputs)[0].whole()
        expected = self._learned("weight_in").shape[1]
        fits = expected == 0 if self._fed else expected == self.readout.shape[1]
        if driven is None and not fits:
            raise ThreefoldError(
                f"generate: {self.readout.shape[1]} outputs cannot be the {expected} inputs of "
                f"the next element; give inputs [{steps}, {expected}], or fit what comes next"
            )
        if driven is not None and driven.shape != (steps, expected):
            raise ThreefoldError(
                f"generate: inputs are {tuple(driven.shape)}, expected ({steps}, {expected})"
            )
        rows = len(at["memory"])
        outputs, _ = self._free(None if driven is None else driven.expand(rows, -1, -1), at, steps)
        answer = outputs[0] if rows == 1 else outputs
        return match_array_type(inputs, answer) if inputs is not None or not self._torch else answer

    def score(self, inputs: ArrayLike | None, targets: ArrayLike) -> float:
        """R² behind the wash-out (with feedback: one element ahead of its targets), or accuracy."""
        if self.classify:
            return self._accuracy(targets, self.decision_function(inputs))
        made, wanted = [], []
        for series, known in self._both(inputs, targets):
            start = self._start(self.readout.shape[1])
            outputs, _ = self._answer(series, known if self._fed else None, start)
            made.append(outputs[self.wash_out :])
            wanted.append(known.whole()[self.wash_out :])
        return r_squared(made, wanted)


def _cuts(first: int, count: int, total: int, folds: int) -> Iterator[tuple[int, slice]]:
    """Elements first … first + count − 1 of `total`, cut where one of equal folds ends."""
    at = 0
    while at < count:
        fold = (first + at) * folds // total
        end = -(-(fold + 1) * total // folds) - first  # the first element of the next fold
        yield fold, slice(at, min(end, count))
        at = min(end, count)


def _first(*given: ArrayLike | None) -> ArrayLike:
    """The first that is not None."""
    return next(each for each in given if each is not None)


def _align(
    inputs: ArrayLike | None, teacher: list[Series] | None
) -> list[tuple[Series | None, Series | None]]:
    """Series and teachers side by side; either may be absent, not both."""
    if inputs is None and teacher is None:
        raise ThreefoldError("predict: neither inputs nor a teacher; to run free call generate")
    given = None if inputs is None else read_series("inputs", inputs)
    if given and teacher and [s.length for s in given] != [s.length for s in teacher]:
        raise ThreefoldError("predict: inputs and teacher differ in their lengths")
    nothing: list[Series | None] = [None] * len(given or teacher or [])
    return list(zip(given or nothing, teacher or nothing, strict=True))
