"""Four-part chorales of Bach as bytes: soprano, alto, tenor, bass, sixteenth after sixteenth.

    a byte   p, from 1 to 127    the pitch p is struck (60 is the middle C)
             128 + p             it is held
             0                   silence
             128                 four times: the end of a chorale

    I, C major   72 67 64 48   200 195 192 176   …      a quarter note is four such steps

So nothing of the scores is lost but the words, the keys, and what is shorter than a sixteenth.
Boulanger-Lewandowski et al. 2012, "Modeling Temporal Dependencies in High-Dimensional Sequences",
have them as sets of notes, by quarters: their figures are for another task.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from threefold.data.musicxml import UNITS_PER_QUARTER, Note, read_score
from threefold.data.readers import text_files
from threefold.errors import ThreefoldError
from threefold.tasks.stored import Array, data_folder

STEPS_PER_QUARTER = 4  # steps of a quarter note
SUSTAINED = 128
VOICES = 4


def chorales(folder: Path | None = None) -> bytes:
    """All scores of exactly four parts, by the names of their files, as one row of bytes."""
    source = data_folder(folder, "music21", "music21/corpus/bach")
    found = []
    for path in text_files(source, ["*.mxl", "*.musicxml"]):
        parts = read_score(path, VOICES)
        if parts:
            found.append(steps_of(parts).tobytes() + bytes([SUSTAINED] * VOICES))
    if not found:
        raise ThreefoldError(f"{source}: holds no score of four parts")
    return b"".join(found)


def steps_of(parts: list[list[Note]]) -> Array:
    """What every part does at each step, [steps, parts]."""
    length = max(_step(note.end) for part in parts for note in part)
    table = np.zeros((length, len(parts)), np.uint8)
    for column, part in zip(table.T, parts, strict=True):
        for note in part:
            begin, end = _step(note.begin), _step(note.end)
            column[begin:end] = SUSTAINED + note.pitch
            column[begin : min(end, begin + 1)] = note.pitch
    return table


def _step(time: int) -> int:
    return time * STEPS_PER_QUARTER // UNITS_PER_QUARTER
