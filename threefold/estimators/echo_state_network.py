"""y = W_o [u; x; x²] + b_o of reservoir states x:  W_o in closed form, nothing else is learned.

One pass over the series, with memory that does not grow with their length.
Jaeger 2001, "The echo state approach to analysing and training recurrent neural networks";
Jaeger & Haas 2004, "Harnessing nonlinearity".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from threefold.errors import ThreefoldError
from threefold.estimators.driven_reservoir import DrivenReservoir
from threefold.estimators.inputs import (
    Array,
    ArrayLike,
    Series,
    match_array_type,
    read_series,
)
from threefold.memory.state import State


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

    def _pairs(
        self, inputs: ArrayLike | None, targets: ArrayLike
    ) -> list[tuple[Series | None, Series]]:
        if inputs is None and not self.feedback_scale > 0 and not self._fixed:
            raise ThreefoldError(
                f"{self.name}: nothing drives the reservoir; give inputs or a feedback_scale"
            )
        return super()._pairs(inputs, targets)

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
        if inputs is None and teacher is None:
            raise ThreefoldError(
                "predict: neither inputs nor a teacher were given; call generate to run free"
            )
        return self._predict(inputs, teacher, state, return_state)

    def _predict_one(
        self, series: Series | None, teacher: Series | None, state: State
    ) -> tuple[Tensor, State]:
        if self._feedback_size and teacher is None:
            assert series is not None
            self._check_size(series.size)
            outputs, state = self._run_free(series.read_all().unsqueeze(0), state, series.length)
            return outputs[0], state
        outputs, after = super()._predict_one(series, teacher, state)
        output = outputs[-1:] if teacher is None else after["output"]
        return outputs, {"memory": after["memory"], "output": output}

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
