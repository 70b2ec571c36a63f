"""Bands that keep holding on a stream whose errors change: adaptive conformal inference.

    ℓ_{t+1} = ℓ_t + γ (q − [y_t < ŷ_q])       for each step ahead, target and level q

The level that is asked of the calibration moves against what came: if too many values lie below a
quantile, it goes down.  Over a long stream the share below tends to q, whatever the stream does.
Gibbs & Candès 2021, "Adaptive Conformal Inference Under Distribution Shift".
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from threefold.models.calibration import Calibration

Array = NDArray[Any]
RATE = 0.005  # γ


class AdaptiveBands:
    """The levels of one series so far, and its bands that are not yet to be judged."""

    def __init__(self, calibration: Calibration) -> None:
        self.calibration = calibration
        self.asked = np.broadcast_to(calibration.levels, calibration.shift.shape)
        self.levels = np.array(self.asked, np.float64)
        self._unmoved = calibration.shift - calibration.shift_of(self.asked)
        # By age: pending[a, h] is the band of step h + 1 that was given a + 1 elements ago.
        horizon = len(self.levels)
        self.pending = np.full((horizon, *self.levels.shape), np.nan)

    def bands(self, truth: Array, quantiles: Array, point: Array) -> Array:
        """Bands [L, horizon, targets, levels] after each of the elements truth [L, targets].

        A level moves before the band is given, by what the element says of earlier bands.
        """
        given = np.empty_like(quantiles)
        for number, value in enumerate(truth):
            self._learn(value)
            shift = self._unmoved + self.calibration.shift_of(self.levels)
            given[number] = self.calibration.shifted(
                quantiles[number], point[number], shift, self.calibration.width
            )
            self.pending = np.roll(self.pending, 1, 0)
            self.pending[0] = given[number]
        return given

    def _learn(self, value: Array) -> None:
        """Judge the bands of this element; a missing value judges none."""
        steps = np.arange(len(self.levels))
        bands = self.pending[steps, steps]  # [horizon, targets, levels]
        below = value[None, :, None] < bands
        known = np.isfinite(bands) & np.isfinite(value)[None, :, None]
        self.levels += np.where(known, RATE * (self.asked - below), 0.0)

    def state(self) -> list[float]:
        """All numbers as JSON can hold them."""
        known = np.isfinite(self.pending)
        parts = (self.levels, np.where(known, self.pending, 0.0), known)
        return [float(number) for part in parts for number in part.ravel()]

    def restore(self, state: list[float]) -> None:
        """Continue with the numbers that `state` returned."""
        numbers, size = np.array(state), self.levels.size
        self.levels = numbers[:size].reshape(self.levels.shape)
        pending, known = np.split(numbers[size:], 2)
        self.pending = np.where(known > 0, pending, np.nan).reshape(self.pending.shape)
