"""README and ARCHITECTURE tell the truth: Python and commands run, the table is right."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from threefold.layers.mixer import Mixer
from threefold.layers.table import MIXERS

ROOT = Path(__file__).parent.parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
ARCHITECTURE = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")


def blocks(text: str, language: str) -> list[str]:
    """The fenced blocks of one language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def commands(text: str) -> list[str]:
    """The shell commands, one a line."""
    lines = (line.strip() for block in blocks(text, "sh") for line in block.splitlines())
    return [line for line in lines if line and not line.startswith(("#", "make "))]


def mixer_table() -> str:
    """The table of mixers as README must have it."""
    rows = [
        f"| `{e.name}` | {e.title} | {e.year} | `{e.equation.replace('|', chr(92) + '|')}` |"
        for e in MIXERS.values()
    ]
    return "\n".join(["| name | full name | year | equation |", "|---|---|---|---|", *rows])


def start(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    # One thread: other tests run beside this one, and threads that wait for each other are slow.
    environment = {**os.environ, "PYTHONPATH": os.fspath(ROOT), "PYTHONUTF8": "1"}
    environment["OMP_NUM_THREADS"] = "1"
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, encoding="utf-8",
        timeout=300,
    )  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where README's Python has run, so that its commands find what it saved."""
    folder = tmp_path_factory.mktemp("readme")
    script = folder / "readme.py"
    script.write_text("\n".join(blocks(README, "python")), encoding="utf-8")
    done = start([sys.executable, "-W", "error::UserWarning", script.name], folder)
    assert done.returncode == 0, done.stderr
    assert "loss" in done.stdout
    return folder


def test_python_runs(folder: Path) -> None:
    assert (folder / "parrot" / "config.json").is_file()
    assert (folder / "after_1000.safetensors").is_file()


def test_commands_run(folder: Path) -> None:
    """One after another: some use what others wrote."""
    for command in commands(README):
        program, *arguments = command.split()
        assert program == "threefold"
        done = start([sys.executable, "-m", program, *arguments], folder)
        assert done.returncode == 0, f"{command}: {done.stderr}"
        assert done.stdout, command


def test_mixer_table() -> None:
    found = re.search(r"<!-- mixers.*?-->\n(.*?)\n?<!-- /mixers -->", README, re.DOTALL)
    assert found is not None
    assert found.group(1) == mixer_table(), f"README.md needs this table:\n{mixer_table()}"


def test_links_lead_somewhere() -> None:
    for text in (README, ARCHITECTURE):
        for target in re.findall(r"\]\(([^)#]+)\)", text):
            assert (ROOT / target).is_file(), target


def test_example_mixer_keeps_the_law() -> None:
    """ARCHITECTURE's complete example of a mixer works as it stands."""
    (source,) = blocks(ARCHITECTURE, "python")
    names: dict[str, object] = {"__name__": "example"}
    exec(compile(source, "ARCHITECTURE.md", "exec"), names)
    made: Any = names["Leaky"]
    assert issubclass(made, Mixer)
    torch.manual_seed(0)
    mixer = made(32, heads=2).double()
    x = torch.randn(2, 20, 32, dtype=torch.float64)
    whole, _ = mixer(x, form="parallel")
    for form in ("step", "chunk"):
        assert torch.allclose(mixer(x, form=form)[0], whole, rtol=0, atol=1e-12)
    mask = torch.arange(20).expand(2, 20) < torch.tensor([[20], [7]])
    padded, _ = mixer(torch.where(mask[..., None], x, torch.nan), mask=mask)
    assert torch.allclose(padded[1, :7], whole[1, :7], rtol=0, atol=1e-12)
    assert len(source.splitlines()) <= 60


def test_extraction_finds_what_is_there() -> None:
    assert len(blocks(README, "python")) >= 4
    assert len(commands(README)) >= 5
    assert commands("```sh\nmake demo\nthreefold doctor  \n```\n") == ["threefold doctor"]
    assert blocks("```python\na\n```\n```sh\nb\n```\n", "python") == ["a\n"]
