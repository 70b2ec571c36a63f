"""The demonstration with a budget of a few seconds: trains, prints the table and the samples."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from threefold.lab import demo
from threefold.layers.table import MIXERS


def test_the_demo_prints_a_table_and_samples() -> None:
    out = io.StringIO()
    rows = demo.run(seconds=4, mixers=("gla", "retnet"), console=Console(file=out, width=120))
    text = out.getvalue()
    for column in ("mixer", "nats", "bits per byte", "parameters", "tokens/s", "state bytes"):
        assert column in text
    assert "\x1b" not in text  # plain where there is no terminal
    for row in rows:
        assert row.result.stopped == "seconds"
        assert 1.7 <= row.result.seconds < 30
        assert row.result.scores.loss < row.result.losses[0]  # it learnt
        assert row.decode_rate > 0
        assert row.sample.startswith(demo.PROMPT)
        assert len(row.sample) > 100
        line = next(line for line in text.splitlines() if f"{row.parameters:,}" in line)
        assert row.mixer in line
        assert f"{row.state_size:,}" in line
        assert f"{row.result.scores.loss:.3f}" in line
    assert [row.mixer for row in rows] == ["gla", "retnet"]


def test_ctrl_c_shows_what_was_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    train = demo.train

    def interrupted(*args: object, **options: object) -> object:
        result = train(*args, **options)  # type: ignore[arg-type]
        result.stopped = "interrupted"
        return result

    monkeypatch.setattr(demo, "train", interrupted)
    out = io.StringIO()
    rows = demo.run(seconds=1, mixers=("gla", "retnet"), console=Console(file=out, width=120))
    assert [row.mixer for row in rows] == ["gla"]
    assert "bits per byte" in out.getvalue()


@pytest.mark.parametrize("name", demo.MIXERS)
def test_the_models_of_the_demo_are_alike_in_size(name: str) -> None:
    assert name in MIXERS
    assert 200_000 < demo.language_model(name).parameter_count < 400_000


def test_the_seed_sets_the_weights() -> None:
    weights = [next(demo.language_model("gla", seed).parameters()) for seed in (1, 1, 2)]
    assert weights[0].equal(weights[1])
    assert not weights[0].equal(weights[2])
