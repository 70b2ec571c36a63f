"""`threefold stream` as a user runs it: files, pipes, interruptions and error messages."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import threefold
from tests.surfaces.test_cli import good, here, refused
from threefold import Spec
from threefold.data import ByteTokenizer
from threefold.data.progress import Meter
from threefold.errors import ThreefoldError
from threefold.models.saving import open_model
from threefold.runtime.state_files import read_state

TEXT = "".join(f"{i}: the quick brown fox jumps over the lazy dog; naïve café\n" for i in range(90))
SERIES = "when,x,y\n" + "".join(f"day {i},{i % 7},{i % 5 / 10}\n" for i in range(120))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models `text` (also in `run`), `series` and `tags`; inputs `text.txt` and `series.csv`."""
    folder = tmp_path_factory.mktemp("stream")
    torch.manual_seed(0)
    text = threefold.build(Spec("language", 32, 1, "mamba"))
    text.tokenizer = ByteTokenizer()
    text.save(folder / "text")
    (folder / "run" / "checkpoints").mkdir(parents=True)
    text.save(folder / "run" / "model")
    options: dict[str, Any] = {"channels": 2, "head": "gaussian"}
    threefold.build(Spec("forecaster", 32, 1, "gru", options=options)).save(folder / "series")
    options = {"input_size": 2, "classes": 3}
    threefold.build(Spec("tagger", 32, 1, "gla", options=options)).save(folder / "tags")
    (folder / "text.txt").write_text(TEXT, encoding="utf-8")
    (folder / "series.csv").write_text(SERIES, encoding="utf-8")
    return folder


@pytest.fixture
def workdir(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to an empty folder with links to models and inputs."""
    for path in folder.iterdir():
        (tmp_path / path.name).symlink_to(path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def process(*arguments: str, **options: Any) -> subprocess.Popen[bytes]:
    """Start `threefold …` in another process, which can be interrupted."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.fspath(Path(threefold.__file__).parent.parent),
        "OMP_NUM_THREADS": "1",
    }
    code = (  # a background job of a shell starts with the signal ignored
        "import signal, sys\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "import torch\ntorch.set_num_threads(1)\n"
        "from threefold.cli import main\nmain(sys.argv[1:])"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.Popen(command, env=environment, **{**pipes, **options})


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_every_byte_has_a_line(workdir: Path) -> None:
    good("stream", "text", "text.txt", "--output", "a.jsonl")
    rows = lines(workdir / "a.jsonl")
    data = TEXT.encode()
    assert [line["position"] for line in rows] == list(range(len(data)))
    assert bytes(line["token"] for line in rows) == data
    assert rows[0]["log_likelihood"] is None
    model: Any = open_model("text").model
    with torch.no_grad():
        tokens = torch.tensor(list(data)).unsqueeze(0)
        logits = model(tokens)[0][0]
    expected = logits.log_softmax(-1)[:-1].gather(1, tokens[0, 1:, None])[:, 0].tolist()
    assert [line["log_likelihood"] for line in rows[1:]] == pytest.approx(expected, abs=1e-4)
    summary = json.loads(good("stream", "run", "text.txt", "--json"))
    assert summary["finished"] and summary["position"] == len(data)
    mean = sum(expected) / len(expected)
    assert summary["mean_log_likelihood"] == pytest.approx(mean, abs=1e-5)
    assert summary["bits_per_byte"] == pytest.approx(-mean / 0.6931472, abs=1e-4)


def test_formats_and_groups(workdir: Path) -> None:
    good("stream", "text", "text.txt", "--mode", "anomaly", "--output", "a.jsonl")
    good(
        "stream",
        "text",
        "text.txt",
        "--mode",
        "anomaly",
        "--group-size",
        "500",
        "--output",
        "a.csv",
    )
    scores = [line["score"] for line in lines(workdir / "a.jsonl")]
    with open(workdir / "a.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == -(-len(scores) // 500)
    for number, row in enumerate(rows):
        known = [s for s in scores[number * 500 : number * 500 + 500] if s is not None]
        assert float(row["score"]) == max(known)
    assert "guessed from the suffix" in refused("stream", "text", "text.txt", "--output", "a.txt")
    assert "unknown format 'xml'" in refused("stream", "text", "text.txt", "--format", "xml")


def test_tables(workdir: Path) -> None:
    columns = ("--columns", "x,y")
    good("stream", "series", "series.csv", *columns, "--mode", "predict", "--output", "p.jsonl")
    rows = lines(workdir / "p.jsonl")
    assert len(rows) == 120 and {"x1+1", "x2+1_q0.9"} <= rows[0].keys()
    good("stream", "series", "series.csv", *columns, "--mode", "anomaly", "--output", "a.jsonl")
    assert lines(workdir / "a.jsonl")[0]["score"] is None
    assert all(line["score"] >= 0 for line in lines(workdir / "a.jsonl")[1:])
    good("stream", "tags", "series.csv", "--columns", "2,3", "--mode", "predict", "--top-k", "2",
         "--output", "t.csv")  # fmt: skip
    text = (workdir / "t.csv").read_text()
    assert text.startswith("position,class,probability,class_2,probability_2\n0,")
    message = refused("stream", "series", "series.csv")
    assert "series.csv:1: 3 columns (when, x, y); the model reads 2 numbers" in message
    (workdir / "bad.csv").write_text("1,2\n3,4\n5,six\n")
    assert "bad.csv:3: column 2 is 'six'" in refused("stream", "series", "bad.csv")
    (workdir / "bad.csv").write_bytes(bytes(range(200, 256)) * 9)
    assert "bad.csv:1: 0xc8 is not valid UTF-8" in refused("stream", "series", "bad.csv")


class TestResuming:
    """Stopped and resumed, the output is the same file."""

    OPTIONS = ("--mode", "anomaly", "--chunk-size", "64")

    @pytest.fixture
    def expected(self, workdir: Path) -> bytes:
        good("stream", "text", "text.txt", *self.OPTIONS, "--output", "uninterrupted.jsonl")
        return (workdir / "uninterrupted.jsonl").read_bytes()

    def test_an_interrupted_pipe(self, workdir: Path, expected: bytes) -> None:
        arguments = ("stream", "text", "-", *self.OPTIONS, "--output", "o.jsonl", "--state", "s")
        data, cut = TEXT.encode(), 1001
        first = process(*arguments)
        assert first.stdin is not None and first.stderr is not None
        first.stdin.write(data[:cut])
        first.stdin.flush()
        deadline = time.monotonic() + 120
        while not (workdir / "o.jsonl").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(0.5)
        first.send_signal(signal.SIGTERM)
        said = first.stderr.read().decode()
        assert first.wait(timeout=60) == 130, said
        assert "Continue with: threefold stream text - --mode anomaly" in said
        [position] = read_state(workdir / "s").position or []
        assert "a stream (mode anomaly) at byte" in good("info", "s")
        assert position % 64 == 0 and len(lines(workdir / "o.jsonl")) == position
        read, write = os.pipe()
        os.write(write, data[cut:])
        os.close(write)
        with open(read, "rb") as pipe, pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "stdin", io.TextIOWrapper(pipe))
            good(*arguments)
        assert (workdir / "o.jsonl").read_bytes() == expected

    @pytest.mark.parametrize("chunks", [1, 2, 50])
    def test_an_interrupted_file(
        self, workdir: Path, expected: bytes, chunks: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        arguments = ("stream", "text", "text.txt", *self.OPTIONS, "--output", "o.jsonl")
        shown: list[int] = []

        def show(meter: Meter, position: int, elements: int) -> None:
            shown.append(elements)
            if len(shown) == chunks:
                os.kill(os.getpid(), signal.SIGINT)

        with monkeypatch.context() as patch:
            patch.setattr(Meter, "show", show)
            done = here(*arguments, "--state", "s")
        assert done.returncode == 130
        assert f"Stopped at element {64 * chunks:,}. Continue with: threefold stream" in done.stderr
        command = shlex.split(done.stderr.split("Continue with: ")[1])
        assert lines(workdir / "o.jsonl")[-1]["position"] == 64 * chunks - 1
        good(*command[1:])
        assert (workdir / "o.jsonl").read_bytes() == expected

    def test_a_crash_between_two_states(
        self, workdir: Path, expected: bytes, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from threefold.runtime import stream_job

        arguments = ("stream", "text", "text.txt", *self.OPTIONS, "--output", "o.jsonl")
        monkeypatch.setattr(stream_job, "SAVE_SECONDS", 0.0)
        saves: list[int] = []
        ordinary = stream_job.StreamJob.save

        def save(job: stream_job.StreamJob) -> None:
            saves.append(job.stream.position)
            if len(saves) > 3:
                if job.output is not None:
                    job.output.sync()  # lines that are not in any state
                raise MemoryError
            ordinary(job)

        monkeypatch.setattr(stream_job.StreamJob, "save", save)
        with pytest.raises(MemoryError):
            here(*arguments, "--state", "s")
        monkeypatch.undo()
        monkeypatch.chdir(workdir)
        assert 0 < len(lines(workdir / "o.jsonl")) < len(expected.splitlines())
        good(*arguments, "--state", "s")
        assert (workdir / "o.jsonl").read_bytes() == expected
        again = json.loads(good(*arguments, "--state", "s", "--json"))
        assert again["elements"] == 0 and again["finished"]
        assert (workdir / "o.jsonl").read_bytes() == expected

    def test_a_bad_row_does_not_lose_the_rows_before_it(self, workdir: Path) -> None:
        rows = [f"{i % 7},{i % 5 / 10}\n" for i in range(120)]
        path = workdir / "rows.csv"
        path.write_text("".join(rows))
        words = ("stream", "series", "rows.csv", "--mode", "predict", "--chunk-size", "32")
        good(*words, "--output", "uninterrupted.jsonl")
        path.write_text("".join([*rows[:100], "3,x\n", *rows[101:]]))
        message = refused(*words, "--output", "o.jsonl", "--state", "s")
        assert "rows.csv:101: column 2 is 'x'" in message
        assert len(lines(workdir / "o.jsonl")) == 96
        path.write_text("".join(rows))
        good(*words, "--output", "o.jsonl", "--state", "s")
        assert (workdir / "o.jsonl").read_bytes() == (workdir / "uninterrupted.jsonl").read_bytes()

    def test_a_file_that_has_grown(self, workdir: Path) -> None:
        path = workdir / "grows.txt"
        data = TEXT.encode()
        path.write_bytes(data[: 64 * 20])
        arguments = ("stream", "text", "grows.txt", *self.OPTIONS, "--output", "o.jsonl")
        good(*arguments, "--state", "s")
        path.write_bytes(data)
        good(*arguments, "--state", "s")
        good("stream", "text", "grows.txt", *self.OPTIONS, "--output", "uninterrupted.jsonl")
        assert (workdir / "o.jsonl").read_bytes() == (workdir / "uninterrupted.jsonl").read_bytes()

    def test_changed_settings_and_files_are_refused(self, workdir: Path) -> None:
        path, state = workdir / "in.txt", workdir / "s"
        path.write_text("hello there, " * 50)
        arguments = ("stream", "text", "in.txt", "--output", "o.jsonl", "--state", "s")
        good(*arguments)
        saved = state.read_bytes()
        assert "chunk_size 512, but now chunk_size is 7" in refused(*arguments, "--chunk-size", "7")
        assert "started with mode 'likelihood'" in refused(*arguments, "--mode", "predict")
        path.write_text("Hello there, " * 50)
        assert "the first 650 bytes have changed" in refused(*arguments)
        path.write_text("hello")
        assert "has 5 bytes, but the state was saved after 650" in refused(*arguments)
        path.unlink()
        assert "in.txt: file not found" in refused(*arguments)
        path.write_text("hello there, " * 50)
        (workdir / "o.jsonl").write_text("")
        assert "o.jsonl: has 0 bytes, but had" in refused(*arguments)
        message = refused("stream", "tags", "in.txt", "--output", "o.jsonl", "--state", "s")
        assert (
            "s: this is the state of another model" in message
            and "'language' and 'tagger'" in message
        )
        other = threefold.load("text")
        with torch.no_grad():
            next(other.parameters()).add_(1)
        other.save(workdir / "other")
        message = refused("stream", "other", "in.txt", "--output", "o.jsonl", "--state", "s")
        assert "computed with other weights (SHA-256" in message
        assert state.read_bytes() == saved
        threefold.save_state(workdir / "plain", *state_of(other))
        message = refused("stream", "other", "in.txt", "--state", "plain")
        assert "this state was not saved by a stream" in message
        threefold.save_state(workdir / "old", *state_of(other), notes={"stream": {"taken": 3}})
        message = refused("stream", "other", "in.txt", "--state", "old")
        assert "format unknown, but this version of Threefold reads format 1" in message
        assert "from its beginning with another --state" in message


def state_of(model: Any) -> tuple[Any, Any]:
    return model(torch.zeros(1, 3, dtype=torch.int64))[1], model


def test_each_element_of_a_live_pipe_is_scored_at_once(workdir: Path) -> None:
    live = process("stream", "text", "--chunk-size", "1", "--quiet")
    assert live.stdin is not None and live.stdout is not None
    for position, letter in enumerate(b"abc"):
        live.stdin.write(bytes([letter]))
        live.stdin.flush()
        assert json.loads(live.stdout.readline())["position"] == position
    live.send_signal(signal.SIGINT)
    said = live.communicate()[1].decode()
    assert live.returncode == 130
    assert "Stopped at element 3. Nothing was saved. Use --state FILE" in said


def test_errors(workdir: Path) -> None:
    assert "folder not found" in refused("stream", "nothing", "text.txt")
    assert "file not found" in refused("stream", "text", "nothing.txt")
    assert "this is a folder; expected a file" in refused("stream", "text", "run")
    if Path("/proc/self/mem").exists():  # its first bytes cannot be read
        assert "reading failed" in refused("stream", "text", "/proc/self/mem")
    assert "a tagger model does not predict its inputs" in refused(
        "stream", "tags", "series.csv", "--mode", "likelihood"
    )
    assert "unknown mode 'anomalies'" in refused(
        "stream", "text", "text.txt", "--mode", "anomalies"
    )
    assert "columns can only be chosen in a table" in refused(
        "stream", "text", "text.txt", "--columns", "a"
    )
    both = {"input_size": 2, "bidirectional": True}
    threefold.build(Spec("tagger", 32, 1, "gla", options=both)).save(workdir / "both")
    assert "is not causal, so it cannot read a stream" in refused(
        "stream", "both", "series.csv", "--mode", "predict"
    )
    threefold.build(Spec("language", 32, 1, "gla")).save(workdir / "bare")
    for words in (("series.csv", "--output", "series.csv"), ("text.txt", "--state", "text.txt")):
        assert "given twice; the input, --calibrate, --output and --state must" in refused(
            "stream", "text", *words
        )
    for state in ([], ["--state", "s"]):
        message = refused("stream", "text", "text.txt", "--output", "series.csv", *state)
        assert "series.csv: exists already; choose another name, or delete it" in message
    assert (workdir / "series.csv").read_text() == SERIES
    with pytest.raises(ThreefoldError, match="the input is empty"):
        threefold.stream(threefold.load("text"), "")
    assert "without a tokenizer" in refused("stream", "bare", "text.txt")
    (workdir / "empty_run" / "checkpoints").mkdir(parents=True)
    assert "this run has not saved its model yet" in refused("stream", "empty_run", "text.txt")
    shutil.copytree(workdir / "text", workdir / "small")
    config = workdir / "small" / "config.json"
    config.write_text(config.read_text().replace('"vocabulary": 256', '"vocabulary": 99'))
    assert "Error: " in refused("stream", "small", "text.txt")


@pytest.mark.parametrize(
    ("words", "redirected", "message"),
    [
        (["stream", "text", "text.txt", "--quiet"], ">/dev/full", "standard output: No space"),
        (["mixers"], ">/dev/full", "standard output: No space"),
        (["stream", "text"], "<&-", "standard input is closed"),
        (["generate", "text", "-"], "<&-", "standard input is closed"),
        (["stream", "text", "text.txt", "--quiet"], ">&-", ""),
        (["stream", "text", "text.txt", "--quiet"], "--format csv --output /dev/null", ""),
    ],
)
def test_streams_that_fail_or_are_closed(
    workdir: Path, words: list[str], redirected: str, message: str
) -> None:
    command = f"{shlex.join([sys.executable, '-m', 'threefold', *words])} {redirected}"
    environment = {**os.environ, "PYTHONPATH": os.fspath(Path(threefold.__file__).parent.parent)}
    done = subprocess.run(["bash", "-c", command], stderr=subprocess.PIPE, env=environment)
    error = done.stderr.decode()
    assert done.returncode == (2 if message else 0), error
    assert message in error and error.count("\n") == bool(message), error


def test_a_note_says_that_the_state_of_attention_grows(workdir: Path) -> None:
    model = threefold.build(Spec("language", 32, 1, "attention"))
    model.tokenizer = ByteTokenizer()
    model.save(workdir / "looks_back")
    (workdir / "few.txt").write_text("hello")
    done = here("stream", "looks_back", "few.txt", "--json")
    assert done.returncode == 0
    grows = (model.state_size(2) - model.state_size(1)) if hasattr(model, "state_size") else 0
    assert f"grows by {grows} bytes with each element" in done.stderr
    assert "Note" not in here("stream", "text", "few.txt", "--json").stderr


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("terminal", [True, False])
def test_progress_has_rate_and_time_left(terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal() if terminal else io.StringIO()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setattr("threefold.data.progress.LINE_INTERVAL", 0.0)
    monkeypatch.setenv("COLUMNS", "100")
    meter = Meter(4000, 0, quiet=False, printing=False)
    meter.start -= 10
    meter.show(1000, 500)
    meter.close()
    assert "elements/s" in screen.getvalue()
    assert re.search("0:00:[3-5][0-9] left", screen.getvalue())
    assert ("\x1b[" in screen.getvalue()) == terminal
    if not terminal:
        assert "1,000 B of 3.91 KiB (25%)" in screen.getvalue()
    monkeypatch.setattr(sys, "stdout", Terminal())
    for quiet, printing in ((True, False), (False, terminal)):
        screen.truncate(0)
        Meter(None, 0, quiet, printing).show(1000, 500)
        assert bool(screen.getvalue()) == (not quiet and not terminal)
