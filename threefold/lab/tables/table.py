"""What a re-made table consists of: cells to measure, and what they say together.

A cell is measured once and stored; a table is computed from its cells alone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

from threefold.drawing.charts import Figure
from threefold.errors import ThreefoldError, nearest

Values: TypeAlias = dict[str, Any]  # plain JSON values
Results: TypeAlias = Mapping[str, Values]  # by the key of a cell
Advance: TypeAlias = Callable[[float], None]  # the fraction of a cell that is done


@dataclass(frozen=True)
class TableCell:
    """One measurement: `measure` gets a folder for its own files, and reports its progress."""

    key: str  # also the name of its file
    title: str
    settings: Values  # a stored cell with other settings is not reused
    measure: Callable[[Path, Advance], Values]


@dataclass(frozen=True)
class TextGrid:
    """A table of texts, with its title and a sentence that says how to read it."""

    title: str
    text: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class TableSection:
    """A part of the page: a table, figures, or both."""

    slug: str
    title: str
    text: str
    grids: tuple[TextGrid, ...] = ()
    figures: tuple[Figure, ...] = ()


@dataclass(frozen=True)
class TableContent:
    """What a table says."""

    sentence: str  # the main result
    summary: Sequence[str]
    sections: Sequence[TableSection]
    differences: Sequence[str]  # to the published figures, and why
    setup: Sequence[str]  # what was measured, and how
    sources: Sequence[str]
    legend: Sequence[str] = ()  # names of the series of the figures, in their order


class RemadeTable(ABC):
    """A table that is made from cells; `presets` are its sizes, by name."""

    name: ClassVar[str]
    title: ClassVar[str]
    presets: ClassVar[Mapping[str, Any]]

    def preset(self, name: str) -> Any:
        """The sizes of a preset."""
        if name not in self.presets:
            raise ThreefoldError(f"unknown preset {name!r}; {nearest(name, self.presets)}")
        return self.presets[name]

    @abstractmethod
    def cells(self, preset: str) -> list[TableCell]:
        """Everything to measure, in order."""

    @abstractmethod
    def content(self, preset: str, results: Results) -> TableContent:
        """What the results of all cells say."""
