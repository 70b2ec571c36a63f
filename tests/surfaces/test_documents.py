"""The documentation is true: its Python and commands run, generated pages and links are right."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.surfaces.documents import DOCUMENTS
from threefold.cli.mixers import build_without_weights
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


def start(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    # One thread: other tests run beside this one, and threads that wait for each other are slow.
    environment = {**os.environ, "PYTHONPATH": os.fspath(ROOT), "PYTHONUTF8": "1"}
    environment["OMP_NUM_THREADS"] = "1"
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, encoding="utf-8",
        timeout=300,
    )  # fmt: skip


@pytest.mark.parametrize("name", ["README.md", "docs/guide.md"])
def test_python_and_commands_run(name: str, tmp_path: Path) -> None:
    """The Python of a page as one script, then its commands one after another.

    A block that begins with `# name.py` is that file.
    """
    page = (ROOT / name).read_text(encoding="utf-8")
    script, python = tmp_path / "page.py", blocks(page, "python")
    files = {m[1]: text for text in python if (m := re.match(r"# (\w+\.py)\n", text))}
    for file, text in files.items():
        (tmp_path / file).write_text(text, encoding="utf-8")
    rest = [text for text in python if text not in files.values()]
    script.write_text("\n".join(rest), encoding="utf-8")
    done = start([sys.executable, "-W", "error::UserWarning", script.name], tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout
    for command in commands(page):
        program, *arguments = command.split()
        assert program == "threefold"
        done = start([sys.executable, "-m", program, *arguments], tmp_path)
        assert done.returncode == 0, f"{command}: {done.stderr}"
        assert done.stdout or done.stderr, command


@pytest.mark.parametrize("name", DOCUMENTS)
def test_generated_pages_are_up_to_date(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    assert text == DOCUMENTS[name](), "run `python -m tests.surfaces.documents`"


def test_parity_page_has_every_mixer() -> None:
    lines = (ROOT / "docs" / "parity.md").read_text(encoding="utf-8").splitlines()
    compared = [line.split("|")[1].strip() for line in lines if line.startswith("| ")]
    assert list(dict.fromkeys(compared[2:])) == list(MIXERS)


def test_readme_counts_the_forms() -> None:
    """README says how many mixers have which forms, and whose state grows."""
    layers = {name: build_without_weights(name, 64) for name in MIXERS}
    forms = Counter(layer.forms for layer in layers.values())
    assert f"{len(MIXERS)} sequence layers" in README
    assert (
        f"{forms['step', 'chunk', 'parallel']} of the {len(MIXERS)} mixers have all three" in README
    )
    words = {13: "thirteen", 8: "eight"}
    assert f"{words[forms['step', 'chunk']]} nonlinear cells" in README
    assert f"{words[forms[('parallel',)]]} mixers are not causal" in README
    causal = {name: layer for name, layer in layers.items() if layer.causal}
    growing = [n for n, layer in causal.items() if layer.state_size(10) != layer.state_size(10**6)]
    assert growing == ["attention", "long_conv", "ckconv", "hyena"]


def test_links_lead_somewhere() -> None:
    for page in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "docs/guide.md"):
        text = (ROOT / page).read_text(encoding="utf-8")
        for target in re.findall(r"\]\(([^)#]+)\)", text):
            assert ((ROOT / page).parent / target).is_file(), f"{page}: {target}"


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
    assert len(blocks(README, "python")) >= 2
    assert len(commands(README)) >= 5
    assert commands("```sh\nmake demo\nthreefold doctor  \n```\n") == ["threefold doctor"]
    assert blocks("```python\na\n```\n```sh\nb\n```\n", "python") == ["a\n"]
