"""Bands that hold: quantiles shifted by what was seen on held-out windows (split conformal).

    score   e = (y − ŷ_q) / w,   w = ŷ_max − ŷ_min + a tenth of its mean
    band    ŷ_q + w · e at p,     p = q + (q − ½) / n

For each step ahead, target and level q: of windows like those that come, a share q lies below.  n
is the number of windows that do not overlap.  p lies further out than q because, of n scores in
order, number q (n + 1) has the share q below it on average.  Between two scores it is interpolated:
taking the outer one would make a 95 % band of 110 windows hold 96.4 %.  Fewer than 1/q − 1 windows
(below the median; 1/(1 − q) − 1 above) cannot say so.  The scores are kept at some probabilities,
so that a stream can ask for another level (`adaptive_bands.py`).
Romano, Patterson & Candès 2019, "Conformalized Quantile Regression".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from threefold.errors import ThreefoldError
from threefold.models.files import read_tensors, write_tensors

Array = NDArray[Any]
FILE = "calibration.safetensors"
FLOOR = 0.1  # of the mean width, added to each width: a narrow band can be too narrow as well
_TAIL = (0.0, 0.001, 0.0025, 0.005, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.06, 0.08, 0.1, 0.125)
PROBABILITIES = np.array(
    sorted({*_TAIL, *np.linspace(0.15, 0.85, 29).round(3), *(round(1 - p, 6) for p in _TAIL)})
)


@dataclass(frozen=True)
class Calibration:
    """Shifts [horizon, targets, levels] in widths, and the scores at PROBABILITIES."""

    levels: Array
    width: Array  # [horizon, targets]: the mean width on held-out windows
    shift: Array  # [horizon, targets, levels]; 0 at the median
    scores: Array  # [probabilities, horizon, targets, levels]
    count: Array  # [horizon, targets]: held-out values
    independent: Array  # [1]: held-out windows that do not overlap

    @classmethod
    def fit(
        cls,
        quantiles: Array,
        truth: Array,
        levels: Sequence[float],
        independent: int | None = None,
    ) -> Calibration:
        """From quantiles [n, horizon, targets, levels] and what came [n, horizon, targets].

        independent: how many windows do not overlap; default: all.
        """
        shape = truth.shape[1:]
        if quantiles.shape != (len(truth), *shape, len(levels)):
            raise ThreefoldError(
                f"calibration: quantiles are {quantiles.shape} and values {truth.shape}; expected "
                f"[windows, horizon, targets, {len(levels)}] and [windows, horizon, targets]"
            )
        widths = quantiles[..., -1] - quantiles[..., 0]
        width = widths.mean(0)
        scale = _scale(widths, width)[..., None]
        scores = (truth[..., None] - quantiles) / scale
        shift = np.zeros((*shape, len(levels)))
        kept = np.zeros((len(PROBABILITIES), *shift.shape))
        count = np.isfinite(truth).sum(0)
        alone = np.minimum(count, len(truth) if independent is None else max(1, independent))
        for step, target in np.ndindex(*shape):
            for number, level in enumerate(levels):
                known = np.sort(scores[:, step, target, number])[: count[step, target]]
                if len(known):
                    kept[:, step, target, number] = np.quantile(known, PROBABILITIES)
                    shift[step, target, number] = _conformal(known, level, int(alone[step, target]))
        shift[..., np.asarray(levels) == 0.5] = 0.0
        return cls(np.asarray(levels), width, shift, kept, count, np.array([alone.min()]))

    def apply(self, quantiles: Array, point: Array) -> Array:
        """Quantiles […, steps, targets, levels] that hold; steps beyond the horizon begin anew."""
        places = np.arange(quantiles.shape[-3]) % len(self.shift)
        return self.shifted(quantiles, point, self.shift[places], self.width[places])

    def shifted(self, quantiles: Array, point: Array, shift: Array, width: Array) -> Array:
        """Quantiles with any shift in widths, none of which crosses another or the forecast."""
        scale = _scale(quantiles[..., -1] - quantiles[..., 0], width)[..., None]
        return in_order(quantiles + scale * shift, point, self.levels)

    def shift_of(self, levels: Array) -> Array:
        """The shifts that make a share `levels` [horizon, targets, levels] lie below."""
        low = np.clip(np.searchsorted(PROBABILITIES, levels) - 1, 0, len(PROBABILITIES) - 2)
        begin, end = PROBABILITIES[low], PROBABILITIES[low + 1]
        below, above = (np.take_along_axis(self.scores, i[None], 0)[0] for i in (low, low + 1))
        inside = below + (above - below) * (np.clip(levels, 0, 1) - begin) / (end - begin)
        # Beyond the scores that were seen, a band widens by their spread for each 0.1 of a level.
        spread = self.scores[-1] - self.scores[0]
        beyond: Array = np.minimum(levels, 0) + np.maximum(levels - 1, 0)
        return np.asarray(inside + 10 * spread * beyond)

    @property
    def notes(self) -> list[str]:
        """What to know about levels for which there were too few windows."""
        seen, notes = int(self.independent[0]), []
        for low, high in zip(self.levels, self.levels[::-1], strict=True):
            if low >= 0.5:
                break
            needed = max(smallest_count(low), smallest_count(high))
            if seen < needed:
                notes.append(
                    f"the band from q{low:g} to q{high:g} was calibrated on {seen:,} held-out "
                    f"windows that do not overlap; it needs at least {needed:,}, so it may hold "
                    f"less than {high - low:.0%} of the values"
                )
        return notes

    def write(self, folder: Path) -> None:
        """Write calibration.safetensors."""
        arrays = {name: np.ascontiguousarray(value) for name, value in asdict(self).items()}
        tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
        write_tensors(folder / FILE, tensors, {"format": "pt"})

    @classmethod
    def read(cls, folder: Path) -> Calibration | None:
        """Read calibration.safetensors of a folder; None if it has none."""
        path = folder / FILE
        if not path.exists():
            return None
        tensors, _ = read_tensors(path)
        names = [part.name for part in fields(cls)]
        if sorted(tensors) != sorted(names) or len(tensors["scores"]) != len(PROBABILITIES):
            raise ThreefoldError(f"{path}: damaged, or of another version; train the model again")
        return cls(**{name: tensors[name].numpy() for name in names})


def interval_coverages(
    quantiles: Array, levels: Sequence[float], truth: Array
) -> list[dict[str, Any]]:
    """For each pair of quantiles around the median: the nominal and the actual coverage."""
    known = np.isfinite(truth)
    y, q = truth[known], quantiles[known]
    intervals = []
    for low, high in zip(range(len(levels) // 2), reversed(range(len(levels))), strict=False):
        inside = (y >= q[:, low]) & (y <= q[:, high])
        intervals.append(
            {
                "from": levels[low],
                "to": levels[high],
                "nominal": round(levels[high] - levels[low], 9),
                "actual": float(inside.mean()) if len(y) else None,
            }
        )
    return intervals


def smallest_count(level: float) -> int:
    """The fewest held-out windows that can calibrate a level."""
    return math.ceil(round(1 / min(level, 1 - level), 9)) - 1


def in_order(quantiles: Array, point: Array, levels: Array) -> Array:
    """Quantiles of which none crosses another or the point forecast between them."""
    ordered = quantiles.copy()
    lower, upper = np.asarray(levels) < 0.5, np.asarray(levels) > 0.5
    below = np.minimum(ordered[..., lower], point[..., None])
    above = np.maximum(ordered[..., upper], point[..., None])
    ordered[..., lower] = np.minimum.accumulate(below[..., ::-1], -1)[..., ::-1]
    ordered[..., upper] = np.maximum.accumulate(above, -1)
    return ordered


def _scale(widths: Array, mean: Array) -> Array:
    """By what scores are divided: never 0."""
    floor = FLOOR * mean
    scale: Array = widths + np.where(floor > 0, floor, 1e-9)
    return scale


def _conformal(scores: Array, level: float, independent: int) -> float:
    """The score, of those in order, below which a share `level` of new ones lies on average."""
    if independent < smallest_count(level):
        return float(scores[0] if level < 0.5 else scores[-1])
    count = len(scores)
    place = (level + (level - 0.5) / independent) * count - 0.5
    return float(np.interp(place, np.arange(count), scores))
