"""argmax_k corr(Δy_t, Δy_{t−k}):  the length of a season, read off the changes of a series."""

from __future__ import annotations

from torch import Tensor

FEWEST_SEASONS = 2  # within a window, to take one as a season
SEASONALITY = 0.3  # autocorrelation from which on there is a season


def season_of(windows: Tensor) -> int:
    """The lag at which the changes of windows [N, C] resemble themselves most; 0 if none does."""
    changes = windows.diff(dim=1).double()
    changes = changes - changes.mean()
    energy = float(changes.square().mean()) or 1.0
    longest = windows.shape[1] // FEWEST_SEASONS
    alike = {
        lag: float((changes[:, lag:] * changes[:, :-lag]).mean()) / energy
        for lag in range(1, longest + 1)
    }
    # Before a season is over, changes go the other way: what comes earlier is only smooth.
    turn = next((lag for lag, value in alike.items() if value <= 0), longest)
    later = [lag for lag in alike if lag > turn]
    peaks = [k for k in later if alike[k] >= max(alike.get(k - 1, -1), alike.get(k + 1, -1))]
    best = max(peaks, key=alike.__getitem__, default=0)
    if not best or alike[best] < SEASONALITY:
        return 0
    # The shortest of the lags that are nearly as good: a season repeats at its multiples, too.
    return min(k for k in peaks if alike[k] >= 0.9 * alike[best])
