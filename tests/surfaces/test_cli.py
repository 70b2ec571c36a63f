"""The command line as a user runs it: piped, on a terminal, with wrong arguments.

Tests that depend on the process (imports, exit codes, encodings, terminals) start a new one; the
others call `main` in this process, since each new process has to import torch again.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import threefold
from threefold.cli import doctor, main
from threefold.cli.mixers import SET_BY_THE_MODEL
from threefold.kernels import library
from threefold.layers.table import MIXERS

COMMANDS = (
    *("train", "resume", "evaluate", "runs", "generate", "stream", "compare", "bench"),
    *("mixers", "tasks", "data", "info", "doctor", "demo", "lab", "tables"),
)

Run = subprocess.CompletedProcess[str]


def run(*arguments: str, **environment: str) -> Run:
    """Run `threefold …` in a new process and capture its output."""
    root = os.fspath(Path(threefold.__file__).parent.parent)
    return subprocess.run(
        [sys.executable, "-m", "threefold", *arguments],
        capture_output=True,
        text=True,
        encoding="utf-8",
        env={
            **os.environ,
            "PYTHONPATH": root,
            "PYTHONUTF8": "1",
            "OMP_NUM_THREADS": "1",  # other tests run at the same time
            **environment,
        },
        timeout=300,
    )


def here(*arguments: str) -> Run:
    """Run `threefold …` in this process and capture its output."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main(arguments)
        except SystemExit as end:
            code = end.code
    assert isinstance(code, int)
    return Run(arguments, code, out.getvalue(), err.getvalue())


def good(*arguments: str, start: Callable[..., Run] = here) -> str:
    """Return the output of a command that must succeed."""
    done = start(*arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def refused(*arguments: str, start: Callable[..., Run] = here) -> str:
    """Return the error message of a command that must be refused."""
    done = start(*arguments)
    assert done.returncode == 2, (done.returncode, done.stdout, done.stderr)
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    return done.stderr.strip()


def on_terminal(columns: int, *arguments: str) -> str:
    """Return the output of a command on a terminal with that many columns."""
    import fcntl
    import pty
    import struct
    import termios

    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    environment = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "NO_COLOR")}
    command = [sys.executable, "-m", "threefold", *arguments]
    process = subprocess.Popen(
        command, stdin=follower, stdout=follower, stderr=follower, env=environment
    )
    os.close(follower)
    printed = b""
    while True:
        try:
            piece = os.read(leader, 65536)
        except OSError:  # raised by Linux when the other end is closed
            break
        if not piece:
            break
        printed += piece
    os.close(leader)
    assert process.wait(timeout=120) == 0
    return printed.decode().replace("\r\n", "\n")


class TestStart:
    @pytest.mark.parametrize(
        ("arguments", "instead"),
        [
            (("train", "x", "--minutes", "3"), "--time"),
            (("train", "x", "--batch", "3"), "--set data.batch_size=16"),
            (("compare", "x", "--batch", "3"), "--batch-size"),
            (("stream", "m", "x", "--what", "anomaly"), "--mode"),
        ],
    )
    def test_an_option_of_elsewhere_is_translated(
        self, arguments: tuple[str, ...], instead: str
    ) -> None:
        assert f"Possible options: {instead})" in refused(*arguments)

    def test_help_without_torch(self) -> None:
        code = (
            "import sys\nfrom threefold.cli import main\n"
            "try:\n    main(['--help'])\nexcept SystemExit:\n"
            "    print('loaded:', [m for m in ('torch', 'numpy', 'rich') if m in sys.modules])"
        )
        start = time.perf_counter()
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        print(f"threefold --help took {time.perf_counter() - start:.2f} s")
        assert done.returncode == 0, done.stderr
        assert "loaded: []" in done.stdout
        for command in COMMANDS:
            assert f"\n  {command} " in done.stdout

    def test_no_arguments_is_help(self) -> None:
        done = run()
        assert "Usage: threefold" in done.stdout + done.stderr

    def test_version(self) -> None:
        assert good("--version").strip() == f"threefold {threefold.__version__}"

    def test_every_command_has_help(self) -> None:
        for command in COMMANDS:
            assert f"Usage: threefold {command}" in good(command, "--help")

    @pytest.mark.parametrize("group", [(), ("runs",), ("data",), ("words",), ("lab",)])
    def test_lists_of_commands_are_not_cut(self, group: tuple[str, ...]) -> None:
        listed = run(*group, "--help", COLUMNS="80").stdout.partition("Commands:")[2]
        assert listed and "..." not in listed

    def test_unknown_command(self) -> None:
        assert "Did you mean 'mixers'?" in refused("mixres")

    def test_unknown_option(self) -> None:
        assert "--json" in refused("mixers", "--jsno")

    def test_interrupt(self) -> None:
        code = (
            "import threefold.cli.app as a, signal, os\n"
            # A background job of a shell starts with the signal ignored.
            "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
            "a.app.command('stop')(lambda: os.kill(os.getpid(), signal.SIGINT))\n"
            "a.main(['stop'])"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert done.returncode == 128 + signal.SIGINT
        assert "Traceback" not in done.stderr

    @pytest.mark.parametrize(
        ("words", "code", "last"),
        [(["--version"], 0, "at exit"), (["nope"], 2, ""), (["broken"], 1, "ZeroDivisionError")],
    )
    def test_a_command_ends_at_once(self, words: list[str], code: int, last: str) -> None:
        """Taking torch apart lasts longer than a signal may wait."""
        program = (
            "import atexit, sys\n"
            "class Slow:\n    def __del__(self): print('taken apart')\n"
            "slow = Slow()\n"
            "import threefold.cli.app as a\n"
            "a.app.command('broken')(lambda: 1 / 0)\n"
            "from threefold.cli import main\n"
            "original, a.main = a.main, lambda given: (atexit.register(print, 'at exit'), "
            "original(given))\n"
            "main()"
        )
        call = [sys.executable, "-c", program, *words]
        done = subprocess.run(call, capture_output=True, text=True)
        assert done.returncode == code, done.stderr
        assert "taken apart" not in done.stdout
        assert done.stdout.endswith("at exit\n")
        assert last in done.stdout + done.stderr

    def test_narrow_encoding(self) -> None:
        done = run("mixers", PYTHONUTF8="0", PYTHONIOENCODING="ascii")
        assert "S = S? + ?(k)?v" in done.stdout, done.stderr


class TestMixers:
    def test_table(self) -> None:
        lines = good("mixers", start=run).splitlines()
        assert " ".join(lines[0].split()) == "NAME FULL NAME YEAR FAMILY FORMS STATE EQUATION"
        rows = lines[1 : 1 + len(MIXERS)]
        assert [line.split()[0] for line in rows] == list(MIXERS)
        assert [line.split()[0] for line in lines[-3:]] == ["FAMILY", "FORMS", "STATE"]  # legend
        for line, entry in zip(rows, MIXERS.values(), strict=True):
            assert line.endswith(entry.equation)
            assert entry.title in line
            assert str(entry.year) in line

    def test_json(self) -> None:
        rows = json.loads(good("mixers", "--width", "64", "--json"))
        assert [row["name"] for row in rows] == list(MIXERS)
        for row in rows:
            assert "problem" not in row, row
            layer = threefold.mixer(row["name"], width=64)
            assert row["state_bytes"] == (layer.state_size(1024) if layer.causal else None)
            assert tuple(row["forms"]) == layer.forms

    def test_width_changes_the_state(self) -> None:
        narrow, wide = (
            json.loads(good("mixers", "gla", "--width", width, "--json")) for width in ("64", "128")
        )
        assert narrow["state_bytes"] < wide["state_bytes"]
        assert narrow["parameters"] < wide["parameters"]

    def test_any_width_is_cheap(self) -> None:
        detail = json.loads(good("mixers", "mamba", "--width", "65536", "--json"))
        assert detail["parameters"] > 10**9

    @pytest.mark.parametrize("name", ["gla", "mamba"])
    def test_detail(self, name: str) -> None:
        layer = threefold.mixer(name, width=256)
        text = good("mixers", name)
        detail = json.loads(good("mixers", name, "--json"))
        assert detail["parameters"] == sum(p.numel() for p in layer.parameters())
        assert {leaf["name"] for leaf in detail["state"]} == set(layer.empty_state(1))
        assert detail["no_decay"] == list(layer.no_decay)
        assert "20" in detail["reference"]
        named = [o["name"] for o in detail["options"] if o["name"] not in SET_BY_THE_MODEL]
        for part in (detail["reference"], *(f"{name}: " for name in named)):
            assert part in text
        assert "layer: int" not in text

    @pytest.mark.parametrize(
        ("name", "deviation"),
        [("rwkv7", "smooth at zero"), ("retnet", "xPos"), ("nystromformer", "authors' default")],
    )
    def test_detail_tells_deviations_from_the_paper(self, name: str, deviation: str) -> None:
        assert deviation in good("mixers", name)
        assert deviation in json.loads(good("mixers", name, "--json"))["notes"]

    def test_unknown_mixer(self) -> None:
        message = refused("mixers", "mambo", start=run)
        expected = "did you mean 'mamba'? (one of your own: --plugin MODULE)"
        assert message == f"Error: unknown mixer 'mambo'; {expected}"

    def test_bad_width(self) -> None:
        assert "multiple of 16" in refused("mixers", "--width", "100")
        assert "--width" in refused("mixers", "--width", "0")
        assert "--width" in refused("mixers", "--width", "wide")

    def test_fits_a_terminal(self) -> None:
        text = on_terminal(80, "mixers")
        plain = [line for line in text.splitlines() if "\x1b" not in line]
        assert max(map(len, plain)) <= 80
        for entry in MIXERS.values():
            assert entry.title in text
            assert "".join(entry.equation.split()) in "".join(text.split())

    def test_wide_terminal_has_one_line_each(self) -> None:
        lines = on_terminal(250, "mixers").splitlines()
        assert [line.split()[0] for line in lines[1 : 1 + len(MIXERS)]] == list(MIXERS)
        assert lines[1 + len(MIXERS)].strip() == ""


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a saved model, `model`, and one of its states, `state.safetensors`."""
    folder = tmp_path_factory.mktemp("saved")
    mixers = ("gla", ("mamba", {"expand": 1}))
    model = threefold.build(threefold.Spec("language", width=32, depth=2, mixers=mixers))
    model.save(folder / "model")
    _, state = model(torch.randint(256, (3, 5)))
    threefold.save_state(folder / "state.safetensors", state, model, position=5)
    return folder


class TestInfo:
    def test_model(self, saved: Path) -> None:
        model = threefold.load(saved / "model")
        text = good("info", str(saved / "model"))
        facts = json.loads(good("info", str(saved / "model"), "--json"))
        assert threefold.Spec.from_dict(facts["spec"]) == model.spec
        assert facts["parameters"] == model.parameter_count
        assert facts["state_bytes"] == model.state_size(1024)
        assert tuple(facts["forms"]) == model.forms
        assert facts["bytes_on_disk"] == sum(f.stat().st_size for f in (saved / "model").iterdir())
        for part in ("gla, mamba(expand=1)", "32 × 2", f"{model.parameter_count:,}", "256"):
            assert part in text

    def test_state(self, saved: Path) -> None:
        facts = json.loads(good("info", str(saved / "state.safetensors"), "--json"))
        assert facts["type"] == "state"
        assert facts["rows"] == 3
        assert facts["position"] == [5, 5, 5]
        assert facts["digest"] == threefold.load(saved / "model").spec.digest
        text = good("info", str(saved / "state.safetensors"))
        assert "a state of a language model" in text

    def test_absent(self, tmp_path: Path) -> None:
        assert "folder not found" in refused("info", str(tmp_path / "none"), start=run)

    def test_foreign(self, tmp_path: Path) -> None:
        assert "config.json" in refused("info", str(tmp_path))
        (tmp_path / "config.json").write_text('{"model_type": "gpt2"}', encoding="utf-8")
        assert "gpt2" in refused("info", str(tmp_path))
        (tmp_path / "config.json").write_text("{", encoding="utf-8")
        assert "not valid JSON" in refused("info", str(tmp_path))
        (tmp_path / "notes.txt").write_text("nothing", encoding="utf-8")
        assert "not a safetensors file" in refused("info", str(tmp_path / "notes.txt"))

    def test_weights_are_not_a_state(self, saved: Path) -> None:
        message = refused("info", str(saved / "model" / "model.safetensors"))
        assert "not a state" in message

    @pytest.mark.parametrize("size", [0, 4, 100, -1])
    def test_cut_short(self, saved: Path, tmp_path: Path, size: int) -> None:
        folder = shutil.copytree(saved / "model", tmp_path / "model")
        weights = folder / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:size])
        assert "truncated" in refused("info", str(folder))
        state = tmp_path / "state.safetensors"
        state.write_bytes((saved / "state.safetensors").read_bytes()[:size])
        assert "truncated" in refused("info", str(state))

    @pytest.mark.parametrize(
        ("damage", "message"),
        [
            ("shape", "norm.weight is (3,) torch.float32, expected (32,)"),
            ("name", "lacks"),
            ("byte", "SHA-256 differs"),
            ("nan", "contains NaN (1 of"),
            ("card", "README.md: file not found"),
        ],
    )
    def test_damaged(self, saved: Path, tmp_path: Path, damage: str, message: str) -> None:
        folder = tmp_path / "model"
        model = threefold.load(saved / "model")
        if damage == "nan":  # as a diverged training leaves it
            next(model.parameters()).data[0, 0] = torch.nan
        model.save(folder)
        weights = folder / "model.safetensors"
        tensors = load_file(weights)
        if damage == "shape":
            save_file({**tensors, "norm.weight": torch.zeros(3)}, weights)
        if damage == "name":
            save_file({name: tensors[name] for name in list(tensors)[1:]}, weights)
        if damage == "byte":
            content = bytearray(weights.read_bytes())
            content[-1] ^= 1
            weights.write_bytes(content)
        if damage == "card":
            (folder / "README.md").unlink()
        assert message in refused("info", str(folder))

    def test_no_weights(self, saved: Path, tmp_path: Path) -> None:
        folder = shutil.copytree(saved / "model", tmp_path / "model")
        (folder / "model.safetensors").unlink()
        assert "no weights" in refused("info", str(folder))

    def test_no_argument(self) -> None:
        assert "PATH" in refused("info")


class TestDoctor:
    def test_report(self) -> None:
        text = good("doctor")
        for word in ("threefold", "torch", "threads", "kernels", "short_convolution", "checks"):
            assert word in text
        assert "✗" not in text

    def test_json(self) -> None:
        report = json.loads(good("doctor", "--json"))
        assert report["versions"]["threefold"] == threefold.__version__
        assert all(check["passed"] for check in report["checks"])
        names = {check["name"].partition(":")[0] for check in report["checks"]}
        assert names >= report["operations"].keys()
        kernels = report["kernels"]
        assert set(kernels["runnable"]) | set(kernels["untested"]) == set(kernels["built"])

    def test_reference(self) -> None:
        with library.using("reference"):
            report = json.loads(good("doctor", "--json"))
            text = good("doctor")
        assert report["kernels"]["variant"] is None
        assert set(report["operations"].values()) == {"reference"}
        assert "plain PyTorch is used: THREEFOLD_KERNELS=reference" in text
        assert "Everything works, but slowly" in text

    def test_bad_choice(self) -> None:
        done = run("doctor", THREEFOLD_KERNELS="fast")
        assert done.returncode == 2
        assert "'fast'" in done.stderr
        assert "Traceback" not in done.stderr

    def test_failed_check_is_exit_code_1(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(doctor, "checks", lambda: iter([("one: a = b", 1.0)]))
        done = here("doctor")
        assert done.returncode == 1
        assert "✗ one: a = b" in done.stdout
        assert "1 of 1 checks failed" in done.stdout


class TestDemo:
    def test_unknown_mixer(self) -> None:
        assert "did you mean 'gla'" in refused("demo", "--mixers", "mamba,glaa")

    def test_no_mixer(self) -> None:
        assert "a name is empty" in refused("demo", "--mixers", ",")
        assert "'gru,': a name is empty" in refused("compare", "recall", "--mixers", "gru,")

    def test_bad_seconds(self) -> None:
        assert "--time" in refused("demo", "--time", "0s")
