"""Does a language model hold on a long stream?  `threefold lab streams TEXT`.

Each mixer is trained twice on the first part of a text, byte by byte: on random windows, each from
an empty state, and with the state carried from batch to batch (`training.carry_state`).  Then the
test part, up to 1 MB, is read as one stream.  The ratio is the bits per byte beyond 20,000 elements
with the state carried all the way, beside the same elements with a state that has read 200 to 400.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from threefold.data.atomic_files import write_text
from threefold.drawing.page import standalone
from threefold.training.api import train
from threefold.training.evaluations.figures import position_chart
from threefold.training.stream_errors import stream_errors

MIXERS = ("mamba", "gru", "gla", "linear_attention")
TRAININGS = {"windows": False, "streams": True}


@dataclass(frozen=True)
class StreamStudy:
    """The models and their training."""

    steps: int = 400
    width: int = 64
    depth: int = 2
    length: int = 128
    trainings: tuple[str, ...] = tuple(TRAININGS)
    seed: int = 0


def measure(text: Path, mixer: str, carry: bool, plan: StreamStudy) -> dict[str, Any]:
    """The errors of a model along the text's test split, by position."""
    settings = {
        "model.width": plan.width, "model.depth": plan.depth, "data.length": plan.length,
        "data.tokenizer": "byte", "training.carry_state": carry, "data.eval_examples": 64,
    }  # fmt: skip
    trained = train(
        str(text), mixers=mixer, steps=plan.steps, seed=plan.seed, settings=settings,
        kind="language",
    )  # fmt: skip
    assert trained.data is not None
    return stream_errors(trained.model, trained.data.task, "test").values()


def lines(
    text: Path, mixers: Sequence[str], plan: StreamStudy, figure: Path | None = None
) -> Iterator[str]:
    """The lines of the table, each as soon as a model is measured; then the figure."""
    yield "| mixer | trained on | bits per byte at the start | beyond 20,000 | fresh | ratio |"
    yield "|---|---|---|---|---|---|"
    curves: dict[str, Any] = {}
    for mixer in mixers or MIXERS:
        for name in plan.trainings:
            places = measure(text, mixer, TRAININGS[name], plan)
            curves[mixer if len(plan.trainings) == 1 else f"{mixer}, {name}"] = places
            yield _line(mixer, name, places)
            if figure is not None:
                write_text(figure, standalone(position_chart(curves)))
    if figure is not None:
        yield f"figure: {figure}"


def _line(mixer: str, name: str, places: dict[str, Any]) -> str:
    far = [line for line in places["lines"] if line["begin"] >= places["far"]]
    count = sum(line["count"] for line in far)
    means = [
        sum(line[kind] * line["count"] for line in far) / max(count, 1)
        for kind in ("carried", "fresh")
    ]
    first = places["lines"][0]["carried"]
    ratio = "–" if places["ratio_far"] is None else f"{places['ratio_far']:.3f}"
    cells = [mixer, name, f"{first:.3f}", *(f"{mean:.3f}" for mean in means), ratio]
    return f"| {' | '.join(cells)} |"
