"""A classifier trained at one sampling rate, listening at others: `threefold lab rates`.

Chords of sines at 256 samples a second → a classifier of two filter layers; then the same held-out
sounds at lower rates, with Δ told (`set_rate`) and without.  Nothing is trained again.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from threefold.data.loaders import Batch
from threefold.drawing.figures import COLOURS, FAINT, GREY, look, new_figure, save
from threefold.layers.state_space_mixer import set_rate
from threefold.models.spec import Spec
from threefold.models.table import build
from threefold.tasks.chords import CHORDS, chords
from threefold.training.optimizer import adamw
from threefold.training.optimizer import scale_learning_rate as scale_learning

RATES = (1.0, 0.75, 0.5, 0.375, 0.25)


@dataclass(frozen=True)
class SamplingRateStudy:
    """How to train."""

    mixer: str = "s4d"
    length: int = 256
    width: int = 32
    depth: int = 2
    batch: int = 32
    steps: int = 300
    learning_rate: float = 1e-2
    seed: int = 0


@dataclass(frozen=True)
class Accuracies:
    """At one rate: with Δ told, and as if nothing had changed."""

    rate: float
    told: float
    untold: float


def make(plan: SamplingRateStudy) -> nn.Module:
    """The classifier.  No pole turns by more than half a turn between samples at half the rate."""
    filter_ = {"state_size": 16, "delta_range": (0.002, 0.05)}
    spec = Spec(
        "classifier",
        width=plan.width,
        depth=plan.depth,
        mixers=((plan.mixer, filter_),),
        channel="none",
        options={"classes": len(CHORDS), "input_size": 1, "pooling": "mean"},
    )
    torch.manual_seed(plan.seed)
    return build(spec)


def train(plan: SamplingRateStudy) -> nn.Module:
    """The classifier, trained on fresh rows at the full rate; the learning rate falls to 0."""
    model = make(plan)
    optimiser = adamw(model, plan.learning_rate, weight_decay=0.01)
    batches = chords(plan.length, seed=plan.seed).batches(plan.batch, plan.seed)
    for step in range(1, plan.steps + 1):
        rows = batches(step)
        scale_learning(optimiser, min(1.0, 1.5 * (1 - step / (plan.steps + 1))))
        optimiser.zero_grad(set_to_none=True)
        F.cross_entropy(model(rows.inputs)[0], rows.targets).backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
    return model.eval()


def measure(
    model: nn.Module, plan: SamplingRateStudy, rates: tuple[float, ...] = RATES
) -> list[Accuracies]:
    """The same held-out sounds at each rate."""
    found = []
    for rate in rates:
        rows = chords(plan.length, rate=rate, seed=plan.seed).examples("test")
        set_rate(model, rate)
        told = score(model, rows)
        set_rate(model, 1.0)
        found.append(Accuracies(rate, told, score(model, rows)))
    return found


def score(model: nn.Module, rows: Batch) -> float:
    """The part that is right."""
    with torch.no_grad():
        return float((model(rows.inputs)[0].argmax(-1) == rows.targets).double().mean())


def draw(found: list[Accuracies], plan: SamplingRateStudy) -> Any:
    """Accuracy over the sampling rate, and one sound at two rates."""
    with look():
        figure = new_figure(10, 3.6)
        left, right = figure.subplots(1, 2, width_ratios=(1, 1.3))
        rates = [one.rate for one in found]
        for label, values, colour in (
            ("Δ told the rate", [100 * one.told for one in found], COLOURS[0]),
            ("Δ left as it was", [100 * one.untold for one in found], COLOURS[1]),
        ):
            left.plot(rates, values, "o-", color=colour, markersize=4, label=label)
        left.axhline(100 / len(CHORDS), color=GREY, linewidth=0.8, linestyle=":")
        left.annotate("chance", (1, 100 / len(CHORDS)), xytext=(2, 3),
                      textcoords="offset points", color=GREY)  # fmt: skip
        left.set(xlabel="sampling rate, of that trained at", ylim=(0, 103), xlim=(1.03, 0.2))
        left.set_xticks(rates, [f"{rate:g}" for rate in rates])
        left.set_title(f"% of chords right: {plan.mixer}, trained at rate 1 only")
        left.grid(axis="y", color=FAINT, linewidth=0.7)
        left.legend(loc="center right")
        for rate, style in ((1.0, {"color": GREY, "linewidth": 1.2}),
                            (0.5, {"color": COLOURS[0], "marker": "o", "markersize": 3,
                                   "linestyle": "none"})):  # fmt: skip
            sound = chords(plan.length, rate=rate).rows("test", [3]).inputs[0, :, 0]
            time = (torch.arange(len(sound)) + 1) / len(sound)
            right.plot(time, sound, label=f"rate {rate:g}, {len(sound)} samples", **style)
        right.set(xlabel="time, s", yticks=[], xlim=(0, 1))
        right.margins(y=0.16)
        right.spines["left"].set_visible(False)
        right.set_title("one chord")
        right.legend(loc="upper right", ncols=2)
    return figure


def run(folder: Path, plan: SamplingRateStudy | None = None) -> list[str]:
    """Train, draw rates.png and rates.svg; the lines that say what was found and written."""
    plan = plan or SamplingRateStudy()
    found = measure(train(plan), plan)
    paths = save(draw(found, plan), folder, "rates")
    lines = [
        f"rate {one.rate:<6g}{100 * one.told:6.1f} % right   Δ as it was: {100 * one.untold:.1f} %"
        for one in found
    ]
    return [*lines, *(f"wrote {path}" for path in paths)]
