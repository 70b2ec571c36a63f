"""A classifier trained at one sampling rate, evaluated at others: `threefold lab sampling-rates`.

Chords of sines at 256 samples per second → a classifier with two filter layers; then the same
held-out sounds at lower rates, with Δ adjusted to the rate (`set_rate`) and without.  Nothing is
trained again.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from threefold.data.loaders import Batch
from threefold.drawing.figures import COLOURS, FAINT, GREY, new_figure, save, style
from threefold.layers.state_space_mixer import set_rate
from threefold.models.spec import Spec
from threefold.models.table import build
from threefold.tasks.chords import CHORDS, chords
from threefold.training.optimizer import adamw, scale_learning_rate

RATES = (1.0, 0.75, 0.5, 0.375, 0.25)


@dataclass(frozen=True)
class SamplingRateStudy:
    """Training settings."""

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
    """Accuracies at one sampling rate: with Δ adjusted to it, and with Δ unchanged."""

    rate: float
    adjusted: float
    unchanged: float


def make(plan: SamplingRateStudy) -> nn.Module:
    """The classifier.  Its poles rotate by at most half a turn per sample at half the rate."""
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
    """The classifier, trained on new sounds at the full rate; the learning rate decays to 0."""
    model = make(plan)
    optimiser = adamw(model, plan.learning_rate, weight_decay=0.01)
    batches = chords(plan.length, seed=plan.seed).batches(plan.batch, plan.seed)
    for step in range(1, plan.steps + 1):
        rows = batches(step)
        scale_learning_rate(optimiser, min(1.0, 1.5 * (1 - step / (plan.steps + 1))))
        optimiser.zero_grad(set_to_none=True)
        F.cross_entropy(model(rows.inputs)[0], rows.targets).backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
    return model.eval()


def measure(
    model: nn.Module, plan: SamplingRateStudy, rates: tuple[float, ...] = RATES
) -> list[Accuracies]:
    """Accuracies on the same held-out sounds at each rate."""
    accuracies = []
    for rate in rates:
        rows = chords(plan.length, rate=rate, seed=plan.seed).examples("test")
        set_rate(model, rate)
        adjusted = score(model, rows)
        set_rate(model, 1.0)
        accuracies.append(Accuracies(rate, adjusted, score(model, rows)))
    return accuracies


def score(model: nn.Module, rows: Batch) -> float:
    """The accuracy."""
    with torch.no_grad():
        return float((model(rows.inputs)[0].argmax(-1) == rows.targets).double().mean())


def draw(accuracies: list[Accuracies], plan: SamplingRateStudy) -> Any:
    """Accuracy over the sampling rate, and one sound at two rates."""
    with style():
        figure = new_figure(10, 3.6)
        left, right = figure.subplots(1, 2, width_ratios=(1, 1.3))
        rates = [one.rate for one in accuracies]
        for label, values, colour in (
            ("Δ adjusted to the rate", [100 * one.adjusted for one in accuracies], COLOURS[0]),
            ("Δ unchanged", [100 * one.unchanged for one in accuracies], COLOURS[1]),
        ):
            left.plot(rates, values, "o-", color=colour, markersize=4, label=label)
        left.axhline(100 / len(CHORDS), color=GREY, linewidth=0.8, linestyle=":")
        left.annotate("chance", (1, 100 / len(CHORDS)), xytext=(2, 3),
                      textcoords="offset points", color=GREY)  # fmt: skip
        left.set(xlabel="sampling rate relative to training", ylim=(0, 103), xlim=(1.03, 0.2))
        left.set_xticks(rates, [f"{rate:g}" for rate in rates])
        left.set_title(f"accuracy in %: {plan.mixer}, trained at rate 1 only")
        left.grid(axis="y", color=FAINT, linewidth=0.7)
        left.legend(loc="center right")
        for rate, looks in ((1.0, {"color": GREY, "linewidth": 1.2}),
                            (0.5, {"color": COLOURS[0], "marker": "o", "markersize": 3,
                                   "linestyle": "none"})):  # fmt: skip
            sound = chords(plan.length, rate=rate).rows("test", [3]).inputs[0, :, 0]
            time = (torch.arange(len(sound)) + 1) / len(sound)
            right.plot(time, sound, label=f"rate {rate:g}, {len(sound)} samples", **looks)
        right.set(xlabel="time, s", yticks=[], xlim=(0, 1))
        right.margins(y=0.16)
        right.spines["left"].set_visible(False)
        right.set_title("one chord")
        right.legend(loc="upper right", ncols=2)
    return figure


def run(folder: Path, plan: SamplingRateStudy | None = None) -> list[str]:
    """Train, draw sampling-rates.png and .svg; returns the lines to print."""
    plan = plan or SamplingRateStudy()
    accuracies = measure(train(plan), plan)
    paths = save(draw(accuracies, plan), folder, "sampling-rates")
    lines = [
        f"rate {one.rate:<6g}{100 * one.adjusted:6.1f} % accuracy   with Δ unchanged: "
        f"{100 * one.unchanged:.1f} %"
        for one in accuracies
    ]
    return [*lines, *(f"wrote {path}" for path in paths)]
