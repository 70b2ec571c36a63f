"""Scores in MusicXML, plain or zipped (.mxl): the pitch, begin and end of every note of each part.

    part 1   C5 from 0 to 10080 · D5 from 10080 to 15120 · …      a quarter note is 10,080

Only pitches and times are read: repeats are not expanded, tied notes are joined, grace notes are
left out.
MusicXML 4.0, W3C 2021.
"""

from __future__ import annotations

import io
import xml.etree.ElementTree as ElementTree
import zipfile
from pathlib import Path
from typing import NamedTuple

from threefold.data.readers import file_error, read_bytes

UNITS_PER_QUARTER = 10_080  # units of time: all usual fractions of a quarter note are integers
SEMITONES = {"C": 0, "D": 2, "E": 4, "F": 5, "G": 7, "A": 9, "B": 11}


class Note(NamedTuple):
    """A MIDI pitch (60 is middle C), and when it sounds."""

    pitch: int
    begin: int
    end: int


def read_score(path: Path, parts: int | None = None) -> list[list[Note]]:
    """The notes of each part, ordered by begin; empty if the score does not have `parts` parts."""
    content = read_bytes(path)
    try:
        root = ElementTree.fromstring(_unzipped(content) if content[:2] == b"PK" else content)
        elements = list(root.iter("part"))
        if parts is not None and len(elements) != parts:
            return []
        notes = [_notes(part) for part in elements]
    except (ElementTree.ParseError, zipfile.BadZipFile, KeyError, ValueError) as error:
        raise file_error(path, None, f"not a MusicXML score ({error})") from error
    if not any(notes):
        raise file_error(path, None, "the score has no notes")
    return notes


def _unzipped(content: bytes) -> bytes:
    """The score of an archive, as named in its container."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        container = ElementTree.fromstring(archive.read("META-INF/container.xml"))
        for file in container.iter("rootfile"):
            return archive.read(file.get("full-path", ""))
    raise KeyError("the container names no score")


def _notes(part: ElementTree.Element) -> list[Note]:
    now, divisions = 0, 1
    notes: list[Note] = []
    for measure in part.iter("measure"):
        first = latest = now
        begin = now  # of the newest note; other notes of its chord share it
        for element in measure:
            if element.tag == "attributes":
                divisions = int(element.findtext("divisions", str(divisions)))
                continue
            length = round(float(element.findtext("duration", "0")) * UNITS_PER_QUARTER / divisions)
            if element.tag == "backup":
                now -= length
            elif element.tag == "forward":
                now += length
            elif element.tag == "note" and element.find("grace") is None:
                if element.find("chord") is None:
                    begin, now = now, now + length
                _add(notes, element, begin, begin + length)
            latest = max(latest, now)
        now = max(latest, first)
    return sorted(notes, key=lambda note: (note.begin, note.pitch))


def _add(notes: list[Note], element: ElementTree.Element, begin: int, end: int) -> None:
    """Append a note, or prolong an earlier one that is tied to it."""
    spelling = element.find("pitch")
    if spelling is None:
        return  # a rest
    step, octave = spelling.findtext("step", ""), int(spelling.findtext("octave", "4"))
    pitch = 12 * (octave + 1) + SEMITONES[step] + int(float(spelling.findtext("alter", "0")))
    if any(tie.get("type") == "stop" for tie in element.iter("tie")):
        for index in range(len(notes) - 1, -1, -1):
            if notes[index].pitch == pitch and notes[index].end == begin:
                notes[index] = notes[index]._replace(end=end)
                return
    notes.append(Note(pitch, begin, end))
