"""The tables of the literature that are to be re-made from measurements: `threefold tables`.

A table that can be made names its class; the others are listed with what they will contain.
Nothing heavy is imported before a table is made.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

from threefold.errors import ThreefoldError, nearest

if TYPE_CHECKING:
    from threefold.lab.tables.table import RemadeTable


@dataclass(frozen=True)
class TableEntry:
    """One line of `threefold tables`."""

    name: str
    title: str
    source: str
    maker: str = ""  # module:class; empty if the table cannot be made yet

    @property
    def made(self) -> bool:
        """Whether `threefold tables NAME` makes it."""
        return bool(self.maker)

    @property
    def status(self) -> str:
        """How to make it, or that it cannot be made yet."""
        return f"threefold tables {self.name}" if self.made else "not made yet"

    def load(self) -> RemadeTable:
        """What makes the table."""
        if not self.made:
            ready = ", ".join(name for name, entry in TABLES.items() if entry.made)
            raise ThreefoldError(
                f"the table {self.name!r} ({self.title}) is not made yet; those that are: {ready}"
            )
        module, _, name = self.maker.partition(":")
        made: RemadeTable = getattr(import_module(f"threefold.lab.tables.{module}"), name)()
        return made


_TABLES = (
    TableEntry(
        "cost",
        "Cost by layer type: time and memory against length",
        "Vaswani et al. 2017, table 1; Gu et al. 2022, table 1",
        "cost:CostTable",
    ),
    TableEntry(
        "forms",
        "Forms of a linear memory: equality and time of step, chunk and parallel",
        "Yang et al. 2024, section 2",
        "forms:FormsTable",
    ),
    TableEntry(
        "recall",
        "Selective copying, induction heads and associative recall",
        "Gu & Dao 2023, tables 1 and 11; Fu et al. 2023, table 2",
        "recall:RecallTable",
    ),
    TableEntry(
        "hippo",
        "A random state matrix against HiPPO's",
        "Gu et al. 2022, section 2.2",
        "hippo:HippoTable",
    ),
    TableEntry(
        "lra",
        "Long Range Arena: ListOps, Text, Retrieval, Image, Pathfinder, Path-X",
        "Tay et al. 2021; Gu et al. 2022, table 4",
    ),
    TableEntry(
        "pixels",
        "Images pixel by pixel: sMNIST, pMNIST, sCIFAR",
        "Gu et al. 2022, tables 7 and 8",
    ),
    TableEntry(
        "speech",
        "Ten spoken words: MFCC, raw audio, half the sampling rate",
        "Gu et al. 2022, table 5",
    ),
    TableEntry(
        "translation",
        "WMT 2014: BLEU from English to German and to French",
        "Vaswani et al. 2017, table 2",
    ),
    TableEntry("glue", "GLUE: averages of fine-tuned models", "Devlin et al. 2019, table 1"),
    TableEntry(
        "inference",
        "Training and inference of Transformer, RNN and Mamba",
        "Gu & Dao 2023, figure 8",
    ),
)

TABLES: dict[str, TableEntry] = {one.name: one for one in _TABLES}


def table_entry(name: str) -> TableEntry:
    """A table by its name."""
    if name not in TABLES:
        raise ThreefoldError(f"unknown table {name!r}; {nearest(name, TABLES)}")
    return TABLES[name]
