"""Make a table in a folder: measure what is missing, store each cell, then write the reports.

folder/  table.json        which table, preset and settings
         cells/KEY.json    a cell that is done: its values and its time
         work/KEY/         a cell under way: its lock, and the run folder of a training
         report.*          the table as Markdown, JSON and a page

A cell is stored whole or not at all.  Several processes may make one table: each takes cells that
no other one is measuring.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from threefold.data.atomic_files import report_write_errors, write_json
from threefold.errors import LockedError, ThreefoldError, option_name
from threefold.lab.race.result import versions
from threefold.lab.tables.report import TableReport
from threefold.lab.tables.table import RemadeTable, TableCell
from threefold.training.checkpoints import lock_folder

PLAN, CELLS, WORK = "table.json", "cells", "work"
POLL_SECONDS = 0.5  # between two looks at cells of other processes

Progress = Callable[[float, int, str], None]  # (cells done, cells, what is under way)


def default_folder(name: str, preset: str) -> Path:
    """The default folder of a table."""
    return Path("runs") / f"tables-{name}-{preset}"


def make_table(
    table: RemadeTable, preset: str, folder: Path, progress: Progress = lambda *_: None
) -> TableReport:
    """Measure the missing cells and write the reports; returns the table."""
    table.preset(preset)
    cells = table.cells(preset)
    _open_folder(folder, _plan(table, preset, cells))
    store = CellStore(folder)
    while missing := [cell for cell in cells if not store.has(cell)]:
        if not any(_take(store, cell, cells, progress) for cell in missing):
            progress(len(cells) - len(missing), len(cells), "waiting for another process")
            time.sleep(POLL_SECONDS)
    progress(len(cells), len(cells), "writing the reports")
    stored = {cell.key: store.read(cell) for cell in cells}
    report = TableReport.of(table, preset, stored)
    report.save(folder)
    return report


def _take(store: CellStore, cell: TableCell, cells: list[TableCell], progress: Progress) -> bool:
    """Measure a cell, unless another process has it; whether it was free."""
    try:
        with lock_folder(store.work(cell)):
            if not store.has(cell):
                done = sum(map(store.has, cells))
                store.fill(cell, lambda part: progress(done + part, len(cells), cell.title))
    except LockedError:
        return False
    store.clear(cell)
    return True


def _plan(table: RemadeTable, preset: str, cells: list[TableCell]) -> dict[str, Any]:
    plan = {
        "table": table.name,
        "preset": preset,
        "cells": {cell.key: cell.settings for cell in cells},
    }
    restored: dict[str, Any] = json.loads(json.dumps(plan))  # as it is read from a file
    return restored


def _open_folder(folder: Path, plan: dict[str, Any]) -> None:
    """Write the plan; refuse a folder with another table, or with files that are no table."""
    path = folder / PLAN
    with report_write_errors(folder):
        (folder / CELLS).mkdir(parents=True, exist_ok=True)
    if not path.is_file():
        others = sorted(one.name for one in folder.iterdir() if one.name not in (CELLS, WORK))
        if others:
            raise ThreefoldError(
                f"{folder}: contains {others[0]} and no {PLAN}, so it is not the folder of a "
                f"table; choose another {option_name('folder')}"
            )
        write_json(path, plan)
        return
    before = _read_plan(path)
    if before != plan:
        raise ThreefoldError(
            f"{folder}: already contains the table {before.get('table')} with the preset "
            f"{before.get('preset')}, or settings of another version; choose another "
            f"{option_name('folder')}"
        )


def _read_plan(path: Path) -> dict[str, Any]:
    try:
        plan: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return dict(plan)
    except (ValueError, TypeError) as error:
        raise ThreefoldError(
            f"{path}: this is not the plan of a table ({error}); choose another "
            f"{option_name('folder')}"
        ) from error


class CellStore:
    """The cells of a table on disk."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, cell: TableCell) -> Path:
        return self.folder / CELLS / f"{cell.key}.json"

    def work(self, cell: TableCell) -> Path:
        return self.folder / WORK / cell.key

    def has(self, cell: TableCell) -> bool:
        """Whether a cell is stored."""
        return self.path(cell).is_file()

    def read(self, cell: TableCell) -> dict[str, Any]:
        """A stored cell: settings, values, times, and the versions it was measured with."""
        try:
            stored: dict[str, Any] = json.loads(self.path(cell).read_text(encoding="utf-8"))
        except ValueError as error:
            raise ThreefoldError(
                f"{self.path(cell)}: not valid JSON ({error}); delete it to measure it again"
            ) from error
        return stored

    def fill(self, cell: TableCell, advance: Callable[[float], None]) -> None:
        """Measure a cell and store it; the times of a resumed cell are those since then."""
        advance(0.0)
        start, cpu = time.perf_counter(), time.process_time()
        values = cell.measure(self.work(cell) / "run", advance)
        write_json(
            self.path(cell),
            {
                "settings": cell.settings,
                "values": values,
                "seconds": time.perf_counter() - start,
                "cpu_seconds": time.process_time() - cpu,
                "versions": versions(),
            },
        )

    def clear(self, cell: TableCell) -> None:
        """Delete what was needed only while a cell was measured."""
        shutil.rmtree(self.work(cell), ignore_errors=True)
