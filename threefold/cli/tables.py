"""`threefold tables`: tables of the literature, re-made from measurements."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from threefold.cli import output
from threefold.cli.options import AsJson

if TYPE_CHECKING:
    from threefold.lab.tables.report import TableReport

Name = Annotated[
    str | None,
    typer.Argument(metavar="[NAME]", help="The table to make; without it, all are listed."),
]
Preset = Annotated[
    str,
    typer.Option(help="seconds (a trial whose figures mean nothing), minutes or hours."),
]
Folder = Annotated[
    Path | None, typer.Option(help="Folder of the table; default: runs/tables-NAME-PRESET.")
]


def tables(
    name: Name = None,
    preset: Preset = "minutes",
    folder: Folder = None,
    as_json: AsJson = False,
) -> None:
    """List the tables of the literature, or make one from measurements.

    Each cell is stored when it is done: if it is interrupted, the same command continues.
    The result is report.html, report.md and report.json in the folder, with published figures.
    """
    from threefold.lab.tables.index import table_entry

    if name is None:
        _say_tables(as_json)
        return
    entry = table_entry(name)
    report, place = _make(entry.name, preset, folder)
    if as_json:
        output.say_json(report.to_dict())
    else:
        _say_report(report, place)


def _say_tables(as_json: bool) -> None:
    from threefold.lab.tables.index import TABLES

    if as_json:
        output.say_json([asdict(one) | {"made": one.made} for one in TABLES.values()])
        return
    header = ("NAME", "TABLE", "MADE BY", "PUBLISHED IN")
    rows = [(one.name, one.title, one.status, one.source) for one in TABLES.values()]
    output.say_table(header, rows, fold=("TABLE", "PUBLISHED IN"))


def _make(name: str, preset: str, folder: Path | None) -> tuple[TableReport, Path]:
    """Make a table; Ctrl-C says where it is stored."""
    from threefold.lab.tables.index import table_entry

    maker = table_entry(name).load()
    maker.preset(preset)
    from threefold.kernels.system_memory import keep_memory
    from threefold.lab.tables.making import default_folder, make_table
    from threefold.runtime.interrupts import InterruptedByUser

    keep_memory()
    place = folder or default_folder(name, preset)
    try:
        with _progress(name) as progress:
            return make_table(maker, preset, place, progress), place
    except KeyboardInterrupt:
        raise InterruptedByUser(
            f"interrupted; finished cells are stored in {place}, the same command continues"
        ) from None


@contextmanager
def _progress(name: str) -> Iterator[Callable[[float, int, str], None]]:
    """A bar on a terminal; elsewhere a line for each cell, and others now and then."""
    from threefold.data.progress import CountMeter

    meter, shown = CountMeter(f"table {name}"), ""

    def show(done: float, total: int, what: str) -> None:
        nonlocal shown
        if what != shown and not sys.stderr.isatty():
            number = f"cell {int(done) + 1} of {total}: " if done < total else ""
            print(f"{number}{what}", file=sys.stderr, flush=True)
        shown = what
        meter.show(done, total, what)

    try:
        yield show
    finally:
        meter.close()


def _say_report(report: TableReport, folder: Path) -> None:
    output.say(output.paint(report.content.sentence, "head"))
    for text in report.content.summary:
        output.say(text)
    for section in report.content.sections:
        for grid in section.grids:
            output.say(f"\n{output.paint(grid.title, 'head')}")
            output.say_table(grid.header, grid.rows, fold=grid.header[3:])
    output.say(f"\nreport: {folder / 'report.html'}")
