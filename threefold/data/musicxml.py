"""Scores in MusicXML, plain or zipped (.mxl): who sings which note from when to when.

    part 1   C5 from 0 to 10080 · D5 from 10080 to 15120 · …      a quarter note is 10,080

Only pitches and times are read; repeats are not played, ties join notes, grace notes are left out.
MusicXML 4.0, W3C 2021.
"""

from __future__ import annotations

import io
import xml.etree.ElementTree as ElementTree
import zipfile
from pathlib import Path
from typing import NamedTuple

from threefold.data.readers import file_error, read_bytes

UNITS_PER_QUARTER = (
    10_080  # units of time: every usual part of a quarter note is a whole number of them
)
SEMITONES = {"C": 0, "D": 2, "E": 4, "F": 5, "G": 7, "A": 9, "B": 11}


class Note(NamedTuple):
    """A pitch as MIDI numbers it (60 is the middle C), and when it sounds."""

    pitch: int
    begin: int
    end: int


def read_score(path: Path, parts: int | None = None) -> list[list[Note]]:
    """The notes of each part, by when they begin; none of a score of another number of `parts`."""
    content = read_bytes(path)
    try:
        root = ElementTree.fromstring(_unzipped(content) if content[:2] == b"PK" else content)
        named = list(root.iter("part"))
        if parts is not None and len(named) != parts:
            return []
        found = [_notes(part) for part in named]
    except (ElementTree.ParseError, zipfile.BadZipFile, KeyError, ValueError) as error:
        raise file_error(path, None, f"not a score in MusicXML ({error})") from error
    if not any(found):
        raise file_error(path, None, "a score without notes")
    return found


def _unzipped(content: bytes) -> bytes:
    """The score of an archive, which its container names."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        container = ElementTree.fromstring(archive.read("META-INF/container.xml"))
        for file in container.iter("rootfile"):
            return archive.read(file.get("full-path", ""))
    raise KeyError("the container names no score")


def _notes(part: ElementTree.Element) -> list[Note]:
    now, divisions = 0, 1
    found: list[Note] = []
    for measure in part.iter("measure"):
        first = latest = now
        begin = now  # of the newest note, which the others of its chord share
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
                _add(found, element, begin, begin + length)
            latest = max(latest, now)
        now = max(latest, first)
    return sorted(found, key=lambda note: (note.begin, note.pitch))


def _add(found: list[Note], element: ElementTree.Element, begin: int, end: int) -> None:
    """Take a note into the list, as the rest of an earlier one where a tie says so."""
    named = element.find("pitch")
    if named is None:
        return  # a rest
    step, octave = named.findtext("step", ""), int(named.findtext("octave", "4"))
    pitch = 12 * (octave + 1) + SEMITONES[step] + int(float(named.findtext("alter", "0")))
    if any(tie.get("type") == "stop" for tie in element.iter("tie")):
        for place in range(len(found) - 1, -1, -1):
            if found[place].pitch == pitch and found[place].end == begin:
                found[place] = found[place]._replace(end=end)
                return
    found.append(Note(pitch, begin, end))
