"""Tables: formats, separators, headers, missing cells, types of columns; wrong ones in words."""

from __future__ import annotations

import datetime
import gzip
import os
import pickle
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from threefold.data.cells import label_of, number_in
from threefold.data.column_types import describe
from threefold.data.table_formats import is_table, refuse_unreadable, sniff_separator
from threefold.data.tables import Table, read_table
from threefold.errors import AmbiguousError, ThreefoldError, command_line


@pytest.fixture(autouse=True)
def _on_the_command_line() -> Iterator[None]:
    """Messages spell options as a shell takes them."""
    with command_line():
        yield


CUT_GZIP = gzip.compress(b"a,b\n" * 99, mtime=0)[:-9]


def put(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def refused(message: str, source: Any, **options: Any) -> str:
    with pytest.raises(ThreefoldError, match=message) as info:
        read_table(source, **options)
    return str(info.value)


def package(name: str) -> Any:
    return pytest.importorskip(name, reason=f"{name} is not installed")


# --------------------------------------------------------------------------------- formats


@pytest.mark.parametrize("name", ["x.csv", "x.CSV", "x.tsv", "x.Tab", "x.txt", "x.csv.GZ"])
@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
def test_separators_and_suffixes(name: str, separator: str, tmp_path: Path) -> None:
    text = "a,b\n1,x\n2,y\n".replace(",", separator).encode()
    path = put(tmp_path / name, gzip.compress(text, mtime=0) if name.endswith("GZ") else text)
    assert read_table(path).cells == {"a": ["1", "2"], "b": ["x", "y"]}
    assert is_table(path) == (name != "x.txt")


def test_separators_in_quotes_are_text(tmp_path: Path) -> None:
    content = 'text;label\n"a, b, c; d";x\n"e;\nf";y\n'
    table = read_table(put(tmp_path / "x.csv", content))
    assert table.texts("text") == ["a, b, c; d", "e;\nf"] and table.line_numbers == [2, 3]


def test_one_column_of_texts_is_not_cut(tmp_path: Path) -> None:
    table = read_table(put(tmp_path / "x.csv", 'text\n"a; b"\nc\n"d; e; f"\n'))
    assert table.texts("text") == ["a; b", "c", "d; e; f"]


def test_separator_that_excel_declares(tmp_path: Path) -> None:
    table = read_table(put(tmp_path / "x.csv", "sep=;\na;b\n1;2,5\n"))
    assert table.numbers("b").tolist() == [2.5] and table.line_numbers == [3]


@settings(max_examples=100, suppress_health_check=[HealthCheck.too_slow])  # on busy machines
@given(
    st.sampled_from(",;\t|"),
    st.integers(2, 5),
    st.lists(st.lists(st.integers(-99, 99), min_size=5, max_size=5), min_size=1, max_size=9),
)
def test_separator_is_found(separator: str, width: int, rows: list[list[int]]) -> None:
    lines = [separator.join(f"name{i}" for i in range(width))]
    lines += [separator.join(map(str, row[:width])) for row in rows]
    assert sniff_separator(lines, ",") == separator


def test_json_lines(tmp_path: Path) -> None:
    content = '{"a": 1, "b": "x"}\n\n{"b": "y", "c": [1, 2]}\n'
    table = read_table(put(tmp_path / "x.JSONL", content))
    assert table.cells == {"a": [1, None], "b": ["x", "y"], "c": [None, [1, 2]]}
    assert table.line_numbers == [1, 3]
    facts = describe(table)
    assert facts["a"].first_missing == 3 and facts["c"].type == "list"


def test_numpy_files(tmp_path: Path) -> None:
    numbers = np.array([[1.0, 2.0], [np.nan, 4.0]])
    np.save(tmp_path / "x.npy", numbers)
    days = np.array(["2024-01-01", "2024-01-02"], "datetime64[D]")
    np.savez(tmp_path / "x.npz", day=days, load=np.array([1, 2]))
    for source in (tmp_path / "x.npy", numbers):
        table = read_table(source)
        assert list(table.cells) == ["c1", "c2"]
        np.testing.assert_array_equal(table.numbers("c1"), [1, np.nan])
    assert {n: f.type for n, f in describe(read_table(tmp_path / "x.npz")).items()} == {
        "day": "time",
        "load": "number",
    }
    np.save(tmp_path / "x.npy", np.zeros((2, 2, 2)))
    refused(r"x\.npy: an array of 2 × 2 × 2; expected rows × columns", tmp_path / "x.npy")
    np.save(tmp_path / "x.npy", np.array([{}, None]))
    refused(r"x\.npy: an array of Python objects", tmp_path / "x.npy")


def test_mappings_and_other_things() -> None:
    table = read_table({"a": [1, None], 2: np.array([1.5, 2.5]), "t": ["x", "y"]})
    assert table.cells == {"a": [1, None], "2": [1.5, 2.5], "t": ["x", "y"]}
    assert table.line_numbers == [1, 2]
    with pytest.raises(ThreefoldError, match=r"dict, row 2: t is 'y'; expected a number"):
        read_table({"t": [1, "y"]}).numbers("t")
    refused("expected columns of equal length, got a 2, b 1", {"a": [1, 2], "b": [1]})
    refused(r"from a ndarray of shape \(2, 2, 2\); expected a path", np.zeros((2, 2, 2)))
    refused("from a int; expected a path", 3)
    refused("no column 'c'", {"a": [1]}, columns=("c",))
    refused("decimal is ';'", {"a": [1]}, decimal=";")


def test_pandas() -> None:
    pandas = package("pandas")
    times = pandas.date_range("2024-01-01", periods=3, freq="h", name="when")
    frame = pandas.DataFrame({"a": [1, None, 3], "b": ["x", None, "y"]}, index=times)
    frame["whole"] = pandas.array([1, None, 3], dtype="Int64")
    table = read_table(frame)
    assert list(table.cells) == ["when", "a", "b", "whole"]
    assert table.cells["when"][1] == datetime.datetime(2024, 1, 1, 1)
    assert table.cells["b"] == ["x", None, "y"] and table.cells["whole"] == [1, None, 3]
    assert describe(table)["when"].type == "time" and not table.notes
    assert "index" in read_table(frame.set_index("b")).notes[0]


def test_polars() -> None:
    polars = package("polars")
    day = datetime.date(2024, 1, 1)
    table = read_table(polars.DataFrame({"a": [1.5, None], "day": [day, day]}))
    assert table.cells == {"a": [1.5, None], "day": [day, day]} and table.name == "DataFrame"


def test_parquet(tmp_path: Path) -> None:
    pyarrow = package("pyarrow")
    parquet = package("pyarrow.parquet")
    columns = {"a": [1, None], "t": [datetime.datetime(2024, 1, 1), None], "x": ["u", "v"]}
    parquet.write_table(pyarrow.table(columns), tmp_path / "x.PARQUET")
    assert read_table(tmp_path / "x.PARQUET").cells == columns
    refused(r"y\.parquet: not a readable Parquet file", put(tmp_path / "y.parquet", "PAR1"))


def test_excel(tmp_path: Path) -> None:
    openpyxl = package("openpyxl")
    book = openpyxl.Workbook()
    for row in (["day", "load"], [datetime.datetime(2024, 1, 1), 1.5], [None, None], [None, 2]):
        book.active.append(row)
    book.save(tmp_path / "x.xlsx")
    table = read_table(tmp_path / "x.xlsx")
    assert table.cells["load"] == [1.5, 2] and table.line_numbers == [2, 4]
    book.create_sheet("more").append([1])
    book.save(tmp_path / "x.xlsx")
    refused(r"x\.xlsx: 2 sheets \(Sheet, more\); expected one", tmp_path / "x.xlsx")
    refused(r"y\.xlsx: not a readable Excel file", put(tmp_path / "y.xlsx", "PK\x03\x04"))


@pytest.mark.parametrize(
    ("name", "module", "start"),
    [("x.parquet", "pyarrow", "PAR1"), ("x.XLSX", "openpyxl", "PK\x03\x04")],
)
def test_packages_that_are_not_installed(
    name: str, module: str, start: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for hidden in (module, f"{module}.parquet"):
        monkeypatch.setitem(sys.modules, hidden, None)
    message = rf'{name}: .* read with {module}, which is not installed; pip .*threefold\[tables\]"'
    refused(message, put(tmp_path / name, start))


# -------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.csv", b"a,b\n1,2\0\n", r"x\.csv:2: contains a NUL byte"),
        ("x.csv", b"a,b\n1,\xe4\n", r"x\.csv:2: byte 3 of the line, 0xe4, is not valid UTF-8"),
        ("x.csv", b"PK\x03\x04\x14", r"x\.csv: the content is a ZIP archive or an Excel file"),
        ("x.tsv", b"\x1f\x8b\x08", r"x\.tsv: the content is compressed with gzip"),
        ("x.jsonl", b"PAR1xx", r"x\.jsonl: the content is a Parquet file"),
        ("x.csv", b"\xff\xfea\0,", r"x\.csv: begins as UTF-16 text, but is damaged"),
        ("x.csv.gz", b"a,b\n1,2\n", r"x\.csv\.gz: cannot be read \(Not a gzipped file"),
        ("x.csv.gz", CUT_GZIP, r"x\.csv\.gz: not a whole gzip file"),
        ("x.csv", b"a,b\n", r"x\.csv: no rows, only names of columns"),
        ("x.csv", b"\n\n", r"x\.csv: the file is empty"),
        ("x.csv", b"a,b,a\n1,2,3\n", r"x\.csv:1: two columns are called 'a'"),
        ("x.jsonl", b'{"a": "\\ud800"}\n', r"x\.jsonl:1: \\ud800 is half of a character"),
        ("x.jsonl", b'{"a": 1, "a": 2}\n', r"x\.jsonl:1: not JSON \(the name 'a' occurs twice"),
        ("x.jsonl", b"[" * 100_000, r"x\.jsonl:1: not JSON"),
        ("x.zip", b"", r"x\.zip: \.zip is an archive; unpack it first"),
        ("x.csv.bz2", b"", r"x\.csv\.bz2: \.bz2 is compressed"),
        ("x.XZ", b"", r"x\.XZ: \.xz is compressed"),
        ("x.pkl", b"", r"x\.pkl: \.pkl is a pickle"),
        ("x.xls", b"", r"x\.xls: \.xls is a spreadsheet"),
        ("x.json", b"[]", r"x\.json: \.json is not one object per line"),
        ("x", b"a,b\n1,2\n", r"x: no suffix: unknown table format"),
    ],
)  # fmt: skip
def test_files_that_are_no_tables(name: str, content: bytes, message: str, tmp_path: Path) -> None:
    refused(message, put(tmp_path / name, content))


def test_what_is_not_text_is_refused(tmp_path: Path) -> None:
    for name, content in (("x.zip", b""), ("notes.txt", b"PK\x03\x04"), ("x.TXT", b"\x93NUMPY")):
        with pytest.raises(ThreefoldError, match=rf"{name}: "):
            refuse_unreadable(put(tmp_path / name, content))
    refuse_unreadable(put(tmp_path / "x.txt", "good"))


def test_pipes_devices_and_folders(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.csv")
    refused(r"pipe\.csv: not a regular file; .*`threefold stream`", tmp_path / "pipe.csv")
    (tmp_path / "zero.csv").symlink_to("/dev/zero")
    refused(r"zero\.csv: not a regular file", tmp_path / "zero.csv")
    (tmp_path / "folder.csv").mkdir()
    refused(r"folder\.csv: a folder; expected a file", tmp_path / "folder.csv")
    refused(r"absent\.csv: cannot be read \(No such file", tmp_path / "absent.csv")


def test_file_names_that_are_not_utf8(tmp_path: Path) -> None:
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.csv"))
    refused(r"cannot be read", path).encode()
    assert refused("two columns", put(path, "a,a\n1,2\n")).encode()
    put(path, "a\nx\ny\n")
    with pytest.raises(ThreefoldError, match=r"\\udcff\.csv:2: a is 'x'"):
        read_table(path).numbers("a")


# ---------------------------------------------------------------------------------- header


@pytest.mark.parametrize(
    "content",
    ["1,2\n3,4\n", "2019,2020\n1.5,2.5\n", "good film,1\nbad film,0\n", "a,good\nb,bad\nc,good\n",
     "2024-01-01,x\n2024-01-02,y\n"],
)  # fmt: skip
def test_first_lines_that_may_be_data_are_asked_about(content: str, tmp_path: Path) -> None:
    path = put(tmp_path / "x.csv", content)
    with pytest.raises(AmbiguousError, match="is the first line a header or data") as info:
        read_table(path)
    assert info.value.options == ["--set data.header=true", "--set data.header=false"]
    assert str(info.value).splitlines()[-1] == "  --set data.header=false"
    assert str(pickle.loads(pickle.dumps(info.value))) == str(info.value)
    lines = content.count("\n")
    table = read_table(path, header=False)
    assert list(table.cells) == ["c1", "c2"] and len(table) == lines
    assert len(read_table(path, header=True)) == lines - 1


@pytest.mark.parametrize("content", ["x,y\n1,2\n", "id,2020\na,x\nb,y\n", "name,text\na,b\n"])
def test_headers_that_are_clear(content: str, tmp_path: Path) -> None:
    assert read_table(put(tmp_path / "x.csv", content)).line_numbers[0] == 2


def test_columns_without_names(tmp_path: Path) -> None:
    table = read_table(put(tmp_path / "x.csv", ",load,\n0,1.5,\n1,2.5,\n"))
    assert list(table.cells) == ["c1", "load", "c3"]
    assert table.notes[0] == "column 1 has no name in the first line; it is called c1"
    assert describe(table)["c3"].type == "empty"


# ----------------------------------------------------------------------------------- cells


MISSING = ["", " ", "NA", "N/A", "NaN", "nan", "null", "None", "-", "?"]


@pytest.mark.parametrize("cell", MISSING)
@pytest.mark.parametrize("row", [0, 1, 2])
def test_missing_cells_wherever_they_stand(cell: str, row: int, tmp_path: Path) -> None:
    cells = ["1", "2", "3"]
    cells[row] = cell
    table = read_table(put(tmp_path / "x.csv", "a,b\n" + "".join(f"{c},7\n" for c in cells)))
    facts = describe(table)["a"]
    assert facts.type == "number" and facts.missing == 1 and facts.first_missing == row + 2
    assert np.flatnonzero(np.isnan(table.numbers("a"))).tolist() == [row]
    with pytest.raises(ThreefoldError, match=rf"x\.csv:{row + 2}: a is missing"):
        table.labels("a")


def test_marks_of_missing_numbers_are_texts_in_a_text(tmp_path: Path) -> None:
    rows = ["a long text", "-", "NA", "", "another text"]
    table = read_table(put(tmp_path / "x.csv", "a,b\n" + "".join(f"{c},7\n" for c in rows)))
    assert table.texts("a", allow_empty=True) == rows
    with pytest.raises(ThreefoldError, match=r"x\.csv:5: a is missing"):
        table.texts("a")


@pytest.mark.parametrize("cell", ["1e300", "-inf", "Infinity", "1,001", "1 00", "oops"])
@pytest.mark.parametrize("row", [0, 3])
def test_odd_cells_do_not_drop_a_column(cell: str, row: int, tmp_path: Path) -> None:
    cells = ["1.5", "2", "3", "4"]
    cells[row] = f'"{cell}"'
    table = read_table(put(tmp_path / "x.csv", "a,b\n" + "".join(f"{c},7\n" for c in cells)))
    facts = describe(table)["a"]
    assert facts.type == "number" and facts.odd == [(row + 2, cell)] and facts.odd_count == 1
    with pytest.raises(ThreefoldError, match=rf"x\.csv:{row + 2}: a is '{cell}'; "):
        table.numbers("a")


def test_thousands_separators_are_not_guessed(tmp_path: Path) -> None:
    table = read_table(put(tmp_path / "x.csv", "a;b\n1,001;1\n2,002;2\n"))
    assert describe(table)["a"].type == "number" and describe(table)["a"].odd_count == 2
    with pytest.raises(ThreefoldError, match=r"a decimal comma \(.*=,\), or .* thousands \(.*=.\)"):
        table.numbers("a")
    assert read_table(tmp_path / "x.csv", decimal=",").numbers("a").tolist() == [1.001, 2.002]
    assert read_table(tmp_path / "x.csv", decimal=".").numbers("a").tolist() == [1001, 2002]


@pytest.mark.parametrize(
    ("cells", "numbers"),
    [
        (["1,234.5", "1,001", "7"], [1234.5, 1001, 7]),  # the first one shows how
        (["1,234,567", "1,001", "7"], [1234567, 1001, 7]),
        (["1.234.567", "1.001", "7"], [1234567, 1001, 7]),
        (["1 000", "2'000.5", "7"], [1000, 2000.5, 7]),
        (["5.0%", "12 %", "-1%"], [5, 12, -1]),
        (["$1,234.50", "-$5", "$ 7"], [1234.5, -5, 7]),
        (["1 000,5 €", "7 €", "-8,25 €"], [1000.5, 7, -8.25]),
    ],
)
def test_units_and_thousands_that_cannot_be_mistaken(
    cells: list[str], numbers: list[float], tmp_path: Path
) -> None:
    table = read_table({"a": cells})
    assert describe(table)["a"].type == "number" and not describe(table)["a"].odd_count
    assert table.numbers("a").tolist() == numbers
    has_unit = any(sign in cells[0] for sign in "%$€")
    assert len(table.notes) == has_unit


@pytest.mark.parametrize(("cell", "other"), [("5%", "0.05"), ("$5", "€5")])
def test_columns_of_several_units_are_refused(cell: str, other: str) -> None:
    with pytest.raises(
        ThreefoldError, match=re.escape(f"row 2: a is '{other}', but '{cell}' above")
    ):
        read_table({"a": [cell, other]}).numbers("a")


@pytest.mark.parametrize("content", ["a;b\n1,5;x\n-2;y\n", 'a,b\n"1,5",x\n-2,y\n', "a\n1,5\n-2\n"])
def test_decimal_commas(content: str, tmp_path: Path) -> None:
    table = read_table(put(tmp_path / "x.tsv", content))
    assert table.numbers("a").tolist() == [1.5, -2] and describe(table)["a"].minimum == -2


def test_decimal_commas_of_other_columns_tell(tmp_path: Path) -> None:
    table = read_table(put(tmp_path / "x.csv", "a;b;c\n1,5;1,001;1.001\n2,5;2,002;2.002\n"))
    assert table.numbers("b").tolist() == [1.001, 2.002]
    with pytest.raises(ThreefoldError, match=r"x\.csv:2: c is '1\.001'; expected a number without"):
        table.numbers("c")


@settings(max_examples=200)
@given(st.floats(allow_nan=False, allow_infinity=False))
def test_numbers_as_python_writes_them(number: float) -> None:
    assert number_in(repr(number)) == number == number_in(repr(number).replace(".", ","), ",")


@pytest.mark.parametrize("cell", ["1_000", "٣", "0x10", "1e", "--1", "1.2.3", True, [1], "½"])
def test_what_python_or_people_may_read_as_numbers(cell: object) -> None:
    assert number_in(cell) is None


def test_labels_are_names_not_cells() -> None:
    assert {label_of(cell) for cell in (" yes", "yes ", "yes")} == {"yes"}
    assert {label_of(cell) for cell in (1, "1", 1.0)} == {"1"}
    assert {label_of(cell) for cell in (True, "True", "true")} == {"true"}
    table = read_table({"label": ["yes", "yes ", "no", True, 1]})
    assert table.labels("label") == ["yes", "yes", "no", "true", "1"]
    assert describe(table)["label"].counts[0] == ("yes", 2)


# ----------------------------------------------------------------------------------- types


def types_of(table: Table) -> dict[str, str]:
    return {name: facts.type for name, facts in describe(table).items()}


def test_types() -> None:
    count = 40
    table = read_table(
        {
            "number": [i * i / 2 for i in range(count)],
            "counter": list(range(count)),
            "half hours": [0.5 * i for i in range(count)],
            "constant": [7] * count,
            "label": [("good", "bad ")[i % 2] for i in range(count)],
            "class": [i % 3 for i in range(count)],
            "text": [f"This is sentence number {i}." for i in range(count)],
            "day": [f"2024-01-{i % 28 + 1:02d}" for i in range(count)],
            "empty": [None, "NA"] * (count // 2),
        }
    )
    facts = describe(table)
    assert types_of(table) == {
        "number": "number", "counter": "number", "half hours": "number", "constant": "number",
        "label": "category", "class": "number", "text": "text", "day": "time", "empty": "empty",
    }  # fmt: skip
    assert [name for name in facts if facts[name].index] == ["counter", "half hours"]
    assert [name for name in facts if facts[name].whole] == ["counter", "constant", "class"]
    assert [name for name in facts if facts[name].constant] == ["constant"]
    assert facts["label"].counts == [("good", 20), ("bad", 20)] and facts["label"].distinct == 2
    assert facts["class"].counts == [("0", 14), ("1", 13), ("2", 13)]
    assert facts["text"].distinct == count and facts["text"].counts == []
    assert (facts["number"].minimum, facts["number"].maximum) == (0, 760.5)
    assert facts["empty"].missing == count and facts["empty"].first_missing == 1


@pytest.mark.parametrize(
    ("name", "cells", "kind"),
    [
        ("x", [20240101, 20240102, 20240103], "time"),
        ("x", ["20240101", "20240102", "20240103"], "time"),
        ("x", [20240103, 20240101, 20240102], "number"),
        ("date", [20240103, 20240101, 20240102], "time"),
        ("x", [20240101, 20240102, 20240199], "number"),
        ("timestamp", [1700000000, 1700000060], "time"),
        ("x", [1700000000, 1700000060], "number"),
        ("created_time", [1700000000000, 1700000000123], "time"),
        ("time", [0.0, 0.1, 0.2], "number"),
        ("time", [1e300, "1e300"], "number"),
        ("x", [[1], 2, 3, 4], "number"),
        ("x", [[1], {"a": 2}, "3"], "list"),
        ("year", [1999, 1998, 1999], "time"),
        ("update", [1999, 2000, 2001], "number"),
        ("time", [1500, 1200, 1800], "number"),
        ("x", ["31.12.2023", "01.01.2024"], "time"),
        ("x", ["31.12.2023 23:30", None], "time"),
        ("x", ["12/31/2023", "1/1/2024"], "time"),
        ("x", ["01/02/2024", "02/03/2024"], "time"),
        ("x", ["Jan 2024", "Feb 2024"], "time"),
        ("x", ["2024-01-01T00:00:00Z", "2024-01-01T01:00:00.5Z"], "time"),
        ("x", ["oops", "2024-01-01", "2024-01-02", "2024-01-03"], "time"),
        ("x", ["oops", *[datetime.date(2024, 1, day) for day in (1, 2, 3)]], "time"),
        ("timestamp", [1700000000.25, 1700000000.5], "time"),
        ("x", ["2024-13-01", "2024-14-01"], "category"),
        ("x", ["1.2.3", "1.2.4"], "category"),
    ],
)
def test_times(name: str, cells: list[Any], kind: str) -> None:
    assert describe(read_table({name: cells}))[name].type == kind
