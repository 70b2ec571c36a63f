"""Mean absolute error of each of several targets, in its own units.

Their mean, by which training compares models, has no unit and is not shown to a user.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from threefold.data.preprocessing.numbers import Standardise
from threefold.training.objectives import BatchLoss
from threefold.training.training_data import TrainingData


class TargetErrors:
    """Adds up |answer − target| by target; the baseline is the mean, or the last value."""

    def __init__(self, scale: Standardise, is_forecast: bool) -> None:
        self.scale, self.is_forecast = scale, is_forecast
        self.model, self.baseline, self.count = np.zeros((3, len(scale.columns)))

    @staticmethod
    def of(data: TrainingData) -> TargetErrors | None:
        """For data with several numbers to predict; None for all others."""
        scale = data.output_step(Standardise)
        if scale is None or len(scale.columns) < 2:
            return None
        return TargetErrors(scale, data.task.kind == "forecaster")

    def __call__(self, rows: Any, batch_loss: BatchLoss, tally: Any) -> None:
        """Add a batch; called by `training.evaluation.evaluate`."""
        targets = self._numbers(rows.targets)
        naive = np.zeros_like(targets)  # the mean of the training data
        if self.is_forecast:
            last = rows.inputs[:, -1:, : targets.shape[-1]]
            naive = self._numbers(last.expand(rows.targets.shape))
        for total, answers in (
            (self.model, self._numbers(batch_loss.outputs)),
            (self.baseline, naive),
        ):
            total += np.nansum(np.abs(answers - targets), 0)
        self.count += np.isfinite(targets).sum(0)

    def _numbers(self, values: Any) -> NDArray[np.float64]:
        """Values […, targets] as rows."""
        rows: NDArray[np.float64] = values.double().cpu().numpy()
        return rows.reshape(-1, len(self.scale.columns))

    def values(self) -> dict[str, dict[str, float | None]]:
        """The errors of the model and of the baseline by target; None where none is known."""
        return {
            "by_target": self._means(self.model),
            "chance_by_target": self._means(self.baseline),
        }

    def _means(self, totals: NDArray[np.float64]) -> dict[str, float | None]:
        units = totals * np.array(self.scale.deviation)
        sums = zip(self.scale.columns, units.tolist(), self.count.tolist(), strict=True)
        return {name: total / count if count else None for name, total, count in sums}
