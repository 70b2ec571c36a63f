"""Files as users have them: odd encodings and line ends are read; what is not data is refused.

A refusal is one message that names the file, says what is wrong and what to do.
"""

from __future__ import annotations

import errno
import io
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from threefold import ThreefoldError
from threefold.cli import main
from threefold.tasks.user_data import ReadSettings, user_task

ROWS = "".join(f"{math.sin(i / 3):.4f},{math.cos(i / 5):.4f}\n" for i in range(60))
TABLE = f"flow,load\n{ROWS}"

READ = {
    "line ends of old Macs": TABLE.replace("\n", "\r").encode(),
    "line ends of Windows": TABLE.replace("\n", "\r\n").encode(),
    "UTF-16, little end first": TABLE.encode("utf-16"),
    "UTF-16, big end first": b"\xfe\xff" + TABLE.encode("utf-16-be"),
    "a mark of UTF-8": b"\xef\xbb\xbf" + TABLE.encode(),
}


@pytest.mark.parametrize("name", READ)
def test_encodings_and_line_ends_of_tables(name: str, tmp_path: Path) -> None:
    (tmp_path / "plain.csv").write_text(TABLE)
    (tmp_path / "x.csv").write_bytes(READ[name])
    first, second = (
        user_task(tmp_path / file, ReadSettings(target="flow")) for file in ("plain.csv", "x.csv")
    )
    assert first.preprocessing() == second.preprocessing()  # type: ignore[misc]


def pickled() -> bytes:
    file = io.BytesIO()
    np.save(file, np.array([{"a": 1}], object))
    return file.getvalue()


# By the name of a file: its content, and what the message has after the name of the file.
REFUSED: dict[str, tuple[bytes, str]] = {
    "text.npy": (TABLE.encode(), "not a numpy array, .* looks like text; .* rename it"),
    "text.npz": (TABLE.encode(), "not an archive of numpy arrays, .* rename it"),
    "objects.npy": (pickled(), "Python objects, which could run any code when read; save numbers"),
    "text.parquet": (TABLE.encode(), "not a Parquet file, .* looks like text"),
    "text.xlsx": (TABLE.encode(), "not an Excel file, .* looks like text"),
    "zip.npy": (b"PK\x03\x04....", "not a numpy array, .* a ZIP archive .*; rename it"),
    "utf16.txt": ("some text".encode("utf-16"), "UTF-16 text; save it as UTF-8, e.g. iconv"),
    "unmarked.csv": (TABLE.encode("utf-16-le"), "NUL byte; .* save it so if it is UTF-16"),
    "nul.csv": (TABLE.replace("0.0", "\0").encode(), "NUL byte; expected text in UTF-8"),
    "latin1.csv": (f"Straße,b\n{ROWS}".encode("latin-1"), "0xdf, is not valid UTF-8; .* iconv"),
    "header.csv": (b"flow,load\n", r"no rows, only .* \(flow, load\); expected rows below"),
    "twice.csv": (f"flow,flow\n{ROWS}".encode(), "two columns are called 'flow' .* rename one"),
    "numbers.ts": (b"@classLabel true a b\n@data\n1,inf:a\n", "not finite; a missing one is ?"),
    **{f"empty{suffix}": (b"", "the file is empty") for suffix in
       (".csv", ".txt", ".jsonl", ".npy", ".parquet", ".xlsx", ".ts", ".conll")},
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_data_is_refused_in_one_message(
    name: str, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    content, message = REFUSED[name]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ThreefoldError, match=rf"^{name}[:\d]* .*{message}"):
        user_task(Path(name), ReadSettings())
    with pytest.raises(SystemExit) as ended:
        main(["train", name, "--steps", "1"])
    said = capsys.readouterr()
    assert ended.value.code == 2 and said.err.count("\n") == 1 and "pickle" not in said.err
    assert os.listdir(tmp_path) == [name], "nothing is written"


def loop(path: Path) -> None:
    path.symlink_to(path.name)


def dangling(path: Path) -> None:
    path.symlink_to("nothing.csv")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (loop, "a link to x.csv, which does not exist or leads back"),
        (dangling, "a link to nothing.csv, which does not exist"),
        (Path.mkdir, "a folder without a file that can be read; expected texts"),
    ],
)
def test_names_that_are_not_files(
    make: Callable[[Path], None], message: str, tmp_path: Path, capsys: Any
) -> None:
    make(tmp_path / "x.csv")
    with pytest.raises(SystemExit):
        main(["data", "check", str(tmp_path / "x.csv")])
    assert f"x.csv: {message}" in capsys.readouterr().err


def test_a_file_without_permission_to_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever runs the tests may be allowed to read everything."""

    def refuse(path: Path, mode: str = "r") -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    (tmp_path / "x.csv").write_text(TABLE)
    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(ThreefoldError, match=r"x.csv: cannot be read \(Permission denied\)"):
        user_task(tmp_path / "x.csv", ReadSettings(target="flow"))


@pytest.mark.parametrize(("suffix", "what"), [("wav", "a WAV file"), ("png", "an image")])
def test_sounds_and_images_that_are_none_are_named(suffix: str, what: str, tmp_path: Path) -> None:
    for number in range(20):
        folder = tmp_path / "x" / "ab"[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{number}.{suffix}").write_text("something else")
    with pytest.raises(ThreefoldError, match=rf"a/0.{suffix}: not {what}.*; convert it$"):
        user_task(tmp_path / "x", ReadSettings())


def test_an_empty_parquet_table(tmp_path: Path) -> None:
    arrow, parquet = (pytest.importorskip(name) for name in ("pyarrow", "pyarrow.parquet"))
    parquet.write_table(
        arrow.table({"flow": arrow.array([], arrow.float64())}), tmp_path / "x.parquet"
    )
    with pytest.raises(ThreefoldError, match=r"x.parquet: no rows, only .* \(flow\)"):
        user_task(tmp_path / "x.parquet", ReadSettings())


def test_question_marks_of_ts_files_are_missing_values(tmp_path: Path) -> None:
    lines = ["@missing true", "@classLabel true down up", "@data"]
    lines += [f"{i},?,{i % 7}:{'up' if i % 2 else 'down'}" for i in range(40)]
    (tmp_path / "x.ts").write_text("\n".join(lines) + "\n")
    task = user_task(tmp_path / "x.ts", ReadSettings())
    assert "40 values" in dict(task.description.facts)["missing"]
    assert task.rows("train", [0]).inputs[0, :, 1].tolist() == [0, 1, 0]  # the mask
    with pytest.raises(ThreefoldError, match="missing"):
        user_task(tmp_path / "x.ts", ReadSettings(missing="refuse"))


def test_names_of_columns_may_be_anything(tmp_path: Path) -> None:
    header = 'class,"my, flow",from load,import'
    rows = "".join(f"{math.sin(i)},{math.cos(i)},{math.sin(2 * i)},{i % 7}\n" for i in range(60))
    (tmp_path / "x.csv").write_text(f"{header}\n{rows}")
    settings = ReadSettings(kind="regressor", target='"my, flow"', features="from load,import")
    task = user_task(tmp_path / "x.csv", settings)
    assert task.preprocessing().roles.label == "my, flow"  # type: ignore[misc]
    assert task.preprocessing().roles.features == ("from load", "import")  # type: ignore[misc]


def test_a_row_of_several_lines_is_where_it_begins(tmp_path: Path) -> None:
    rows = "".join(f'"dear\nfriend {i}",{"ab"[i % 2]}\n' for i in range(30))
    (tmp_path / "x.csv").write_text(f"text,label\n{rows}")
    task = user_task(tmp_path / "x.csv", ReadSettings(), split=False)
    assert task.raw is not None and task.raw("test", 1)[0].endswith("x.csv:4")
