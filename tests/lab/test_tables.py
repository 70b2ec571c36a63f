"""`threefold tables`: the list, the four tables in seconds, resumption, and what is refused."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tests.surfaces.test_cli import good, here, refused
from tests.surfaces.test_report_page import Outline
from threefold.lab.tables import cost, cost_rows, hippo, recall, recall_content, recall_tasks
from threefold.lab.tables.index import TABLES
from threefold.lab.tables.making import CELLS, CellStore, make_table
from threefold.lab.tables.table import (
    Advance,
    RemadeTable,
    Results,
    TableCell,
    TableContent,
    TableSection,
    Values,
)
from threefold.runtime.interrupts import InterruptedByUser
from threefold.training.checkpoints import lock_folder

MADE = ("cost", "forms", "recall", "hippo")


def test_the_list_says_which_tables_are_made() -> None:
    text = good("tables")
    lines = {line.split()[0]: line for line in text.splitlines()[1:]}
    assert list(lines) == list(TABLES)
    assert {name for name, line in lines.items() if "not made yet" not in line} == set(MADE)
    listed = json.loads(good("tables", "--json"))
    assert [one["name"] for one in listed if one["made"]] == list(MADE)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("recal",), "unknown table 'recal'; did you mean 'recall'?"),
        (("lra",), "is not made yet; those that are: cost, forms, recall, hippo"),
        (("cost", "--preset", "minute"), "unknown preset 'minute'; did you mean 'minutes'?"),
    ],
)
def test_bad_names(arguments: tuple[str, ...], message: str) -> None:
    assert message in refused("tables", *arguments)


@pytest.mark.parametrize("name", MADE)
def test_each_table_in_seconds(name: str, tmp_path: Path) -> None:
    done = here("tables", name, "--preset", "seconds", "--folder", str(tmp_path / name))
    assert done.returncode == 0, done.stderr
    cells = json.loads((tmp_path / name / "table.json").read_text())["cells"]
    assert f"cell 1 of {len(cells)}: " in done.stderr
    report = json.loads((tmp_path / name / "report.json").read_text())
    assert report["sentence"] in done.stdout
    assert list(report["cells"]) == list(cells) and report["sources"] and report["differences"]
    outline = Outline((tmp_path / name / "report.html").read_text())
    assert not outline.wrong and len(set(outline.ids)) == len(outline.ids)
    assert {link[1:] for link in outline.links} <= set(outline.ids)
    assert outline.loads == ["script"]  # its own, inside the page
    markdown = (tmp_path / name / "report.md").read_text()
    for figure in (tmp_path / name / "figures").iterdir():
        assert f"(figures/{figure.name})" in markdown
    assert not list((tmp_path / name / "work").iterdir())
    again = here("tables", name, "--preset", "seconds", "--folder", str(tmp_path / name))
    assert again.returncode == 0 and "cell 1 of" not in again.stderr


class CountingTable(RemadeTable):
    """Three cells that count how often they are measured; the one in `stop` is interrupted."""

    name = "counting"
    title = "Counting"
    presets: ClassVar[Mapping[str, int]] = {"a": 3, "b": 2}

    def __init__(self, stop: str = "") -> None:
        self.stop, self.measured = stop, list[str]()

    def cells(self, preset: str) -> list[TableCell]:
        return [self._cell(f"cell-{i}") for i in range(self.presets[preset])]

    def _cell(self, key: str) -> TableCell:
        def measure(folder: Path, advance: Advance) -> Values:
            if key == self.stop:
                raise KeyboardInterrupt
            self.measured.append(key)
            return {"value": len(key)}

        return TableCell(key, key, {}, measure)

    def content(self, preset: str, results: Results) -> TableContent:
        total = sum(values["value"] for values in results.values())
        return TableContent(f"total {total}", (), [TableSection("all", "All", "")], (), (), ())


def test_finished_cells_are_not_measured_again(tmp_path: Path) -> None:
    first = CountingTable(stop="cell-2")
    with pytest.raises(KeyboardInterrupt):
        make_table(first, "a", tmp_path)
    second = CountingTable()
    report = make_table(second, "a", tmp_path)
    assert (first.measured, second.measured) == (["cell-0", "cell-1"], ["cell-2"])
    assert report.content.sentence == "total 18"
    path = tmp_path / CELLS / "cell-0.json"
    stored = json.loads(path.read_text())
    path.write_text(json.dumps(stored | {"versions": stored["versions"] | {"kernels": "old"}}))
    again = make_table(CountingTable(), "a", tmp_path)
    assert again.versions["kernels"] == f"old, {report.versions['kernels']}"  # as measured


def test_cells_of_another_process_are_left_to_it(tmp_path: Path) -> None:
    table, store, waited = CountingTable(), CellStore(tmp_path), threading.Event()
    taken = table.cells("a")[1]
    (tmp_path / CELLS).mkdir()
    held = lock_folder(store.work(taken))
    held.__enter__()

    def progress(done: float, total: int, what: str) -> None:
        if what == "waiting for another process" and not waited.is_set():
            assert table.measured == ["cell-0", "cell-2"]
            waited.set()
            held.__exit__(None, None, None)

    make_table(table, "a", tmp_path, progress)
    assert waited.is_set() and table.measured == ["cell-0", "cell-2", "cell-1"]


def test_other_folders_are_refused(tmp_path: Path) -> None:
    command = ("tables", "cost", "--preset", "seconds", "--folder")
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "to-ann.txt").write_text("Dear Ann")
    assert "contains to-ann.txt and no table.json" in refused(*command, str(tmp_path / "letters"))
    make_table(CountingTable(), "a", tmp_path / "made")
    message = refused(*command, str(tmp_path / "made"))
    assert "already contains the table counting with the preset a" in message
    (tmp_path / "made" / "table.json").write_text("{")
    assert "this is not the plan of a table" in refused(*command, str(tmp_path / "made"))
    file = tmp_path / "file"
    file.write_text("")
    assert "cannot be written" in refused(*command, str(file / "folder"))


def test_an_interrupted_training_continues_to_the_same_scores(tmp_path: Path) -> None:
    cell = recall.RecallTable().cells("seconds")[1]
    whole = cell.measure(tmp_path / "whole", lambda _: None)
    advances: list[float] = []

    def stop_half_way(part: float) -> None:
        advances.append(part)
        if len(advances) == 2:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(InterruptedByUser):
        cell.measure(tmp_path / "cut", stop_half_way)
    assert cell.measure(tmp_path / "cut", advances.append) == whole
    assert len(advances) == whole["steps"] == 4  # no step was repeated


def cost_values(
    line: cost_rows.LayerType, lengths: tuple[int, ...], extra: float
) -> dict[str, Any]:
    """Measurements that follow the published orders, times n^extra."""

    def points(order: cost_rows.Published | None) -> list[list[float]]:
        return [] if order is None else [[n, 1e-9 * order.order(n, 64) * n**extra] for n in lengths]

    orders = {"forward": line.run, "training": line.run, "step": line.step, "memory": line.space}
    values = {name: points(order) for name, order in orders.items() if order is not None}
    return {**values, "state": [[n, 64.0] for n in lengths]} if line.step else values


def test_costs_as_published_agree_and_others_are_named() -> None:
    table, sizes = cost.CostTable(), cost_rows.PRESETS["minutes"]
    results = {row.mixer: cost_values(row, sizes.lengths, 0.0) for row in sizes.rows}
    content = table.content("minutes", results)
    assert content.sentence.startswith("39 of 39 measured exponents")
    assert len(content.differences) == 1
    results["gla"] = cost_values(cost_rows.ROWS[7], sizes.lengths, 0.5)
    content = table.content("minutes", results)
    assert content.sentence.startswith("35 of 39 measured exponents")
    assert "gla, forward pass: n^1.50 (± 0 %) measured, n^1.00 published" in content.differences[1]
    fourier = cost_rows.FOURIER.exponent(sizes.lengths, 64)
    assert 1.05 < fourier < 1.2  # the logarithm counts


def runs(test: float, seeds: int = 3) -> list[dict[str, Any]]:
    one = {"test": test, "steps": 4, "parameters": 100, "curve": [[2, test], [4, test]]}
    return [{**one, "lengths": {"256": test, "1024": test}} for _ in range(seeds)]


def test_hippo_says_whether_the_seeds_overlap() -> None:
    sizes = hippo.PRESETS["minutes"]
    scores = {variant.name: runs(0.9) for variant in hippo.VARIANTS}
    scores["random, fixed"] = runs(0.6)
    content = hippo.HippoContent(sizes, scores).content()
    assert "60.0 % of the digits" in content.sentence and "90.0 %" in content.sentence
    assert "every seed of HiPPO is above" in content.summary[0]
    scores["random, fixed"][1]["test"] = 0.95
    assert "overlap" in hippo.HippoContent(sizes, scores).content().summary[0]


def test_recall_names_what_differs_from_the_papers() -> None:
    sizes = recall_tasks.PRESETS["minutes"]
    scores = {(task.name, m): runs(0.995, 1) for task in recall_tasks.TASKS for m in sizes.mixers}
    scores["selective_copying-mini", "mamba"] = runs(0.5, 1)
    content = recall_content.RecallContent(sizes, scores).content()
    assert "Mamba" not in content.sentence and "Attention" in content.sentence
    assert "9 of 10 mixers solve it" in content.summary[0]
    said = "\n".join(content.differences)
    assert (
        "mamba on selective copying: 50.0 % here, 99.8 % published; likely because it was" in said
    )
    assert "s4d on selective copying: 99.5 % here, 18.3 % published" in said
    assert "attention on associative recall" not in said  # as published
