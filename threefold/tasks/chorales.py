"""Four-part chorales by Bach as bytes: soprano, alto, tenor, bass, for every sixteenth note.

    a byte   p, from 1 to 127    pitch p begins (60 is middle C)
             128 + p             pitch p continues
             0                   silence
             128                 four times: the end of a chorale

    C major   72 67 64 48   200 195 192 176   …      a quarter note is four such steps

Only lyrics, keys, and notes shorter than a sixteenth are lost.
Boulanger-Lewandowski et al. 2012, "Modeling Temporal Dependencies in High-Dimensional Sequences",
use sets of notes per quarter note: their results are for another task.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from threefold.data.musicxml import UNITS_PER_QUARTER, Note, read_score
from threefold.data.readers import text_files
from threefold.errors import ThreefoldError
from threefold.tasks.stored import Array, data_folder

STEPS_PER_QUARTER = 4
SUSTAINED = 128  # added to a pitch that continues
VOICES = 4


def chorales(folder: Path | None = None) -> bytes:
    """All scores of exactly four parts, in the order of their file names, as bytes."""
    source = data_folder(folder, "music21", "music21/corpus/bach")
    chorales = []
    for path in text_files(source, ["*.mxl", "*.musicxml"]):
        parts = read_score(path, VOICES)
        if parts:
            chorales.append(steps_of(parts).tobytes() + bytes([SUSTAINED] * VOICES))
    if not chorales:
        raise ThreefoldError(f"{source}: contains no score with four parts")
    return b"".join(chorales)


def steps_of(parts: list[list[Note]]) -> Array:
    """The byte of every part at each step, [steps, parts]."""
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
