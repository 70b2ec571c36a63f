"""Repeating a signal a thousand elements later, by S4 and by an LSTM: `threefold lab delay`.

One number → a linear map → one mixer → a linear map; AdamW with the parameter groups of the mixers,
clipped gradients, new sequences at every step.  Both models have the same CPU time, the same width
and the same sequences; the figure shows the error on held-out sequences.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from threefold.data.loaders import Batch
from threefold.drawing.figures import COLOURS, FAINT, GREY, INK, new_figure, save, style
from threefold.layers.mixer import Mixer
from threefold.layers.table import mixer
from threefold.tasks.delay import delay
from threefold.tasks.task import Task
from threefold.training.optimizer import adamw, scale_learning_rate

SOLVED = 0.1  # relative error
HELD_OUT = range(16)  # evaluated sequences of the test split

# The forget gates of the LSTM start open, which gives it the best chance to remember for long.
MIXERS: dict[str, Mapping[str, Any]] = {
    "s4": {"glu": False, "delta_range": (0.0005, 0.01)},
    "lstm": {"forget_bias": 3.0},
}


@dataclass(frozen=True)
class DelayStudy:
    """Training settings, the same for every mixer."""

    elements: int = 1000
    width: int = 32
    batch: int = 8
    seconds: float = 120.0  # CPU time for training, without evaluations
    learning_rate: float = 5e-3
    clip: float = 1.0
    seed: int = 0

    @property
    def task(self) -> Task[Batch]:
        """Sums of slow sines, so that a few numbers can describe the signal within the delay.

        A sequence is twice as long as the delay.
        """
        return delay(2 * self.elements, self.elements, period=100.0, seed=self.seed)


@dataclass
class Curve:
    """The error on held-out sequences over the training time."""

    mixer: str
    seconds: list[float] = field(default_factory=list)
    errors: list[float] = field(default_factory=list)
    steps: int = 0
    parameters: int = 0
    answers: Tensor | None = None

    @property
    def solved(self) -> bool:
        return min(self.errors) < SOLVED


class Repeater(nn.Module):
    """A mixer between two linear maps."""

    def __init__(self, inner: Mixer) -> None:
        super().__init__()
        self.input = nn.Linear(1, inner.width)
        self.mixer = inner
        self.out = nn.Linear(inner.width, 1)

    def forward(self, x: Tensor) -> Tensor:
        y, _ = self.mixer(self.input(x))
        answer: Tensor = self.out(y)
        return answer


@torch.no_grad()
def evaluate(model: Repeater, held_out: Batch, curve: Curve, spent: float) -> None:
    """Add the answers and the error after `spent` seconds of training to the curve."""
    curve.answers = model(held_out.inputs)
    curve.seconds.append(spent)
    curve.errors.append(math.sqrt(squared_error(curve.answers, held_out.targets).item()))


def study(name: str, plan: DelayStudy, *, scores: int = 24) -> Curve:
    """Train one mixer for the time of the plan, evaluated `scores` times in between."""
    torch.manual_seed(plan.seed)
    model = Repeater(mixer(name, width=plan.width, **MIXERS.get(name, {})))
    optimiser = adamw(model, plan.learning_rate, weight_decay=0.0)
    held_out, batches = plan.task.rows("test", HELD_OUT), plan.task.batches(plan.batch, plan.seed)
    curve = Curve(name, parameters=sum(p.numel() for p in model.parameters()))
    spent, next_evaluation = 0.0, 0.0
    while True:
        if spent >= next_evaluation:
            evaluate(model, held_out, curve, spent)
            next_evaluation += plan.seconds / scores
        if spent >= plan.seconds:
            return curve
        start = time.process_time()
        curve.steps += 1
        learn(model, optimiser, batches(curve.steps), plan, spent / plan.seconds)
        spent += time.process_time() - start


def learn(
    model: nn.Module, optimiser: torch.optim.Optimizer, rows: Batch, plan: DelayStudy, done: float
) -> None:
    """One step; the learning rate decays linearly to a tenth over the last two thirds."""
    scale_learning_rate(optimiser, min(1.0, 1.45 - 1.35 * done))
    optimiser.zero_grad(set_to_none=True)
    squared_error(model(rows.inputs), rows.targets).backward()  # type: ignore[no-untyped-call]
    nn.utils.clip_grad_norm_(model.parameters(), plan.clip)
    optimiser.step()


def squared_error(answers: Tensor, targets: Tensor) -> Tensor:
    """The mean over the elements with a target; always answering 0 gives 1."""
    counts = ~targets.isnan()
    return (answers[counts] - targets[counts]).square().mean()


def draw(curves: list[Curve], plan: DelayStudy) -> Any:
    """Errors over time, and the final answers to one sequence."""
    held_out = plan.task.rows("test", HELD_OUT)
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
        left.set(yscale="log", xlabel="CPU time, s", xlim=(0, plan.seconds))
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
        f"{c.steps} steps, {c.seconds[-1]:.0f} s of CPU time, {c.parameters:,} parameters"
        for c in curves
    ]
    return [*lines, *(f"wrote {path}" for path in paths)]
