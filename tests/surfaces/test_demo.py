"""The demonstration with a budget of a few seconds: a race on real text, a page, a sample."""

from __future__ import annotations

from pathlib import Path

from tests.surfaces.test_cli import here
from threefold.lab.race.demo import PROMPT


def test_the_demo_races_and_says_where_the_page_is(tmp_path: Path) -> None:
    done = here("demo", "--seconds", "3", "--mixers", "gla,gru", "--folder", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert f"report: {tmp_path / 'report.html'}" in done.stdout
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "<svg" in page and "python-reference" in page
    sample = done.stdout.split("writes:\n")[1]
    assert sample.startswith(PROMPT) and len(sample) > 100
    assert "\x1b" not in done.stdout  # plain where there is no terminal
