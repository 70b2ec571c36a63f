"""Repeating a signal a thousand elements later, by S4 and by an LSTM: `threefold lab delay`.

One number → a linear map → one mixer → a linear map; AdamW with the parameter groups of the mixers,
clipped gradients, new sequences at every step.  Both models have the same training time, the same
width and the same sequences; the figure shows the error on held-out sequences.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from threefold.data.loaders import Batch
from threefold.drawing.figures import COLOURS, FAINT, GREY, INK, new_figure, save, style
from threefold.lab.studies.adding import one_layer
from threefold.training.config import DataSettings, RunConfig
from threefold.training.experiment import run as run_experiment
from threefold.training.preparation import prepare
from threefold.training.reporters import Reporter
from threefold.training.settings import TrainingSettings
from threefold.training.trainer import Trainer
from threefold.training.training_data import open_data

SOLVED = 0.1  # relative error
HELD_OUT = range(16)  # evaluated sequences of the test split

# The forget gates of the LSTM start open, which gives it the best chance to remember for long.
MIXERS: dict[str, dict[str, Any]] = {
    "s4": {"glu": False, "delta_range": (0.0005, 0.01)},
    "lstm": {"forget_bias": 3.0},
}


@dataclass(frozen=True)
class DelayStudy:
    """Training settings, the same for every mixer."""

    elements: int = 1000
    width: int = 32
    batch_size: int = 8
    time: float | None = 120.0  # seconds of training, without evaluations
    steps: int | None = None  # ends the training earlier
    learning_rate: float = 5e-3
    seed: int = 0

    @property
    def data(self) -> DataSettings:
        """Sums of slow sines, so that a few numbers can describe the signal within the delay.

        A sequence is twice as long as the delay.
        """
        options = {"delay": self.elements, "period": 100.0, "seed": self.seed}
        length, batch_size = 2 * self.elements, self.batch_size
        return DataSettings(
            name="delay", length=length, batch_size=batch_size, options=options, seed=self.seed
        )

    def config(self, mixer: str) -> RunConfig:
        """The run of one mixer; its learning rate falls to a tenth over the last two thirds."""
        return RunConfig(
            data=self.data,
            model=one_layer((mixer, MIXERS.get(mixer, {})), self.width, self.seed),
            training=TrainingSettings(
                steps=self.steps,
                time=self.time,
                learning_rate=self.learning_rate,
                schedule="stable",
                decay_fraction=2 / 3,
                warmup_fraction=0.0,
                weight_decay=0.0,
                seed=self.seed,
            ),
        )

    def held_out(self) -> Batch:
        """The sequences that are evaluated."""
        rows: Batch = open_data(self.data).task.rows("test", HELD_OUT)
        return rows


@dataclass
class Curve:
    """The error on held-out sequences over the training time."""

    mixer: str
    parameters: int
    seconds: list[float] = field(default_factory=list)
    errors: list[float] = field(default_factory=list)
    steps: int = 0
    answers: Tensor | None = None

    @property
    def solved(self) -> bool:
        return min(self.errors) < SOLVED


class CurveReporter(Reporter):
    """Adds an error to a curve at the beginning and at `points` equal parts of the run."""

    def __init__(self, curve: Curve, held_out: Batch, points: int) -> None:
        self.curve, self.held_out, self.points = curve, held_out, points
        self.seconds = 0.0  # of training

    def on_step(self, trainer: Trainer) -> None:
        """Evaluate if the next part of the run is done."""
        self.seconds = trainer.result.seconds
        if trainer.progress >= len(self.curve.errors) / self.points:
            self.evaluate(trainer.model, self.seconds)
        self.curve.steps = trainer.result.steps

    @torch.no_grad()
    def evaluate(self, model: Any, seconds: float) -> None:
        """Add the answers and the error after some seconds of training to the curve."""
        targets = self.held_out.targets
        answers: Tensor = model(self.held_out.inputs)[0].view_as(targets)
        counts = ~targets.isnan()
        error = (answers[counts] - targets[counts]).square().mean()
        self.curve.answers = answers
        self.curve.seconds.append(seconds)
        self.curve.errors.append(math.sqrt(error.item()))


def study(mixer: str, plan: DelayStudy, *, points: int = 24) -> Curve:
    """Train one mixer for the time of the plan, evaluated `points` times on the way."""
    config = plan.config(mixer)
    prepared = prepare(config)
    curve = Curve(mixer, prepared.model.parameter_count)
    reporter = CurveReporter(curve, plan.held_out(), points)
    reporter.evaluate(prepared.model, 0.0)
    run_experiment(config, prepared=prepared, reporters=[reporter], test=False).complete()
    if len(curve.errors) <= points:  # the time was over before the last part was done
        reporter.evaluate(prepared.model, reporter.seconds)
    return curve


def draw(curves: list[Curve], plan: DelayStudy) -> Any:
    """Errors over time, and the final answers to one sequence."""
    held_out = plan.held_out()
    with style():
        figure = new_figure(10, 3.6)
        left, right = figure.subplots(1, 2, width_ratios=(1, 1.4))
        for curve, colour in zip(curves, COLOURS, strict=False):
            label = f"{curve.mixer}, {curve.parameters:,} parameters"
            left.plot(curve.seconds, curve.errors, color=colour, label=label)
        left.axhline(1, color=GREY, linewidth=0.8, linestyle=":")
        left.axhline(SOLVED, color=GREY, linewidth=0.8)
        left.annotate(
            "always answering 0", (0, 1), xytext=(2, 3), textcoords="offset points", color=GREY
        )
        left.annotate("solved", (0, SOLVED), xytext=(2, 3), textcoords="offset points", color=GREY)
        left.set(
            yscale="log", xlabel="training time, s", xlim=(0, max(c.seconds[-1] for c in curves))
        )
        left.set_title(f"relative error at a delay of {plan.elements:,} elements")
        left.grid(axis="y", color=FAINT, linewidth=0.7)
        left.legend(loc="upper right", bbox_to_anchor=(1, 0.9))
        times = range(plan.elements, held_out.inputs.shape[1])
        right.plot(times, held_out.targets[0, plan.elements :, 0], color=GREY, linewidth=3.4,
                   alpha=0.55, label="target")  # fmt: skip
        for curve, colour in zip(curves, COLOURS, strict=False):
            assert curve.answers is not None
            right.plot(times, curve.answers[0, plan.elements :, 0], color=colour,
                       label=curve.mixer)  # fmt: skip
        right.set_title("a held-out sequence, after training")
        right.set(xlabel="element", yticks=[], xlim=(times[0], times[-1]))
        right.margins(y=0.14)
        right.spines["left"].set_visible(False)
        right.legend(loc="upper right", ncols=3, labelcolor=INK)
    return figure


def run(
    folder: Path, plan: DelayStudy | None = None, mixers: tuple[str, ...] = tuple(MIXERS)
) -> list[str]:
    """Train all mixers, draw delay.png and delay.svg; returns the lines to print."""
    plan = plan or DelayStudy()
    curves = [study(name, plan) for name in mixers]
    paths = save(draw(curves, plan), folder, "delay")
    lines = [
        f"{c.mixer:<10}{'solved' if c.solved else 'not solved':<12}error {c.errors[-1]:.3f}  after "
        f"{c.steps} steps, {c.seconds[-1]:.0f} s, {c.parameters:,} parameters"
        for c in curves
    ]
    return [*lines, *(f"wrote {path}" for path in paths)]
