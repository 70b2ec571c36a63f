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

from threefold.drawing.figures import COLOURS, FAINT, GREY, new_figure, save, style
from threefold.layers.state_space_mixer import set_rate
from threefold.models.model import Model
from threefold.tasks.chords import CHORDS, chords
from threefold.training.config import DataSettings, ModelSettings, RunConfig
from threefold.training.experiment import evaluate_split
from threefold.training.experiment import run as run_experiment
from threefold.training.settings import TrainingSettings
from threefold.training.training_data import open_data

RATES = (1.0, 0.75, 0.5, 0.375, 0.25)


@dataclass(frozen=True)
class SamplingRateStudy:
    """Training settings."""

    mixer: str = "s4d"
    length: int = 256
    width: int = 32
    depth: int = 2
    batch_size: int = 32
    steps: int = 300
    learning_rate: float = 1e-2
    seed: int = 0

    @property
    def data(self) -> DataSettings:
        """Sounds at the full rate."""
        return DataSettings(
            name="chords",
            length=self.length,
            batch_size=self.batch_size,
            options={"seed": self.seed},
            seed=self.seed,
        )

    @property
    def config(self) -> RunConfig:
        """The run.  Poles rotate by at most half a turn per sample at half the rate."""
        filter_ = {"state_size": 16, "delta_range": (0.002, 0.05)}
        return RunConfig(
            data=self.data,
            model=ModelSettings(
                mixers=((self.mixer, filter_),),
                width=self.width,
                depth=self.depth,
                channel="none",
                seed=self.seed,
            ),
            training=TrainingSettings(
                steps=self.steps,
                learning_rate=self.learning_rate,
                final_lr=0.0,
                schedule="stable",
                decay_fraction=2 / 3,
                warmup_fraction=0.0,
                weight_decay=0.01,
                seed=self.seed,
            ),
        )


@dataclass(frozen=True)
class Accuracies:
    """Accuracies at one sampling rate: with Δ adjusted to it, and with Δ unchanged."""

    rate: float
    adjusted: float
    unchanged: float


def train(plan: SamplingRateStudy) -> Model:
    """The classifier, trained on new sounds at the full rate; the learning rate decays to 0."""
    return run_experiment(plan.config, reporters=(), test=False).complete().model


def measure(
    model: Model, plan: SamplingRateStudy, rates: tuple[float, ...] = RATES
) -> list[Accuracies]:
    """Accuracies on the same held-out sounds at each rate."""
    accuracies = []
    for rate in rates:
        options = {"seed": plan.seed, "rate": rate}
        data = open_data(plan.data.model_copy(update={"options": options}))
        set_rate(model, rate)
        adjusted = evaluate_split(data, model, "test").metric
        set_rate(model, 1.0)
        unchanged = evaluate_split(data, model, "test").metric
        accuracies.append(Accuracies(rate, adjusted, unchanged))
    return accuracies


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
