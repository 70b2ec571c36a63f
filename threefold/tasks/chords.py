"""Chords: which of eight chords is played, whatever its phases, loudness and accompaniment.

    inputs    .41  .77  .52 −.08 −.33  …  one second: three sines, a distracting fourth, noise
    target      3                         the chord of pitches 0, 3 and 4

The same sounds exist at any sampling rate: `rate` 0.5 is every second sample, which a filter whose
rate is set accordingly (`set_rate` of `threefold.layers.state_space_mixer`) processes as before.
Classes share pitches, so that a single pitch says little.  Chance: 1/8.  Solved: 0.95.
"""

from __future__ import annotations

import math

import numpy as np

from threefold.data.loaders import Batch
from threefold.data.random_by_address import by_row, integers_by_row
from threefold.errors import ThreefoldError
from threefold.tasks.task import Numbers, Task, address, declare, make_batch

PITCHES = (3.0, 5.0, 7.0, 9.0, 12.0, 15.0)  # hertz
CHORDS = ((0, 1, 2), (0, 1, 4), (0, 2, 5), (0, 3, 4), (1, 2, 3), (1, 3, 5), (2, 4, 5), (3, 4, 5))
NOISE_AMPLITUDE = 0.1


def chords(length: int = 256, *, rate: float = 1.0, seed: int = 0) -> Task[Batch]:
    """One second, `length` samples at rate 1; example i is the same sound at every rate."""
    samples = round(length * rate)
    if not 0 < rate <= 1 or samples < 2 * max(PITCHES):
        raise ThreefoldError(
            f"chords: length {length} at rate {rate} is {samples} samples; expected a rate up to "
            f"1 and more than {2 * max(PITCHES):g} samples"
        )
    # A sample represents the time up to it: the last one is at the end of the second.
    time = (np.arange(samples) + 1) / samples

    def draw(split: str, numbers: Numbers) -> Batch:
        def drawn(stream: int, *shape: int) -> np.ndarray:
            return by_row(address(seed, split, stream), numbers, *shape)

        targets = integers_by_row(address(seed, split, 0), numbers, len(CHORDS), 1)[:, 0]
        pitch = np.asarray(PITCHES)[np.asarray(CHORDS)[targets]]
        other = PITCHES[0] + drawn(1, 1) * (PITCHES[-1] - PITCHES[0])
        pitch = np.concatenate([pitch, other], 1)[..., None]
        loud = 0.6 + 0.8 * drawn(2, 4, 1)
        loud[:, 3] *= 0.4
        sound = (loud * np.sin(2 * math.pi * (pitch * time + drawn(3, 4, 1)))).sum(1)
        noise = drawn(4, length)[:, length - samples :] - 0.5
        return make_batch((sound + NOISE_AMPLITUDE * noise)[..., None], targets)

    return declare("chords", draw, length=samples)
