"""Thresholds of alarms: the scores of a clean stretch (split conformal).

    p = (1 + #{clean scores ≥ s}) / (n + 1)          an alarm if p ≤ α

Of elements like the clean ones, a share of at most α has an alarm, whatever the distribution of
their scores.  With fewer than 1/α − 1 clean scores p never reaches α.  Both halves of the stretch
are stored apart: thresholds of one, counted on the other, give a rate on held-out elements.
Vovk, Gammerman & Shafer 2005, "Algorithmic Learning in a Random World"; Laxhammar & Falkman 2015,
"Inductive Conformal Anomaly Detection for Sequential Detection of Anomalous Sub-Trajectories".
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from threefold.data.atomic_files import write_file
from threefold.errors import ThreefoldError
from threefold.models.calibration import smallest_count
from threefold.models.config import ALARMS
from threefold.models.files import read_tensors, write_tensors

Array = NDArray[Any]
TAIL = 1 << 16  # highest scores that are all kept
BODY = 1 << 12  # of the others: p-values between them are rounded up


@dataclass(frozen=True)
class CleanScores:
    """Different scores in order, and how many of all are above each."""

    scores: Array
    above: Array
    count: int

    @classmethod
    def fit(cls, values: Array) -> CleanScores:
        """From scores in any order, none missing."""
        scores, counts = np.unique(values, return_counts=True)
        above = len(values) - np.cumsum(counts)
        body = max(0, len(scores) - TAIL)
        chosen = np.unique(np.linspace(0, body, BODY).astype(int)) if body else np.arange(0)
        kept = np.union1d(chosen, np.arange(body, len(scores)))
        return cls(scores[kept], above[kept], len(values))

    def at_least(self, values: Array) -> Array:
        """How many scores are at least as high as each value; too many where some were left out."""
        padded = np.concatenate([[self.count], self.above])
        counts: Array = padded[np.searchsorted(self.scores, values)]
        return counts

    def p_values(self, values: Array) -> Array:
        """The p-value of each value among these scores."""
        return np.asarray((1 + self.at_least(values)) / (1 + self.count))


@dataclass(frozen=True)
class Halves:
    """The scores of the first and of the second half of a clean stretch."""

    first: CleanScores
    second: CleanScores

    @classmethod
    def fit(cls, values: Array) -> Halves:
        """From scores in the order of time."""
        middle = len(values) // 2
        return cls(CleanScores.fit(values[:middle]), CleanScores.fit(values[middle:]))

    @property
    def count(self) -> int:
        """Number of scores."""
        return self.first.count + self.second.count

    def p_values(self, values: Array) -> Array:
        """The p-value of each value among all scores; NaN for NaN."""
        counts = self.first.at_least(values) + self.second.at_least(values)
        return np.where(np.isnan(values), np.nan, (1 + counts) / (1 + self.count))

    def held_out_rate(self, rate: float) -> float | None:
        """The share of each half above the threshold of the other; None if they are too short."""
        if min(self.first.count, self.second.count) < smallest_count(rate):
            return None
        pairs = ((self.first, self.second), (self.second, self.first))
        alarms = sum(_alarms(known, new, rate) for known, new in pairs)
        return alarms / self.count


def _alarms(known: CleanScores, new: CleanScores, rate: float) -> int:
    high = new.scores[known.p_values(new.scores) <= rate]
    return int(new.at_least(high[:1])[0]) if len(high) else 0


@dataclass(frozen=True)
class AlarmCalibration:
    """Scores of the elements of a clean stretch, and means over windows of it.

    made_with: the weights of the model and the settings that scores depend on.
    """

    points: Halves
    window: int | None
    stretches: Halves | None  # of means over `window` elements
    made_with: Mapping[str, Any]

    @classmethod
    def fit(
        cls, points: Array, window: int | None, stretches: Array, made_with: Mapping[str, Any]
    ) -> AlarmCalibration:
        """From the scores of clean elements in the order of time, without those to warm up."""
        means = None if window is None else Halves.fit(stretches)
        return cls(Halves.fit(points), window, means, dict(made_with))

    def tensors(self) -> dict[str, Tensor]:
        """All scores by name."""
        parts = {"points": self.points, "stretches": self.stretches}
        tensors = {}
        for name, halves in parts.items():
            if halves is None:
                continue
            for half in ("first", "second"):
                clean: CleanScores = getattr(halves, half)
                counts = np.append(clean.above, clean.count)
                tensors[f"{name}.{half}.scores"] = torch.from_numpy(clean.scores.copy())
                tensors[f"{name}.{half}.above"] = torch.from_numpy(counts.astype(np.int64))
        return tensors

    def header(self) -> str:
        """All but the scores, as JSON."""
        return json.dumps({"window": self.window, "made_with": dict(self.made_with)})

    @classmethod
    def restore(cls, tensors: Mapping[str, Tensor], header: str) -> AlarmCalibration:
        """The calibration with these tensors and this header."""
        values = json.loads(header)
        window = values["window"]
        stretches = None if window is None else _halves(tensors, "stretches")
        return cls(_halves(tensors, "points"), window, stretches, values["made_with"])

    def write(self, folder: Path) -> None:
        """Write alarms.safetensors; completely or not at all."""
        metadata = {"format": "pt", "alarms": self.header()}
        write_file(folder / ALARMS, lambda new: write_tensors(new, self.tensors(), metadata))

    @classmethod
    def read(cls, folder: Path) -> AlarmCalibration | None:
        """Read alarms.safetensors of a folder; None if it has none."""
        path = folder / ALARMS
        if not path.exists():
            return None
        tensors, metadata = read_tensors(path)
        try:
            return cls.restore(tensors, metadata["alarms"])
        except (KeyError, ValueError, IndexError) as error:
            raise ThreefoldError(
                f"{path}: damaged, or of another version; delete it and calibrate alarms again"
            ) from error


def _halves(tensors: Mapping[str, Tensor], name: str) -> Halves:
    return Halves(*(_clean(tensors, f"{name}.{half}") for half in ("first", "second")))


def _clean(tensors: Mapping[str, Tensor], name: str) -> CleanScores:
    counts = tensors[f"{name}.above"].numpy()
    return CleanScores(tensors[f"{name}.scores"].numpy(), counts[:-1], int(counts[-1]))
