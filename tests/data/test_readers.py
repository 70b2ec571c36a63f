"""Readers: what they read, and one message with file and line for everything that is wrong."""

from __future__ import annotations

import gzip
import os
import struct
import wave
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import fft, signal

from threefold import ThreefoldError
from threefold.data import readers
from threefold.data.audio import mfcc, read_wav, resample
from threefold.data.images import read_idx, read_image
from threefold.data.readers import (
    read_lines,
    read_pairs,
    read_text,
    read_text_chunks,
    text_files,
)
from threefold.data.tables import read_labelled, read_table
from threefold.data.ts_files import read_ts, read_ucr


def put(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


# ---------------------------------------------------------------------------------- text


def test_folders_are_read_in_the_order_of_names(tmp_path: Path) -> None:
    for name in ("b.txt", "a/z.txt", "a.txt", "c.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        put(tmp_path / name, name)
    names = [path.relative_to(tmp_path).as_posix() for path in text_files(tmp_path)]
    assert names == ["a.txt", "a/z.txt", "b.txt"]
    with pytest.raises(ThreefoldError, match=r"contains no file \*\.py"):
        text_files(tmp_path, ["*.py"])
    with pytest.raises(ThreefoldError, match="no such folder"):
        text_files(tmp_path / "nowhere")


@pytest.mark.parametrize("read", [read_text, lambda path: list(read_lines(path)), read_wav,
                                  read_idx, lambda path: list(read_text_chunks(path)), read_image,
                                  read_ts, read_ucr, read_pairs])  # fmt: skip
def test_empty_and_absent_files(read: object, tmp_path: Path) -> None:
    assert callable(read)
    with pytest.raises(ThreefoldError, match=r"x\.csv: the file is empty"):
        read(put(tmp_path / "x.csv", ""))
    with pytest.raises(ThreefoldError, match=r"y\.csv: cannot be read \(No such file"):
        read(tmp_path / "y.csv")


@pytest.mark.parametrize(
    "read",
    [read_text, lambda path: list(read_lines(path)), lambda path: list(read_text_chunks(path))],
)
def test_bad_utf8_is_named_by_line(read: object, tmp_path: Path) -> None:
    assert callable(read)
    path = put(tmp_path / "x.txt", b"good\ngo\xffod\n")
    with pytest.raises(
        ThreefoldError, match=r"x\.txt:2: byte 3 of the line, 0xff, is not valid UTF-8"
    ):
        read(path)
    assert read_text(path, "latin-1") == "good\ngoÿod\n"


@pytest.mark.parametrize(
    "read",
    [read_text, lambda path: list(read_lines(path)), lambda path: list(read_text_chunks(path))],
)
def test_pipes_and_devices_are_refused(read: object, tmp_path: Path) -> None:
    assert callable(read)
    os.mkfifo(tmp_path / "pipe.txt")
    for path in (tmp_path / "pipe.txt", Path("/dev/zero")):
        with pytest.raises(ThreefoldError, match=r"not a regular file; .*`threefold stream`"):
            read(path)


def test_one_byte(tmp_path: Path) -> None:
    path = put(tmp_path / "x.txt", "a")
    assert read_text(path) == "a" and list(read_text_chunks(path)) == ["a"]
    assert list(read_lines(path)) == [(1, "a")]
    for kind, read in ((".wav", read_wav), (".png", read_image), (".ts", read_ts)):
        with pytest.raises(ThreefoldError, match=rf"x\{kind}"):
            read(put(tmp_path / f"x{kind}", "a"))


@settings(max_examples=200)
@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=60), st.integers(4, 20))
def test_pieces_are_the_text(text: str, size: int) -> None:
    import tempfile

    if not text:
        return
    with tempfile.TemporaryDirectory() as folder:
        path = put(Path(folder) / "x", text)
        assert "".join(read_text_chunks(path, size)) == text


def test_a_line_without_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = put(tmp_path / "x.csv", b"a,b\n" + b"x" * (1 << 20))
    monkeypatch.setattr(readers, "LONGEST_LINE", 1 << 16)
    with pytest.raises(ThreefoldError, match=r"x\.csv:2: line longer than"):
        read_table(path)
    assert sum(map(len, read_text_chunks(path, 1 << 12))) == (1 << 20) + 4


# -------------------------------------------------------------------------------- tables


def test_tables(tmp_path: Path) -> None:
    table = read_table(put(tmp_path / "x.csv", '\ufeffa,b\n1,"x, y"\n\n2,"two\nlines"\n'))
    assert table.column("b") == ["x, y", "two\nlines"] and table.numbers("a").tolist() == [1, 2]
    table = read_table(put(tmp_path / "x.tsv", "a\tb\n1\tx\n"))
    assert table.cells == {"a": ["1"], "b": ["x"]}
    table = read_table(put(tmp_path / "x.jsonl", '{"b": "x", "a": 1.5}\n\n{"a": 2, "b": "y"}\n'))
    assert table.numbers("a").tolist() == [1.5, 2] and table.texts("b") == ["x", "y"]
    assert table.line_numbers == [1, 3]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.csv", "a,b\n1,2\n3\n", r"x\.csv:3: 1 cells, expected 2 \(a, b\)"),
        ("x.csv", "a,b\n1,2,3\n", r"x\.csv:2: 3 cells, expected 2"),
        ("x.csv", "a,a\n1,2\n", r"x\.csv:1: two columns are called 'a'"),
        ("x.csv", "a,b\n", r"x\.csv: no rows, only names of columns"),
        ("x.csv", 'a,b\n1,"2\n', r"x\.csv:2: not a table"),
        ("x.jsonl", '{"a": 1}\n{"a": \n', r"x\.jsonl:2: not JSON"),
        ("x.jsonl", "[1]\n", r"x\.jsonl:1: a JSON list; expected an object"),
        ("x.dat", "a,b\n", r"x\.dat: \.dat: unknown table format; expected one of \.csv"),
    ],
)
def test_tables_that_are_none(name: str, content: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ThreefoldError, match=message):
        read_table(put(tmp_path / name, content))


@pytest.mark.parametrize("cell", ["nan", "", "NaN", "NA", "-"])
def test_missing_cells_of_numbers(cell: str, tmp_path: Path) -> None:
    table = read_table(put(tmp_path / "x.csv", f"a,b\n1,2\n3,{cell}\n"))
    assert np.isnan(table.numbers("b")).tolist() == [False, True]
    with pytest.raises(ThreefoldError, match=rf"x\.csv:3: b is '{cell}'; expected a finite number"):
        table.complete_numbers("b")


@pytest.mark.parametrize(
    ("cell", "why"),
    [("inf", "absurd"), ("1e999", "absurd"), ("-2e30", "absurd"), ("abc", "expected a number"),
     ("1_000", "expected a number"), ("1 0", "expected a number")],
)  # fmt: skip
def test_cells_that_are_no_numbers(cell: str, why: str, tmp_path: Path) -> None:
    table = read_table(put(tmp_path / "x.csv", f"a,b\n1,2\n3,{cell}\n"))
    with pytest.raises(ThreefoldError, match=rf"x\.csv:3: b is '{cell}'; .*{why}"):
        table.numbers("b")
    with pytest.raises(ThreefoldError, match=r"no column 'c'; known: a, b"):
        table.column("c")


def test_labels_must_be_there(tmp_path: Path) -> None:
    path = put(tmp_path / "x.csv", "text,label\nhello,good\nbye,\n")
    with pytest.raises(ThreefoldError, match=r"x\.csv:3: label is missing"):
        read_labelled(path)
    path = put(tmp_path / "x.jsonl", '{"text": "a", "label": null}\n')
    with pytest.raises(ThreefoldError, match=r"x\.jsonl:1: label is missing"):
        read_labelled(path)
    path = put(tmp_path / "x.csv", "text,label\nhello,good\nbye,bad\n")
    assert read_labelled(path) == (["hello", "bye"], ["good", "bad"])


def test_parallel_text(tmp_path: Path) -> None:
    source, target = put(tmp_path / "x.en", "one\ntwo\n"), put(tmp_path / "x.de", "eins\nzwei\n")
    expected = [("one", "eins"), ("two", "zwei")]
    assert read_pairs(source, target) == expected
    assert read_pairs(put(tmp_path / "x.tsv", "one\teins\ntwo\tzwei\n")) == expected
    with pytest.raises(ThreefoldError, match=r"x\.tsv:2: 1 columns; expected two"):
        read_pairs(put(tmp_path / "x.tsv", "one\teins\ntwo\n"))
    put(source, "one\ntwo\nthree\n")
    with pytest.raises(
        ThreefoldError, match=r"has 3 lines, .* has 2; expected the same number: from line 3 on"
    ):
        read_pairs(source, target)
    put(target, "eins\n\ndrei\n")
    with pytest.raises(ThreefoldError, match=r"x\.de:2: the line is empty"):
        read_pairs(source, target)


# --------------------------------------------------------------------------------- sound

WAVES = np.sin(np.arange(1000) / 7) * 0.8


def wav(path: Path, kind: int, bits: int, data: bytes, channels: int = 1, rate: int = 8000) -> Path:
    frame = channels * bits // 8
    form = struct.pack("<HHIIHH", kind, channels, rate, rate * frame, frame, bits)
    body = b"WAVEfmt " + struct.pack("<I", len(form)) + form
    body += b"LIST\x03\x00\x00\x00abc\x00data" + struct.pack("<I", len(data)) + data
    return put(path, b"RIFF" + struct.pack("<I", len(body)) + body)


@pytest.mark.parametrize(
    ("kind", "bits", "error"),
    [(1, 8, 1 / 100), (1, 16, 1e-4), (1, 24, 1e-6), (1, 32, 1e-7), (3, 32, 1e-7), (3, 64, 1e-7)],
)
def test_wav(kind: int, bits: int, error: float, tmp_path: Path) -> None:
    if kind == 3:
        data = WAVES.astype(f"<f{bits // 8}").tobytes()
    elif bits == 8:
        data = (np.round(WAVES * 128) + 128).astype(np.uint8).tobytes()
    else:
        whole = np.round(WAVES * 2.0 ** (bits - 1)).astype("<i4")
        data = whole.view(np.uint8).reshape(-1, 4)[:, : bits // 8].tobytes()
    sound = read_wav(wav(tmp_path / "x.wav", kind, bits, data))
    assert sound.rate == 8000 and np.abs(sound.samples - WAVES).max() < error


def test_wav_of_the_standard_library(tmp_path: Path) -> None:
    stereo = np.stack([WAVES, -WAVES / 2], 1)
    with wave.open(str(tmp_path / "x.wav"), "wb") as file:
        file.setnchannels(2)
        file.setsampwidth(2)
        file.setframerate(16000)
        file.writeframes((stereo * 32767).astype("<i2").tobytes())
    sound = read_wav(tmp_path / "x.wav", rate=16000)
    assert np.abs(sound.samples - WAVES / 4).max() < 1e-4
    with pytest.raises(ThreefoldError, match=r"x\.wav: 16000 samples per second, expected 8000"):
        read_wav(tmp_path / "x.wav", rate=8000)
    content = (tmp_path / "x.wav").read_bytes()
    with pytest.raises(ThreefoldError, match=r"truncated: 'data' should have 4000 bytes, has 3990"):
        read_wav(put(tmp_path / "y.wav", content[:-10]))
    with pytest.raises(ThreefoldError, match="unsupported encoding 6 with 8 bits"):
        read_wav(wav(tmp_path / "y.wav", 6, 8, b"ab"))
    with pytest.raises(ThreefoldError, match="not finite"):
        read_wav(wav(tmp_path / "y.wav", 3, 32, np.array([np.nan], "<f4").tobytes()))
    with pytest.raises(ThreefoldError, match="damaged: 0 samples"):
        read_wav(wav(tmp_path / "y.wav", 1, 16, b""))


@pytest.mark.parametrize(("old", "new"), [(16000, 8000), (8000, 16000), (44100, 16000), (3, 7)])
@pytest.mark.parametrize("count", [1, 5, 1000, 4321])
def test_resampling_is_scipys(old: int, new: int, count: int) -> None:
    samples = np.random.default_rng(0).standard_normal(count)
    divisor = np.gcd(old, new)
    expected = signal.resample_poly(samples, new // divisor, old // divisor)
    given = resample(samples, old, new)
    assert given.shape == expected.shape
    assert np.abs(given - expected).max() < 1e-6 * max(1, np.abs(expected).max())


def test_resampling_keeps_what_it_can() -> None:
    time = np.arange(8000) / 8000
    low, high = (np.sin(2 * np.pi * f * time) for f in (440, 3500))
    half = resample(low + high, 8000, 4000)[100:-100]
    assert np.abs(half - low[::2][100:-100]).max() < 2e-2  # the high tone is gone, not folded
    assert np.array_equal(resample(low, 8000, 8000), low.astype("f4"))


def test_mfcc_by_its_definition() -> None:
    samples = np.random.default_rng(0).standard_normal(1600)
    given = mfcc(samples, 16000, coefficients=13, mels=20)
    assert given.shape == (17, 13)
    assert mfcc(np.zeros(16000), 16000).shape == (161, 20)
    frame = np.concatenate([samples[100:0:-1], samples[:100]]) * signal.get_window("hann", 200)
    power = np.abs(np.fft.fft(frame)[:101]) ** 2
    top = 2595 * np.log10(1 + 8000 / 700)
    energies = []
    for band in range(20):
        low, centre, high = (700 * (10 ** (top * (band + i) / 21 / 2595) - 1) for i in range(3))
        weights = np.interp(np.arange(101) * 80, [low, centre, high], [0, 1, 0])
        energies.append(np.log(weights @ power + 1e-6))
    expected = fft.dct(energies, norm="ortho")[:13]
    assert np.abs(given[0] - expected).max() < 1e-4


# ------------------------------------------------------------------------ pictures, series


def test_pictures(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    pixels = np.arange(60, dtype=np.uint8).reshape(4, 5, 3)
    image.fromarray(pixels).save(tmp_path / "x.png")
    assert np.array_equal(read_image(tmp_path / "x.png"), pixels)
    assert read_image(tmp_path / "x.png", "L").shape == (4, 5)
    content = (tmp_path / "x.png").read_bytes()
    with pytest.raises(ThreefoldError, match=r"x\.png: not an image, or damaged"):
        read_image(put(tmp_path / "x.png", content[:-30]))


def test_images_of_sixteen_bits_and_turned_ones(tmp_path: Path) -> None:
    pillow = pytest.importorskip("PIL.Image")
    deep = np.arange(0, 1 << 16, 1 << 12, dtype=np.uint16).reshape(2, 8)
    pillow.fromarray(deep).save(tmp_path / "deep.png")
    assert np.array_equal(read_image(tmp_path / "deep.png", "L"), (deep >> 8).astype(np.uint8))
    assert np.array_equal(read_image(tmp_path / "deep.png")[..., 2], (deep >> 8).astype(np.uint8))
    pillow.fromarray(deep / np.float32(1 << 16)).save(tmp_path / "real.tif")
    with pytest.raises(ThreefoldError, match="decimal point; convert it to 8 or 16 bits"):
        read_image(tmp_path / "real.tif")
    turned = pillow.fromarray((deep >> 8).astype(np.uint8))
    exif = turned.getexif()
    exif[0x0112] = 6  # held upright, stored lying down
    turned.save(tmp_path / "turned.png", exif=exif)
    assert read_image(tmp_path / "turned.png").shape == (8, 2, 3)


def test_idx(tmp_path: Path) -> None:
    content = bytes([0, 0, 8, 2, 0, 0, 0, 2, 0, 0, 0, 3]) + bytes(range(6))
    assert read_idx(put(tmp_path / "x", content)).tolist() == [[0, 1, 2], [3, 4, 5]]
    assert read_idx(put(tmp_path / "x.gz", gzip.compress(content))).shape == (2, 3)
    with pytest.raises(ThreefoldError, match=r"17 bytes, expected 18 for \(2, 3\)"):
        read_idx(put(tmp_path / "x", content[:-1]))
    with pytest.raises(ThreefoldError, match="not an idx file"):
        read_idx(put(tmp_path / "x", "text"))
    with pytest.raises(ThreefoldError, match="cannot be unpacked"):
        read_idx(put(tmp_path / "x.gz", content))


TS = "# about\n@problemName x\n@classLabel true up down\n@data\n1,2,3:4,5,6:up\n7,8:9,10:down\n"


def test_series(tmp_path: Path) -> None:
    found = read_ts(put(tmp_path / "x.ts", TS))
    assert found.classes == ("up", "down") and found.labels == ["up", "down"]
    assert [one.tolist() for one in found.series] == [[[1, 4], [2, 5], [3, 6]], [[7, 9], [8, 10]]]
    found = read_ucr(put(tmp_path / "x.tsv", "10\t1\t2\t3\n2\t4\t5\tNaN\n"))
    assert found.classes == ("2", "10")
    assert [one[:, 0].tolist() for one in found.series] == [[1, 2, 3], [4, 5]]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (":up", ":left", r"x\.ts:5: unknown class 'left'; the file lists: up, down"),
        (":down", "", r"x\.ts:6: unknown class '9,10'"),
        ("4,5,6:", "4,5:", r"x\.ts:5: dimensions have 3, 2 elements"),
        ("9,10:", "", r"x\.ts:6: 1 dimensions, expected 2"),
        ("1,2", "1,x", r"x\.ts:5: dimension 1: could not convert"),
        ("1,2", "1,nan", r"x\.ts:5: dimension 1 has a value that is not finite"),
        ("@classLabel true up down", "@classLabel false", r"x\.ts:\d: dimension 3"),
        ("@classLabel true up down\n", "", r"x\.ts:\d: dimension 3: could not convert"),
        ("# about", "about", r"x\.ts:1: 'about' before @data"),
        ("# about", "@timestamps true", r"x\.ts:1: the series have timestamps"),
        (TS[-35:], "", r"x\.ts: no "),
    ],
)
def test_series_that_are_none(old: str, new: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ThreefoldError, match=message):
        read_ts(put(tmp_path / "x.ts", TS.replace(old, new)))


@pytest.mark.parametrize("row", ["\t1\t2", "1", "1\t2\tNaN\t3", "1\tx"])
def test_ucr_rows_that_are_none(row: str, tmp_path: Path) -> None:
    with pytest.raises(ThreefoldError, match=r"x\.tsv:2: "):
        read_ucr(put(tmp_path / "x.tsv", f"1\t1\t2\t3\n{row}\n"))
