"""A random state matrix A against HiPPO's, on digits read pixel by pixel: `threefold lab digits`.

8×8 images as sequences of 64 numbers → a linear map → one LSSL with a fixed A → a linear map of its
last output, so the first pixels must be remembered to the end.  All parameters except A and B are
trained, and the two models differ in nothing else.  The task is `digits8`.
Gu et al. 2021 report about 60 % for a random A and 98 % for HiPPO's on sMNIST.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from threefold.drawing.figures import COLOURS, FAINT, GREY, new_figure, save, style
from threefold.lab.studies.adding import one_layer
from threefold.tasks.table import card
from threefold.training.config import DataSettings, RunConfig
from threefold.training.experiment import run as run_experiment
from threefold.training.settings import TrainingSettings

MEASURES = {"legs": "HiPPO-LegS", "random": "random A"}


@dataclass(frozen=True)
class DigitsStudy:
    """Training settings, the same for every A."""

    width: int = 32
    state_size: int = 32
    batch_size: int = 64
    epochs: int = 20
    learning_rate: float = 1e-2
    seeds: tuple[int, ...] = (0, 1, 2)
    folder: Path | None = None  # with digits.csv.gz; None: an installed or fetched scikit-learn

    def config(self, measure: str, seed: int) -> RunConfig:
        """The run of one A, evaluated after every epoch; its learning rate falls to 0."""
        mixer = {"state_size": self.state_size, "measure": measure, "learn": False}
        options = {} if self.folder is None else {"folder": str(self.folder)}
        epoch = card("digits8").sizes[0] // self.batch_size
        return RunConfig(
            data=DataSettings(
                name="digits8", batch_size=self.batch_size, seed=seed, options=options
            ),
            model=one_layer(("lssl", mixer), self.width, seed, pooling="last"),
            training=TrainingSettings(
                steps=self.epochs * epoch,
                learning_rate=self.learning_rate,
                final_lr=0.0,
                schedule="linear",
                warmup_fraction=0.0,
                weight_decay=0.01,
                eval_every=epoch,
                seed=seed,
            ),
        )


@dataclass(frozen=True)
class DigitsResult:
    """Accuracies of one run: on the validation split after each epoch, and on the test split."""

    valid: list[float]
    test: float


def study(measure: str, seed: int, plan: DigitsStudy) -> DigitsResult:
    """Train one model."""
    trained = run_experiment(plan.config(measure, seed), reporters=()).complete()
    assert trained.test is not None
    return DigitsResult(
        [scores.metric for _, scores in trained.result.validation], trained.test.metric
    )


def _draw_curves(axes: Any, label: str, percentages: Tensor, colour: str) -> None:
    """Draw the accuracies [seeds, epochs] of one measure, and their mean with a label."""
    epochs = range(1, percentages.shape[1] + 1)
    for run_ in percentages:
        axes.plot(epochs, run_, color=colour, linewidth=0.7, alpha=0.5)
    axes.plot(epochs, percentages.mean(0), color=colour, linewidth=2.2, label=label)


def draw(results: Mapping[str, Sequence[DigitsResult]], plan: DigitsStudy) -> Any:
    """A line for each seed, and their mean."""
    with style():
        figure = new_figure(6, 3.8)
        axes = figure.subplots()
        for (measure, runs), colour in zip(results.items(), COLOURS, strict=False):
            test = fmean(one.test for one in runs)
            label = f"{MEASURES[measure]}, {test:.1%} of the test digits"
            _draw_curves(axes, label, 100 * torch.tensor([one.valid for one in runs]), colour)
        axes.axhline(10, color=GREY, linewidth=0.8, linestyle=":")
        axes.annotate("chance", (1, 10), xytext=(2, 3), textcoords="offset points", color=GREY)
        axes.set(xlabel="epoch", ylim=(0, 100), xlim=(1, max(plan.epochs, 2)))
        axes.set_title(
            "digits read pixel by pixel: accuracy in % on the validation split, "
            f"{len(plan.seeds)} seeds and their mean"
        )
        axes.grid(axis="y", color=FAINT, linewidth=0.7)
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.legend(loc="lower right", bbox_to_anchor=(1, 0.14))
    return figure


def run(folder: Path, plan: DigitsStudy | None = None) -> list[str]:
    """Train all models, draw digits.png and digits.svg; returns the lines to print."""
    plan = plan or DigitsStudy()
    results = {measure: [study(measure, seed, plan) for seed in plan.seeds] for measure in MEASURES}
    paths = save(draw(results, plan), folder, "digits")
    lines = []
    for measure, runs in results.items():
        each = ", ".join(f"{100 * one.test:.1f}" for one in runs)
        mean = fmean(one.test for one in runs)
        lines.append(f"{MEASURES[measure]:<12}{100 * mean:6.1f} % accuracy   seeds: {each}")
    return [*lines, *(f"wrote {path}" for path in paths)]
