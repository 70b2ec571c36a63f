"""`threefold bench`: what is measured, where lines cross, how growth is fitted."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

import threefold
from tests.surfaces.test_cli import here
from tests.surfaces.test_report_page import Outline
from threefold.errors import ThreefoldError
from threefold.lab.bench import bench
from threefold.lab.bench.measuring import costs, crossing, growth, in_turns, peak_memory


def test_growth_finds_the_exponent_and_its_residual() -> None:
    exact = growth([(n, 3e-6 * n**1.5) for n in (10, 100, 1000)])
    assert exact.exponent == pytest.approx(1.5) and exact.residual < 1e-9
    rough = growth([(1, 1.0), (2, 4.0), (4, 4.0)])
    assert rough.exponent == pytest.approx(1.0) and rough.residual > 0.2
    with pytest.raises(ThreefoldError, match="two or more positive"):
        growth([(1, 1.0)])


def test_crossings_are_where_the_lines_cross() -> None:
    lengths = (64, 256, 1024, 4096)
    linear, square = ({n: f(n) for n in lengths} for f in (lambda n: 500.0 * n, lambda n: n**2.0))
    assert crossing(linear, square) == pytest.approx((500, 500**2))
    assert crossing(square, linear) is None
    assert crossing(linear, linear) is None


def test_times_and_peak_memory() -> None:
    small, large = torch.randn(50, 50), torch.randn(700, 700)
    times = in_turns({"small": lambda: small @ small, "large": lambda: large @ large}, 0.01)
    assert 0 < times["small"] < times["large"]
    needed = peak_memory(lambda: torch.ones(8_000_000).sum())
    assert math.isnan(needed) or 30e6 < needed < 60e6


def test_two_points_have_no_deviation() -> None:
    assert bench.exponent([(16, 1.0), (32, 2.0)]) == "L^1.00"
    assert bench.exponent([(16, 1.0), (32, 2.0), (64, 4.0)]) == "L^1.00 (± 0 %)"


def test_bench_draws_and_writes(tmp_path: Path) -> None:
    shapes = bench.Shapes(
        ("attention", "gla", "fnet"), (16, 32), ("chunk", "step"), width=32, seconds=0.001
    )
    found = bench.measure(shapes)
    assert [line.name for line in found.lines] == [
        "attention chunk",
        "attention step",
        "gla chunk",
        "gla step",
    ]
    assert ("fnet step", "has no step form") in found.refused
    page = found.save(tmp_path).read_text(encoding="utf-8")
    assert Outline(page).wrong == [] and Outline(page).loads == []
    values = json.loads((tmp_path / "bench.json").read_text(encoding="utf-8"))
    assert len(values["lines"][0]["time"]) == 2
    assert (tmp_path / "figures" / "time-against-length.svg").is_file()


def test_costs_of_models() -> None:
    models = {
        name: threefold.build(threefold.Spec("language", width=32, depth=1, mixers=name))
        for name in ("attention", "gru")
    }
    found = costs(models, (16, 32), tokens=64, seconds=0.001)
    for cost in found.values():
        for field in ("training", "inference", "prefill", "decode", "state"):
            assert [length for length, _ in getattr(cost, field)] == [16, 32], field
    assert found["gru"].state[0][1] == found["gru"].state[1][1]
    assert found["attention"].state[1][1] > 1.9 * found["attention"].state[0][1]


def test_costs_of_classifiers_and_of_models_that_do_not_stream() -> None:
    options = {"input_size": 2, "classes": 3}
    models = {
        name: threefold.build(
            threefold.Spec("classifier", width=32, depth=1, mixers=name, options=options)
        )
        for name in ("fnet", "s4d")
    }
    found = costs(models, (16,), tokens=64, seconds=0.001)
    assert found["fnet"].decode == () and found["fnet"].state == ()
    assert found["fnet"].training and found["s4d"].decode


def test_costs_of_translators_and_of_pairs() -> None:
    sizes = {"width": 32, "depth": 1, "vocabulary": 20}
    models = {
        "seq2seq": threefold.build(
            threefold.Spec("seq2seq", mixers="gru", options={"source_vocabulary": 11}, **sizes)
        ),
        "transformer": threefold.build(threefold.Spec("transformer", mixers="attention", **sizes)),
    }
    found = costs(models, (16, 32), tokens=64, seconds=0.001)
    for cost in found.values():
        for field in ("training", "inference", "prefill", "decode", "state"):
            assert [length for length, _ in getattr(cost, field)] == [16, 32], field
    options = {"pair": True, "classes": 2}
    pair = {
        "lstm": threefold.build(
            threefold.Spec("classifier", mixers="lstm", options=options, **sizes)
        )
    }
    cost = costs(pair, (16,), tokens=64, seconds=0.001)["lstm"]
    assert cost.training and cost.prefill and cost.decode == () == cost.state


def test_bench_from_the_shell(tmp_path: Path) -> None:
    command = ("bench", "gla,lstm", "--lengths", "16,32", "--batch-size", "2", "--folder")
    done = here(*command, str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[1].startswith("gla")
    assert (tmp_path / "bench.html").is_file()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("mambo",), "did you mean 'mamba'?"),
        (("gla", "--lengths", "a"), "expected whole numbers"),
        (("gla", "--forms", "chunky"), "unknown form 'chunky'; did you mean 'chunk'?"),
        (("fnet", "--forms", "step", "--lengths", "16"), "has no step form"),
    ],
)
def test_bad_input(arguments: tuple[str, ...], message: str) -> None:
    done = here("bench", *arguments)
    assert done.returncode == 2 and message in done.stderr
