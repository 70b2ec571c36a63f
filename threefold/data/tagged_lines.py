"""Lines of tagged words: the word first, its tag last, between tabs or white space.

-DOCSTART- -X- O        begins a document, and is no sentence
                        ends a sentence
EU NNP I-ORG            the word EU, the tag I-ORG
"""

from __future__ import annotations

TAG_SUFFIXES = (".conll", ".conllu", ".bio", ".iob")
DOCUMENT_START = "-DOCSTART-"


def tagged_cells(line: str) -> list[str]:
    """The cells of a line; none if it is empty or begins a document."""
    cells = [cell.strip() for cell in (line.split("\t") if "\t" in line else line.split())]
    return cells if any(cells) and cells[0] != DOCUMENT_START else []


def words_in(line: str, tagged: bool) -> list[str]:
    """The words of a line: the first cell of a tagged one, all between white space of others."""
    cells = tagged_cells(line)
    words = cells[:1] if tagged else line.split()
    return [word for word in words if word] if cells else []
