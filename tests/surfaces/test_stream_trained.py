"""`threefold stream` with models trained on a user's data: names, units, gaps, new rows."""

from __future__ import annotations

import datetime
import io
import json
import os
import signal
import subprocess
import sys
import time
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import threefold
from tests.surfaces.test_cli import good, here, refused, run
from tests.surfaces.test_stream import lines, process
from threefold import Spec
from threefold.data.preprocessing import Chain, Preprocessing
from threefold.data.preprocessing.numbers import Standardise
from threefold.data.preprocessing.text import Tokenize
from threefold.data.tokenizers import ByteTokenizer
from threefold.errors import ThreefoldError
from threefold.runtime.stream_job import StreamJob
from threefold.runtime.streaming import stream

COUNT, HORIZON = 400, 2
TIME = np.arange(COUNT)
BIG = 1000 + 10 * np.sin(TIME / 3)
SMALL = 0.001 * np.cos(TIME / 5)
SETTINGS = {"data.horizon": HORIZON, "data.length": 12, "model.width": 16, "model.depth": 1}


def write_rows(path: Path, columns: dict[str, Any], rows: slice = slice(None)) -> Path:
    cells = zip(*(list(values)[rows] for values in columns.values()), strict=True)
    text = [",".join(columns), *(",".join(map(str, row)) for row in cells)]
    path.write_text("\n".join(text) + "\n")
    return path


def trained(folder: Path, data: Any, **options: Any) -> Any:
    settings = {**SETTINGS, **options.pop("settings", {})}
    return threefold.train(
        data,
        mixers="gru",
        steps=options.pop("steps", 30),
        folder=folder,
        settings=settings,
        **options,
    )


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("trained")


@pytest.fixture(scope="module")
def flow(home: Path) -> Any:
    """A forecaster of `big` from `big` and `small`, whose scales differ a million times."""
    table = write_rows(home / "train.csv", {"big": BIG, "small": SMALL})
    return trained(home / "flow", table, target="big")


@pytest.fixture
def workdir(flow: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "flow").symlink_to(flow.folder)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_swapped_columns_in_another_process_have_the_error_of_the_evaluation(
    workdir: Path, flow: Any
) -> None:
    write_rows(workdir / "new.csv", {"small": SMALL, "extra": ["z"] * COUNT, "big": BIG})
    done = run("stream", "flow", "new.csv", "--output", "o.jsonl")
    assert done.returncode == 0 and "does not read: extra" in done.stderr, done.stderr
    rows = lines(workdir / "o.jsonl")
    first = int(COUNT * 0.8)  # the test split
    errors = [
        abs(rows[t - 1][f"big+{step}"] - BIG[t - 1 + step])
        for t in range(first, COUNT - HORIZON + 1)
        for step in range(1, HORIZON + 1)
    ]
    assert np.mean(errors) == pytest.approx(flow.summary["test"]["metric"], rel=0.05)
    assert rows[-1]["big+1_q0.1"] <= rows[-1]["big+1"] <= rows[-1]["big+1_q0.9"]
    same = json.loads(good("forecast", "flow", "new.csv", "--json"))
    assert [rows[-1]["big+1"], rows[-1]["big+2"]] == pytest.approx(
        [r["big"] for r in same], rel=1e-5
    )
    good("stream", "flow", "new.csv", "--mode", "anomaly", "--output", "a.jsonl")
    anomalies = lines(workdir / "a.jsonl")
    assert {row["column"] for row in anomalies} == {"big"}
    assert [row["value"] for row in anomalies] == pytest.approx(BIG.tolist(), rel=1e-6)
    assert anomalies[-1]["expected"] == pytest.approx(rows[-2]["big+1"], rel=1e-6)


def test_a_missing_column_is_refused(workdir: Path) -> None:
    write_rows(workdir / "a.csv", {"big": BIG, "tiny": SMALL})
    message = refused("stream", "flow", "a.csv", "--output", "o.csv")
    assert not (workdir / "o.csv").exists()  # it would be in the way of the next attempt
    assert "a.csv:1: the column small is missing; the model was trained on big, small" in message
    assert "the table begins with big, tiny" in message
    (workdir / "b.csv").write_text("1000,0.1\n1001,0.2\n")
    assert "the columns big, small are missing" in refused("stream", "flow", "b.csv")
    chosen = lines_of(good("stream", "flow", "b.csv", "--columns", "1,2"))
    assert [row["position"] for row in chosen] == [0, 1]
    (workdir / "c.csv.gz").write_bytes(b"\x1f\x8b")
    assert "unpack or convert it" in refused("stream", "flow", "c.csv.gz")


def test_a_column_without_any_usable_value_is_told(workdir: Path) -> None:
    cells = [f'"{value:,.0f}"' for value in BIG[:9]]
    lines = [f"{cell},{small}" for cell, small in zip(cells, SMALL, strict=False)]
    (workdir / "a.csv").write_text("\n".join(["big,small", *lines]))
    done = run("stream", "flow", "a.csv", "--output", "o.csv", "--state", "s")
    assert "note: big had no usable value so far: the answers rest on the mean" in done.stderr
    (workdir / "b.csv").write_text("big,small\n1000,0.1\n,0.1\n")
    done = run(
        "stream", "flow", "b.csv", "--output", "o.csv", "--state", "s", "--continue-with", "new"
    )
    assert "1 row had missing" in done.stderr and "no usable value" not in done.stderr


def lines_of(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


ABSURD = ("1e300", "inf", "nan", "abc", "", "-1e9", "1_0", "NA")


@pytest.mark.parametrize("mode", ["predict", "anomaly"])
def test_absurd_cells_are_carried_and_told(workdir: Path, mode: str) -> None:
    bad, carried = [list(map(str, BIG)) for _ in range(2)]
    for row, cell in enumerate(ABSURD, 100):
        bad[row], carried[row] = cell, carried[99]
    rows = {}
    for name, cells in (("bad", bad), ("carried", carried)):
        write_rows(workdir / f"{name}.csv", {"big": cells, "small": SMALL})
        done = here("stream", "flow", f"{name}.csv", "--mode", mode, "--missing", "carry")
        assert done.returncode == 0 and ("8 rows had missing" in done.stderr) == (name == "bad")
        rows[name] = lines_of(done.stdout)
    assert [row.pop("missing") for row in rows["bad"]] == [
        "big" if 100 <= t < 108 else "" for t in range(COUNT)
    ]
    [row.pop("missing") for row in rows["carried"]]
    if mode == "anomaly":  # a value that is missing has no score
        assert all(row["score"] is None for row in rows["bad"][100:108])
        # What was not there cannot have been surprising, so only second looks may differ.
        later = [[(row["position"], row["value"]) for row in part[108:]] for part in rows.values()]
        assert later[0] == later[1] and all(row["score"] is not None for row in rows["bad"][108:])
    else:
        assert all(value is not None for row in rows["bad"] for value in row.values())
        for row in (*rows["bad"], *rows["carried"]):  # what is missing does not judge a band
            [row.pop(name) for name in list(row) if "_q" in name]
        assert rows["bad"] == rows["carried"]


def test_missing_cells_are_met_as_told(workdir: Path, home: Path) -> None:
    cells = ["" if t in (40, 41) else str(x) for t, x in enumerate(BIG)]
    table = write_rows(workdir / "gaps.csv", {"big": cells, "small": SMALL})
    message = refused("stream", "flow", "gaps.csv", "--missing", "stop")
    assert "gaps.csv:42: column big is ''; expected a finite number" in message
    assert "has no column that says what is missing" in refused(
        "stream", "flow", "gaps.csv", "--missing", "mask"
    )
    model = trained(home / "masked", table, target="big", steps=5).model
    masked, carried = (
        [row["big+1"] for part in stream(model, table, missing=how) for row in part.rows()]
        for how in (None, "carry")
    )
    assert masked[:40] == carried[:40] and masked[40] != carried[40]  # the model is told
    (workdir / "torn.csv").write_text("small,big\n0.1,1000\n0.1\n0,1001\n")
    done = here("stream", "flow", "torn.csv")
    assert len(lines_of(done.stdout)) == 2
    assert "1 line was not a row of the table, and was left out" in done.stderr


class TestNewRows:
    """A stream goes on with new rows alone, to the same bits as one that was never cut."""

    CUT = 150

    @pytest.fixture(params=[(), ("--context", "all"), ("--mode", "anomaly", "--group-size", "7")])
    def words(self, request: pytest.FixtureRequest) -> tuple[str, ...]:
        words: tuple[str, ...] = request.param
        return (*words, "--chunk-size", "64")

    @pytest.fixture
    def expected(self, workdir: Path, words: tuple[str, ...]) -> bytes:
        gone = ["" if t in (self.CUT - 1, self.CUT) else str(x) for t, x in enumerate(BIG)]
        table = {"big": gone, "small": SMALL}
        write_rows(workdir / "whole.csv", table)
        write_rows(workdir / "old.csv", table, slice(self.CUT))
        swapped = dict(reversed(table.items()))
        write_rows(workdir / "new.csv", swapped, slice(self.CUT, None))
        good("stream", "flow", "whole.csv", *words, "--output", "whole.jsonl")
        good("stream", "flow", "old.csv", *words, "--output", "o.jsonl", "--state", "s")
        return (workdir / "whole.jsonl").read_bytes()

    def test_in_a_file(self, workdir: Path, words: tuple[str, ...], expected: bytes) -> None:
        part = ("stream", "flow", "new.csv", "--output", "o.jsonl", "--state", "s")
        assert "--continue-with new if this file holds only what follows" in refused(*part)
        summary = json.loads(good(*part, "--continue-with", "new", "--json"))
        assert summary["missing_values"] == {"big": 1}  # without the one in old.csv
        assert (workdir / "o.jsonl").read_bytes() == expected
        good(*part)  # the same file again: nothing is new
        assert (workdir / "o.jsonl").read_bytes() == expected

    def test_in_the_same_file(self, workdir: Path, words: tuple[str, ...], expected: bytes) -> None:
        whole = (workdir / "whole.csv").read_bytes()
        (workdir / "old.csv").write_bytes(whole)
        good("stream", "flow", "old.csv", "--output", "o.jsonl", "--state", "s")
        assert (workdir / "o.jsonl").read_bytes() == expected

    def test_in_a_pipe(
        self,
        workdir: Path,
        words: tuple[str, ...],
        expected: bytes,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        with open(workdir / "new.csv", "rb") as file:
            read, write = os.pipe()
            os.write(write, file.read())
            os.close(write)
        with open(read, "rb") as pipe, monkeypatch.context() as patch:
            patch.setattr(sys, "stdin", io.TextIOWrapper(pipe))
            rest = good("stream", "flow", "-", "--state", "s", "--continue-with", "new").encode()
        written = (workdir / "o.jsonl").read_bytes()
        if "--group-size" in words:  # the group that was not complete is written again
            written = written[: written.rindex(b"\n", 0, -1) + 1]
        assert written + rest == expected

    def test_what_is_unclear_is_refused(self, workdir: Path, flow: Any) -> None:
        write_rows(workdir / "old.csv", {"big": BIG, "small": SMALL})
        words = ("stream", "flow", "old.csv", "--state", "s")
        assert "there is no state to continue from" in refused(*words, "--continue-with", "new")
        stopped = stream(flow.model, workdir / "old.csv", chunk_size=8)
        stopped.source._ended = False
        next(stopped)
        stopped.source._ended = False  # as if the file had more
        stopped.save(workdir / "s")
        with pytest.raises(threefold.ThreefoldError, match="which is not one session"):
            threefold.Session.load(workdir / "s", flow.model)
        assert "before the end of its file" in refused(*words, "--continue-with", "new")
        assert "continue_with is 'x'; expected same or new" in refused(
            *words, "--continue-with", "x"
        )
        message = refused("stream", "flow", "-", "--state", "s")
        assert "saved while reading a file, but this is a pipe" in message


@pytest.fixture(scope="module")
def sites(home: Path) -> Any:
    """A forecaster of two sites, whose rows alternate, with time stamps."""
    hours = [f"2024-01-{1 + t // 24:02d} {t % 24:02d}:00" for t in range(200)]
    table = {
        "when": [hour for hour in hours for _ in "ab"],
        "site": list("ab") * 200,
        "flow": [base + 5 * np.sin(t / 3) for t in range(200) for base in (10, 500)],
    }
    path = write_rows(home / "sites.csv", table)
    options = {"data.series_column": "site", "data.length": 8}
    return trained(home / "sites", path, target="flow", settings=options)


@pytest.mark.parametrize("context", [None, "all"])
def test_series_that_alternate_are_answered_as_if_alone(
    sites: Any, home: Path, tmp_path: Path, context: str | None
) -> None:
    def rows(path: Path, **options: Any) -> list[dict[str, Any]]:
        parts = stream(
            sites.model, path, chunk_size=1 if context else 64, context=context, **options
        )
        return [row for part in parts for row in part.rows()]

    header, *table = (home / "sites.csv").read_text().splitlines()
    together = rows(home / "sites.csv")
    for name in "ab":
        alone = tmp_path / f"{name}.csv"
        alone.write_text("\n".join([header, *(line for line in table if f",{name}," in line)]))
        mine = [row for row in together if row["series"] == name]
        for row, single in zip(mine, rows(alone), strict=True):
            assert row["time+1"] == single["time+1"]
            assert row["flow+1"] == pytest.approx(single["flow+1"], rel=1e-5)
    assert together[2]["time"] == "2024-01-01 01:00" and together[2]["time+2"] == "2024-01-01 03:00"
    started = stream(sites.model, home / "sites.csv", chunk_size=64, context=context)
    first = [row for _ in range(3) for row in next(started).rows()]
    started.save(tmp_path / "s")
    rest = stream(sites.model, home / "sites.csv", state=tmp_path / "s")
    expected = list(stream(sites.model, home / "sites.csv", chunk_size=64, context=context))
    assert first + [row for part in rest for row in part.rows()] == [
        row for part in expected for row in part.rows()
    ]


def test_rows_are_averaged_over_the_step_of_training(home: Path, tmp_path: Path) -> None:
    minutes = [f"2024-01-{1 + t // 96:02d} {t % 96 // 4:02d}:{t % 4 * 15:02d}" for t in range(960)]
    values = 50 + 5 * np.sin(np.arange(960) / 9)
    path = write_rows(home / "minutes.csv", {"time": minutes, "flow": values})
    model = trained(home / "hours", path, settings={"data.resample": "1h", "data.length": 6}).model
    rows = [row for part in stream(model, path, chunk_size=64) for row in part.rows()]
    assert len(rows) == 239  # the last hour may not be complete
    assert rows[1]["time"] == "2024-01-01 01:00" and rows[1]["time+1"] == "2024-01-01 02:00"
    complete = write_rows(tmp_path / "part.csv", {"time": minutes, "flow": values}, slice(956))
    assert rows[-1]["flow+1"] == pytest.approx(model.predict(complete)[0]["flow"], rel=1e-5)
    started = stream(model, complete, chunk_size=64)
    list(started)
    started.save(tmp_path / "s")
    new = write_rows(tmp_path / "new.csv", {"flow": values, "time": minutes}, slice(956, None))
    with new.open("a") as file:
        file.write("1,2024-01-11 00:00\n1,2024-01-10 00:00\n1,?\n")
    more = stream(model, new, state=tmp_path / "s", continue_with="new")
    before, last = [row for part in more for row in part.rows()]
    assert before["time"] == "2024-01-10 22:00" and last["time"] == "2024-01-10 23:00"
    assert last["flow+1"] == pytest.approx(model.predict(path)[0]["flow"], rel=1e-5)
    told = more.reader.summary()
    assert told["rows_out_of_order"] == 1 and told["rows_without_a_time"] == 1


@pytest.fixture(scope="module")
def reviews(home: Path) -> Any:
    texts = [("wonderful film " if n % 2 else "terrible film ") + str(n) for n in range(40)]
    labels = ["good" if n % 2 else "bad" for n in range(40)]
    path = write_rows(home / "reviews.csv", {"text": texts, "label": labels})
    return trained(home / "reviews", path, settings={"data.horizon": None, "data.length": 24})


def test_a_classifier_of_texts_has_label_names(reviews: Any, home: Path) -> None:
    text = "a wonderful film"
    for source in (text.encode(), list(text.encode())):
        rows = [row for part in stream(reviews.model, source) for row in part.rows()]
        answer = reviews.model.predict([text])[0]
        assert rows[-1]["label"] == answer["label"] == "good" and len(rows) == len(text)
        assert rows[-1]["probability"] == pytest.approx(answer["probability"], rel=1e-5)
    assert "`threefold predict` answers each" in refused(
        "stream", str(home / "reviews"), str(home / "reviews.csv")
    )


def test_a_regressor_answers_in_original_units() -> None:
    model: Any = threefold.build(Spec("regressor", 16, 1, "gru", options={"outputs": 1}))
    scale = Standardise(("price",), (500.0,), (20.0,))
    inputs = Chain((Tokenize.by(ByteTokenizer()),))
    model.tokenizer = ByteTokenizer()
    model.preprocessing = Preprocessing("regressor", "text", inputs, Chain((scale,)))
    [scores] = stream(model.eval(), b"hello")
    with torch.no_grad():
        raw = model(torch.tensor([list(b"hello")]))[0].item()
    assert scores.columns["value"][-1] == pytest.approx(500 + 20 * raw, rel=1e-6)
    with pytest.raises(threefold.ThreefoldError, match="use mode predict"):
        stream(model, b"hello", mode="anomaly")


def test_a_tagger_reads_sentences(home: Path) -> None:
    sentences = ["the dog runs", "a cat sleeps"] * 15
    cells = [(f"s{n}", word) for n, text in enumerate(sentences) for word in text.split()]
    columns = {
        "sentence": [name for name, _ in cells],
        "word": [word for _, word in cells],
        "tag": ["N" if word in ("dog", "cat") else "X" for _, word in cells],
    }
    path = write_rows(home / "tags.csv", columns)
    options = {"data.group_column": "sentence", "data.features": "word", "data.horizon": None}
    tagger = trained(home / "tags", path, kind="tagger", target="tag", settings=options).model
    rows = []
    for text in (b"the dog runs\na cat", b"the dog runs\n\na\ncat\n"):
        rows.append([row for part in stream(tagger, [text]) for row in part.rows()])
    assert rows[0] == rows[1]
    assert [row["tag"] for row in rows[0]] == ["X", "N", "X", "X", "N"]
    assert [row["word"] for row in rows[0]] == ["the", "dog", "runs", "a", "cat"]
    alone = [row for part in stream(tagger, b"a cat") for row in part.rows()]
    assert [row["probability"] for row in alone] == [row["probability"] for row in rows[0][3:]]


def write_sound(path: Path, frequency: float, rate: int = 400, seed: int = 0) -> Path:
    phase = np.random.default_rng(seed).random()
    samples = 0.5 * np.sin(2 * np.pi * (frequency * np.arange(rate // 4) / rate + phase))
    path.parent.mkdir(parents=True, exist_ok=True)
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 2, rate, 0, "NONE", ""))
        file.writeframes((samples * 32767).astype("<i2").tobytes())
    return path


def test_sounds(home: Path, tmp_path: Path) -> None:
    for n in range(10):
        for name, frequency in (("low", 8), ("high", 100)):
            write_sound(home / "sounds" / name / f"{n}.wav", frequency, seed=n)
    options = {"data.horizon": None, "data.length": None}
    model = trained(home / "heard", home / "sounds", settings=options).model
    path = home / "sounds" / "low" / "0.wav"
    rows = [row for part in stream(model, path) for row in part.rows()]
    assert [row["position"] for row in rows] == [39, 79, 99]  # every tenth of a second
    answer = model.predict([path])[0]
    assert rows[-1]["label"] == answer["label"] and rows[-1]["seconds"] == 99 / 400
    assert rows[-1]["probability"] == pytest.approx(answer["probability"], rel=1e-5)
    data = path.read_bytes()
    piped = data[:40] + b"\xff\xff\xff\xff" + data[44:]  # the length is not known
    for source, how in ((data[44:], "s16le"), ([piped[:50], piped[50:77], piped[77:]], None)):
        parts = stream(model, source, sound_format=how)
        assert [row for part in parts for row in part.rows()] == rows
    fast = write_sound(tmp_path / "fast.wav", 8, rate=800)
    with pytest.raises(threefold.ThreefoldError, match="800 samples per second, but the model was"):
        stream(model, fast)
    with pytest.raises(threefold.ThreefoldError, match="800 samples per second, but the model was"):
        list(stream(model, fast.read_bytes()))
    options["data.sampling_rate"] = 400
    resampling = trained(home / "resampled", home / "sounds", settings=options, steps=5).model
    *_, last = (row for part in stream(resampling, fast) for row in part.rows())
    assert last["probability"] == pytest.approx(
        resampling.predict([fast])[0]["probability"], rel=1e-5
    )


def test_arrays_and_frames(flow: Any) -> None:
    array = np.stack([BIG, SMALL], 1)[:50]
    expected = [row["big+1"] for part in stream(flow.model, array) for row in part.rows()]
    table = b"small,big\n" + b"".join(b"%r,%r\n" % (b, a) for a, b in array.tolist())
    assert [r["big+1"] for p in stream(flow.model, [table]) for r in p.rows()] == expected
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"small": array[:, 1], "big": array[:, 0]})
    assert [r["big+1"] for p in stream(flow.model, frame) for r in p.rows()] == expected
    array[7] = 1e300
    with pytest.raises(threefold.ThreefoldError, match="row 8, column 'big': missing"):
        stream(flow.model, array, missing="stop")
    [scores] = stream(flow.model, array)
    assert scores.columns["missing"][7] == "big;small"


class TestFaults:
    """What never ends, is not text, or is interrupted."""

    def test_lone_surrogates_and_broken_lines(self, workdir: Path) -> None:
        rows = [f'{{"big": {a}, "small": {b}}}' for a, b in zip(BIG[:9], SMALL[:9], strict=True)]
        broken = ['{"big": 1, "small": 2, "x": "\\ud800"}', "no JSON", "[1]"]
        text = [rows[0], *broken, '{"big": 1, "small": 2, "big": 3}', *rows[1:]]
        (workdir / "x.jsonl").write_text("\n".join(text) + "\n")
        done = here("stream", "flow", "x.jsonl")
        assert len(lines_of(done.stdout)) == 9 and "4 lines were not rows" in done.stderr
        message = refused("stream", "flow", "x.jsonl", "--missing", "stop")
        assert r"x.jsonl:2: \ud800 is half of a character (a lone surrogate)" in message

    def test_what_has_no_lines(self, workdir: Path) -> None:
        assert "1 MiB without the end of a line" in refused("stream", "flow", "/dev/zero")
        assert "is not valid UTF-8" in refused("stream", "flow", "/dev/urandom")

    def test_names_that_are_not_utf_8(self, workdir: Path) -> None:
        name = os.fsdecode(b"caf\xe9.csv")
        write_rows(workdir / name, {"big": BIG, "small": SMALL})
        assert json.loads(good("stream", "flow", name, "--json"))["input"] == r"caf\udce9.csv"
        from threefold.cli.stream import resume_command

        command = resume_command("flow", name, {"state": Path(name)})
        assert command == r"threefold stream flow $'caf\xe9.csv' --state $'caf\xe9.csv'"

    def test_a_pipe_without_a_writer_ends_with_a_signal(self, workdir: Path) -> None:
        os.mkfifo(workdir / "pipe")
        waiting = process("stream", "flow", "pipe", "--state", "s", "--output", "o.jsonl")
        deadline = time.monotonic() + 120
        while not (workdir / "o.jsonl").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(0.3)
        waiting.send_signal(signal.SIGTERM)
        said = waiting.communicate(timeout=60)[1].decode()
        assert waiting.returncode == 130, said
        assert "Continue with: threefold stream flow pipe --output o.jsonl --state s" in said

    def test_a_second_interruption_says_what_is_left(
        self, workdir: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        write_rows(workdir / "a.csv", {"big": BIG, "small": SMALL})

        def interrupted(job: StreamJob, **_: Any) -> None:
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(1)

        with monkeypatch.context() as patch:
            patch.setattr(StreamJob, "run", interrupted)
            done = here("stream", "flow", "a.csv", "--state", "s")
        assert done.returncode == 130 and "Stopped at once. Nothing was saved." in done.stderr

    def test_a_reader_that_closes_its_pipe(self, workdir: Path) -> None:
        write_rows(workdir / "a.csv", {"big": BIG, "small": SMALL})
        words = f"{sys.executable} -m threefold stream flow a.csv --quiet | head -1"
        root = os.fspath(Path(threefold.__file__).parent.parent)
        environment = {**os.environ, "PYTHONPATH": root, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(["bash", "-c", words], capture_output=True, env=environment)
        assert done.stdout.startswith(b'{"position":0') and done.stderr == b""


def test_times_are_read_as_a_forecast_reads_them(home: Path, tmp_path: Path) -> None:
    start = datetime.datetime(2024, 1, 20)

    def table(name: str, form: str, minutes: int = 60, count: int = 200) -> Path:
        times = [start + datetime.timedelta(minutes=minutes * n) for n in range(count)]
        columns = {"time": [time.strftime(form) for time in times], "big": BIG[:count]}
        return write_rows(tmp_path / name, columns)

    run = trained(home / "stamped", table("hours.csv", "%Y-%m-%d %H:%M"), target="big", steps=2)
    for form in ("%Y-%m-%d %H:%M:%S", "%d.%m.%Y %H:%M", "%d/%m/%Y %H:%M"):
        path = table("other.csv", form)
        started = stream(run.model, path, chunk_size=64)
        rows = list(next(started).rows())
        started.save(tmp_path / "s")
        resumed = stream(run.model, path, state=tmp_path / "s")
        rows += [row for part in resumed for row in part.rows()]
        expected = (start + datetime.timedelta(hours=200)).strftime(form)
        assert rows[-1]["time+1"] == expected == run.model.predict(path)[0]["time"]
        assert rows[0]["time+1"] == rows[1]["time"] and len(rows) == 200
    start = datetime.datetime(2024, 1, 1)
    with pytest.raises(ThreefoldError, match=r"early.csv:2: .* the day or the month first"):
        list(stream(run.model, table("early.csv", "%d/%m/%Y %H:%M", count=50)))
    for chunk_size in (1, 64):
        quarters = stream(
            run.model, table("quarters.csv", "%Y-%m-%d %H:%M", 15), chunk_size=chunk_size
        )
        with pytest.raises(ThreefoldError, match=r"quarters.csv:6: one row every 15 minutes in"):
            list(quarters)


def test_another_step_is_refused_though_training_had_gaps(tmp_path: Path) -> None:
    start = datetime.datetime(2024, 1, 1)

    def table(name: str, hours: list[int]) -> Path:
        times = [f"{start + datetime.timedelta(hours=hour):%Y-%m-%d %H:%M}" for hour in hours]
        return write_rows(tmp_path / name, {"time": times, "big": BIG[: len(hours)]})

    hours = [n + 2 * (n > 60) + 5 * (n > 90) + (n > 130) for n in range(200)]
    run = trained(tmp_path / "run", table("hours.csv", hours), target="big", steps=2)
    twice = table("twice.csv", hours[::2])
    for use in (run.model.predict, lambda path: threefold.evaluate(run, path)):
        with pytest.raises(ThreefoldError, match=r"one row every 2 hours .* one every 1 hour;"):
            use(twice)
    with pytest.raises(ThreefoldError, match=r"twice.csv:6: one row every 2 hours in column time"):
        list(stream(run.model, twice))
    # Rows with other gaps, even between most of them, have the step of training.
    holes = table("holes.csv", [n + 2 * (n // 2) for n in range(61)][1:])
    assert run.model.predict(holes) and len(list(stream(run.model, holes)))


def test_a_stream_tells_categories_that_training_has_not_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    towns = ["Ulm", "Bonn"] * 100
    known = write_rows(tmp_path / "known.csv", {"big": BIG[:200], "town": towns})
    trained(tmp_path / "run", known, target="big", features=["town"], steps=2)
    towns[5], towns[150] = "Rome", "Oslo"
    write_rows(tmp_path / "new.csv", {"town": towns, "big": BIG[:200]})
    note = "town: 2 cells have a category that training has not seen, read as none of Bonn, Ulm"
    done = here("stream", "run", "new.csv", "--output", "o.jsonl", "--state", "s")
    assert f"{note} (the first is 'Rome', new.csv:7)" in done.stderr
    assert note in here("forecast", "run", "new.csv").stderr
    write_rows(tmp_path / "more.csv", {"town": ["Ulm", "Lima"], "big": BIG[:2]})
    done = here("stream", "run", "more.csv", "--state", "s", "--continue-with", "new")
    assert "town: 1 cell has" in done.stderr and "'Lima', more.csv:3" in done.stderr


def test_windows_forecasts_and_streams_read_one_calendar(tmp_path: Path) -> None:
    start, count = datetime.datetime(2024, 1, 1), 800
    times = [start + datetime.timedelta(hours=i) for i in range(count)]
    values = [float(t.hour + 3 * (t.weekday() > 4)) + 0.1 * (i % 7) for i, t in enumerate(times)]
    columns = {"time": [t.strftime("%Y-%m-%d %H:%M") for t in times], "flow": values}
    path = write_rows(tmp_path / "flow.csv", columns)
    turned = write_rows(tmp_path / "turned.csv", dict(reversed(columns.items())))
    options = {"data.length": 24, "model.width": 8, "model.options": {"quantiles": [0.005, 0.995]}}
    run = trained(tmp_path / "run", path, target="flow", steps=2, settings=options)
    assert run.model.preprocessing.calendar == ("day", "week")
    assert "the time within the day and week" in dict(run.data.task.description.facts)["calendar"]
    model = threefold.load(tmp_path / "run")
    answers = model.predict(turned)
    rows = [row for part in stream(model, turned, mode="predict") for row in part.rows()]
    for step, answer in enumerate(answers, 1):
        assert rows[-1][f"flow+{step}"] == pytest.approx(answer["flow"], rel=1e-5)
        assert rows[-1][f"time+{step}"] == answer["time"]
    # 79 held-out windows, every other one apart, are too few for a band of 99 per cent.
    wanted = "39 held-out windows that do not overlap; it needs at least 199"
    assert any(wanted in note for note in answers.notes)
    longer = model.predict(turned, horizon=30)
    assert abs(longer[29]["flow"] - answers[0]["flow"]) < 30  # goes on with its own calendar
    untimed = write_rows(tmp_path / "untimed.csv", {"flow": values})
    with pytest.raises(ThreefoldError, match="time"):
        model.predict(untimed)
