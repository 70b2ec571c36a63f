"""Chords: which of eight chords sounds, whatever its phases, loudness and accompaniment.

A chord is three sines, at one second's sampling; each row has phases and loudnesses of its own, a
fourth sine of any pitch, and a little noise.  The same sounds exist at any sampling rate: `rate`
0.5 is every second sample.  Chance is 1/8.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from threefold.data.draws import integers, uniform
from threefold.errors import ThreefoldError

# Periods a second.  Classes share pitches, so that one alone tells little.
PITCHES = (3.0, 5.0, 7.0, 9.0, 12.0, 15.0)
CHORDS = ((0, 1, 2), (0, 1, 4), (0, 2, 5), (0, 3, 4), (1, 2, 3), (1, 3, 5), (2, 4, 5), (3, 4, 5))
NOISE = 0.1


@dataclass(frozen=True)
class Chords:
    """Rows of the task; the score is the part that is right."""

    inputs: Tensor  # [N, L, 1] float32
    targets: Tensor  # [N] int64
    classes: int = len(CHORDS)
    chance: float = 1 / len(CHORDS)
    solved: float = 0.95


def chords(length: int = 256, *, rate: float = 1.0, seed: int = 0, count: int = 1000) -> Chords:
    """`count` rows of one second, `length` samples at rate 1; the same sounds at every rate."""
    samples = round(length * rate)
    if not 0 < rate <= 1 or samples < 2 * max(PITCHES) or count < 1:
        raise ThreefoldError(
            f"chords: length {length} at rate {rate} is {samples} samples, {count} rows; expected "
            f"a rate up to 1, more than {2 * max(PITCHES):g} samples and 1 row"
        )
    targets = integers((seed, 0), len(CHORDS), count)
    pitch = np.asarray(PITCHES)[np.asarray(CHORDS)[targets]]
    other = PITCHES[0] + uniform((seed, 1), count, 1) * (PITCHES[-1] - PITCHES[0])
    pitch = np.concatenate([pitch, other], 1)[..., None]
    loud = 0.6 + 0.8 * uniform((seed, 2), count, 4, 1)
    loud[:, 3] *= 0.4
    phase = uniform((seed, 3), count, 4, 1)
    # A sample stands for the time up to it: the last one is at the end of the second.
    time = (np.arange(samples) + 1) / samples
    sound = (loud * np.sin(2 * math.pi * (pitch * time + phase))).sum(1)
    noise = uniform((seed, 4), count, length)[:, length - samples :] - 0.5
    inputs = torch.from_numpy(sound + NOISE * noise).float().unsqueeze(-1)
    return Chords(inputs, torch.from_numpy(targets))
