"""What the columns of a table could be for: types, names, and which are left to choose from."""

from __future__ import annotations

from collections.abc import Sequence

from threefold.data.column_types import describe
from threefold.data.tables import Table
from threefold.errors import AmbiguousError, ThreefoldError, nearest
from threefold.tasks.user_data.questions import name_columns
from threefold.tasks.user_data.settings import ReadSettings

_TYPE_NAMES = {"time": "times", "category": "categories", "empty": "nothing"}


class CandidateColumns:
    """The columns of a table; `free` are those for which the settings name no other role."""

    def __init__(self, table: Table, settings: ReadSettings) -> None:
        self.table, self.settings = table, settings
        self.facts = describe(table)
        self.targets = settings.target_names
        self._check_names()
        self.time = self._time_column()
        reserved = {self.time, settings.group_column, settings.series_column, *self.targets}
        wanted = settings.feature_names
        self.free = [
            name
            for name in self.facts
            if name not in reserved and (wanted is None or name in wanted)
        ]

    def numbers(self) -> list[str]:
        """Free columns and targets of numbers."""
        return [name for name in self.free if self.facts[name].type == "number"] + [
            name
            for name in self.targets
            if self.facts[name].type == "number" and name not in self.free
        ]

    def texts(self) -> list[str]:
        """Columns of text; one with few different values counts if it is called text."""
        return [
            name
            for name in self.free
            if self.facts[name].type == "text"
            or (self.facts[name].type == "category" and name.lower() == "text")
        ]

    def of_type(self, kind: str) -> list[str]:
        """Free columns of one type that do not count as text."""
        texts = self.texts()
        return [n for n in self.free if self.facts[n].type == kind and n not in texts]

    def unusable(self, name: str) -> str:
        """Why a column is not used as an input; empty if it is."""
        facts = self.facts[name]
        if facts.type == "empty":
            return "it is empty"
        if name in self.targets or name in (self.settings.feature_names or ()):
            return ""
        if facts.constant:
            return "it is constant"
        if facts.index:
            return "it only counts the rows"
        if facts.type == "number":
            return ""
        return {"text": "text", "category": "categories", "time": "a time"}.get(facts.type, "lists")

    def _time_column(self) -> str | None:
        if self.settings.time_column is not None:
            return self.settings.time_column
        times = [n for n, facts in self.facts.items() if facts.type == "time"]
        times = [name for name in times if name not in self.targets]
        if len(times) > 1:
            raise self.ambiguous(
                "several columns of times", [name_columns(time_column=n) for n in times]
            )
        return times[0] if times else None

    def _check_names(self) -> None:
        settings = self.settings
        asked = [settings.time_column, settings.group_column, settings.series_column]
        for name in (*self.targets, *(settings.feature_names or ()), *asked):
            if name is not None and name not in self.facts:
                raise ThreefoldError(
                    f"{self.table.name}: no column {name!r}; {nearest(name, self.facts)}"
                )

    def need_number(self, name: str, why: str) -> None:
        """Raise unless a column has numbers."""
        facts = self.facts[name]
        if facts.type != "number":
            raise ThreefoldError(
                f"{self.table.name}: the column {name} cannot be {why}: it contains "
                f"{_TYPE_NAMES.get(facts.type, facts.type)}, e.g. {facts.examples[:1]!r}; the "
                f"columns are {self.types()}"
            )

    def types(self) -> str:
        """Every column with its type, for messages."""
        return ", ".join(f"{name} ({facts.type})" for name, facts in self.facts.items())

    def ambiguous(self, what: str, options: Sequence[str]) -> AmbiguousError:
        """The error that lists the options which settle a question."""
        return AmbiguousError(f"{self.table.name}: {what} (columns: {self.types()})", options)
