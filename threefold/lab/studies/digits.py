"""A random state matrix A against HiPPO's, on digits read pixel by pixel: `threefold lab digits`.

8×8 images as sequences of 64 numbers → a linear map → one LSSL with a fixed A → a linear map of its
last output, so the first pixels must be remembered to the end.  All parameters except A and B are
trained, and the two models differ in nothing else.  The data are scikit-learn's 1,797 digits.
Gu et al. 2021 report about 60 % for a random A and 98 % for HiPPO's on sMNIST.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from threefold.drawing.figures import COLOURS, FAINT, GREY, new_figure, save, style
from threefold.errors import ThreefoldError
from threefold.layers.table import mixer
from threefold.training.optimizer import adamw, scale_learning_rate

MEASURES = {"legs": "HiPPO-LegS", "random": "random A"}
TRAINING_IMAGES = 1347  # the first three quarters of the 1,797


@dataclass(frozen=True)
class DigitsStudy:
    """Training settings, the same for every A."""

    width: int = 32
    state_size: int = 32
    batch: int = 64
    epochs: int = 20
    learning_rate: float = 1e-2
    seeds: tuple[int, ...] = (0, 1, 2)


class Reader(nn.Module):
    """One LSSL; the answer is read from its last output."""

    def __init__(self, measure: str, plan: DigitsStudy) -> None:
        super().__init__()
        self.input = nn.Linear(1, plan.width)
        self.mixer = mixer(
            "lssl", width=plan.width, state_size=plan.state_size, measure=measure, learn=False
        )
        self.out = nn.Linear(plan.width, 10)

    def forward(self, x: Tensor) -> Tensor:
        y, _ = self.mixer(self.input(x))
        logits: Tensor = self.out(y[:, -1])
        return logits


def load_digits() -> tuple[Tensor, Tensor]:
    """Images [1797, 64, 1] from −1 to 1, row by row, and their digits."""
    try:
        dataset = import_module("sklearn.datasets").load_digits()
    except ImportError as error:
        raise ThreefoldError(
            "the digits are part of scikit-learn, which is not installed: pip install scikit-learn"
        ) from error
    pixels = torch.from_numpy(dataset.data).float().unsqueeze(-1) / 8 - 1
    return pixels, torch.from_numpy(dataset.target).long()


def learn(model: Reader, optimiser: torch.optim.Optimizer, images: Tensor, targets: Tensor) -> None:
    """One step, with the norm of the gradient clipped at 1."""
    optimiser.zero_grad(set_to_none=True)
    F.cross_entropy(model(images), targets).backward()  # type: ignore[no-untyped-call]
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimiser.step()


def study(measure: str, seed: int, plan: DigitsStudy, digits: tuple[Tensor, Tensor]) -> list[float]:
    """The accuracy on held-out digits after each epoch."""
    torch.manual_seed(seed)
    model = Reader(measure, plan)
    optimiser = adamw(model, plan.learning_rate, weight_decay=0.01)
    images, targets = (part[:TRAINING_IMAGES] for part in digits)
    accuracies = []
    for epoch in range(plan.epochs):
        order = torch.randperm(TRAINING_IMAGES)
        for begin in range(0, TRAINING_IMAGES, plan.batch):
            rows = order[begin : begin + plan.batch]
            done = (epoch + begin / TRAINING_IMAGES) / plan.epochs
            scale_learning_rate(optimiser, 1 - done)
            learn(model, optimiser, images[rows], targets[rows])
        with torch.no_grad():
            correct = model(digits[0][TRAINING_IMAGES:]).argmax(-1) == digits[1][TRAINING_IMAGES:]
        accuracies.append(correct.double().mean().item())
    return accuracies


def _draw_curves(axes: Any, name: str, percentages: Tensor, colour: str) -> None:
    """Draw the accuracies [seeds, epochs] of one measure, and their mean with a label."""
    epochs = range(1, percentages.shape[1] + 1)
    for run_ in percentages:
        axes.plot(epochs, run_, color=colour, linewidth=0.7, alpha=0.5)
    label = f"{name}, {percentages[:, -1].mean():.1f} %"
    axes.plot(epochs, percentages.mean(0), color=colour, linewidth=2.2, label=label)


def draw(curves: dict[str, list[list[float]]], plan: DigitsStudy) -> Any:
    """A line for each seed, and their mean."""
    with style():
        figure = new_figure(6, 3.8)
        axes = figure.subplots()
        for (measure, runs), colour in zip(curves.items(), COLOURS, strict=False):
            _draw_curves(axes, MEASURES[measure], 100 * torch.tensor(runs), colour)
        axes.axhline(10, color=GREY, linewidth=0.8, linestyle=":")
        axes.annotate("chance", (1, 10), xytext=(2, 3), textcoords="offset points", color=GREY)
        axes.set(xlabel="epoch", ylim=(0, 100), xlim=(1, max(plan.epochs, 2)))
        axes.set_title(
            f"digits read pixel by pixel: accuracy in %, {len(plan.seeds)} seeds and their mean"
        )
        axes.grid(axis="y", color=FAINT, linewidth=0.7)
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.legend(loc="lower right", bbox_to_anchor=(1, 0.14))
    return figure


def run(folder: Path, plan: DigitsStudy | None = None) -> list[str]:
    """Train all models, draw digits.png and digits.svg; returns the lines to print."""
    plan, digits = plan or DigitsStudy(), load_digits()
    curves = {
        measure: [study(measure, seed, plan, digits) for seed in plan.seeds] for measure in MEASURES
    }
    paths = save(draw(curves, plan), folder, "digits")
    lines = []
    for measure, runs in curves.items():
        last = torch.tensor([run_[-1] for run_ in runs])
        each = ", ".join(f"{100 * value:.1f}" for value in last)
        lines.append(f"{MEASURES[measure]:<12}{100 * last.mean():6.1f} % accuracy   seeds: {each}")
    return [*lines, *(f"wrote {path}" for path in paths)]
