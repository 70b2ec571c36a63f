"""Simple models that `mixers="auto"` compares with sequence models, and keeps if they win.

    series → class or number   mean · MiniRocket and ridge · nearest neighbour by time warping ·
                               echo state network (`reservoir_readout.py`)
    texts → class              mean · logistic regression on hashed n-grams
    forecasts                  last value · seasonal naive · ridge autoregression · Holt–Winters

Each is a few arrays, and answers as the sequence models do: probabilities of classes, or numbers on
the scale on which they are trained.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from threefold.classical.autoregression import repeat_last
from threefold.classical.smoothing import Rates, fit_rates, forecast_windows
from threefold.classical.time_warping import nearest_neighbours, time_warping_distances
from threefold.data.padding import pad_rows
from threefold.errors import ThreefoldError

Array = NDArray[Any]
WINDOW = 0.1  # of time warping, as a share of the length
MOST_CELLS = 2_000_000_000  # of time warping, for all pairs of examples


@dataclass(frozen=True)
class MeanAnswer:
    """The same answer to everything: the shares of the classes, or the mean."""

    answer: Array  # [outputs]

    def __call__(self, rows: Sequence[Array]) -> Array:
        """Answers [N, outputs]."""
        return np.tile(self.answer, (len(rows), 1))


def class_shares(numbers: Array, weights: Array | None, classes: int) -> MeanAnswer:
    """The shares of the classes among the examples."""
    counts = np.bincount(numbers, weights, minlength=classes)
    return MeanAnswer(counts / counts.sum())


@dataclass(frozen=True)
class Neighbours:
    """The answer of the nearest known series by banded time warping."""

    inputs: Array  # [N, L, D]
    lengths: Array  # [N]
    answers: Array  # [N, outputs]

    @classmethod
    def fit(cls, rows: Sequence[Array], answers: Array) -> Neighbours:
        """Remember series [L, D] of any lengths, and their answers."""
        inputs, lengths = pad_rows(rows)
        cells = len(rows) ** 2 * WINDOW * inputs.shape[1] ** 2 * inputs.shape[2]
        if cells > MOST_CELLS:
            raise ThreefoldError(
                f"{len(rows)} series of {inputs.shape[1]} elements are too many to compare all"
            )
        return cls(inputs, lengths, answers)

    def leave_one_out(self) -> Array:
        """The number of the nearest other series of each."""
        inputs, lengths = torch.from_numpy(self.inputs), torch.from_numpy(self.lengths)
        distances = time_warping_distances(inputs, inputs, lengths, lengths, window=WINDOW)
        return np.asarray(distances.fill_diagonal_(torch.inf).argmin(1).numpy())

    def __call__(self, rows: Sequence[Array]) -> Array:
        """Answers [N, outputs]."""
        asked, lengths = pad_rows(rows)
        parts = (torch.from_numpy(part) for part in (asked, self.inputs, lengths, self.lengths))
        near, _ = nearest_neighbours(*parts, window=WINDOW)
        answers: Array = self.answers[near.numpy()]
        return answers


@dataclass(frozen=True)
class SmoothedSeries:
    """Exponential smoothing of each channel; without rates the last value or season is repeated."""

    horizon: int
    season: int
    rates: Array | None = None  # [channels, 4]

    def save(self, folder: Any) -> None:
        """Refused: only models of sequences, images and texts have folders."""
        raise ThreefoldError(
            "this simple forecast has no folder; pickle the estimator, or name one sequence model "
            '(mixers="gru"), whose model_ can be saved'
        )

    @classmethod
    def fit(cls, windows: Array, horizon: int, season: int, seed: int) -> SmoothedSeries:
        """Rates of least one-step error on a few windows [N, C, channels]."""
        chosen = windows[:: max(1, len(windows) // 4)][:4]
        rates = [
            fit_rates(list(chosen[:, :, channel]), season=season, seed=seed)
            for channel in range(windows.shape[2])
        ]
        return cls(horizon, season, np.array([list(map(float, rate)) for rate in rates]))

    def predict(self, windows: Array) -> Array:
        """Forecasts [N, horizon, channels] after windows [N, C, channels]."""
        if self.rates is None:
            last = repeat_last(
                torch.from_numpy(windows), self.horizon, windows.shape[2], self.season
            )
            return np.asarray(last.numpy())
        forecasts = [
            forecast_windows(windows[:, :, channel], Rates(*rate), self.horizon, season=self.season)
            for channel, rate in enumerate(self.rates.tolist())
        ]
        return np.stack(forecasts, axis=2)
