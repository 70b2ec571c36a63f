"""Lanes through long sequences, each of which starts anew at random places, addressed by step.

    sequence   a b c d e f g h i j k l m n      length 2, stretches of 3 batches
    lane 0     cd ef gh | ij kl mn | ab …       | a random place, with an empty state
    lane 1     kl | de fg hi | bc …             lanes do not start anew at the same step

A state that is carried from batch to batch is thus trained at every age up to a whole stretch, and
at every place.  A sequence that is shorter than a stretch has shorter ones.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from threefold.data.random_by_address import hashed
from threefold.errors import ThreefoldError

Numbers = NDArray[np.int64]


class StretchPlaces:
    """Where the rows of each batch begin, in sequences [begin, end) of elements to read."""

    def __init__(
        self,
        bounds: Sequence[tuple[int, int]],
        batch_size: int,
        length: int,
        batches: int,
        seed: int = 0,
    ) -> None:
        counts = np.array([max(0, end - begin) // max(length, 1) for begin, end in bounds])
        if batch_size < 1 or length < 1 or batches < 1 or not counts.any():
            longest = max((end - begin for begin, end in bounds), default=0)
            raise ThreefoldError(
                f"no sequence is long enough to carry a state: the longest has {longest} elements, "
                f"expected at least {length}"
            )
        self.batch_size, self.length, self.batches, self.seed = batch_size, length, batches, seed
        known = np.flatnonzero(counts)
        ends = np.array(bounds)[known]
        self.begin, self.room = ends[:, 0], ends[:, 1] - ends[:, 0]
        self.count = np.minimum(counts[known], batches)  # batches of a stretch, by sequence
        self.share = np.cumsum(self.room) / self.room.sum()

    def __call__(self, step: int) -> tuple[Numbers, NDArray[np.bool_]]:
        """The first element of every row, and which rows start anew."""
        lanes = np.arange(self.batch_size)
        period, place = np.divmod(step + lanes * self.batches // self.batch_size, self.batches)
        chosen = np.searchsorted(self.share, self._random(0, lanes, period), side="right")
        count = self.count[chosen]
        part, inside = np.divmod(place, count)
        address = period * self.batches + part
        free = self.room[chosen] - count * self.length + 1
        first = (self._random(1, lanes, address) * free).astype(np.int64)
        starts = (inside == 0) | (step == 0)
        return self.begin[chosen] + first + inside * self.length, starts

    def _random(self, what: int, lanes: Numbers, number: Numbers) -> NDArray[np.float64]:
        return hashed((self.seed, what), number * self.batch_size + lanes)
