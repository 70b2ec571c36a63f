"""A random state matrix A against HiPPO's, on digits read pixel by pixel.

One state-space layer whose last output is classified, so the first pixels must be remembered to the
end.  The models of a group differ only in A: fixed as drawn, or where learning starts.
Gu et al. 2022, "Efficiently Modeling Long Sequences with Structured State Spaces", section 2.2:
60 % for a random A and 98 % for HiPPO's on sMNIST.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from statistics import fmean
from typing import Any, ClassVar

from threefold.drawing.axes import Axis
from threefold.drawing.charts import Figure, Line, line_chart
from threefold.drawing.ranges import Range, range_chart
from threefold.lab.studies.adding import one_layer
from threefold.lab.tables.table import (
    RemadeTable,
    Results,
    TableCell,
    TableContent,
    TableSection,
    TextGrid,
)
from threefold.lab.tables.training import train_cell
from threefold.tasks.published import PUBLISHED
from threefold.tasks.table import card
from threefold.training.config import DataSettings, RunConfig
from threefold.training.settings import TrainingSettings

PUBLISHED_RANDOM, PUBLISHED_HIPPO = 0.60, 0.98


@dataclass(frozen=True)
class Variant:
    """One row: a mixer with its state matrix."""

    name: str
    mixer: str
    options: Mapping[str, Any]
    matrix: str
    published: float | None = None


def _lssl(measure: str, learn: bool) -> dict[str, Any]:
    return {"measure": measure, "learn": learn}


VARIANTS = (
    Variant(
        "random, fixed",
        "lssl",
        _lssl("random", False),
        "Gaussian, made stable",
        PUBLISHED_RANDOM,
    ),
    Variant("LegS, fixed", "lssl", _lssl("legs", False), "HiPPO-LegS", PUBLISHED_HIPPO),
    Variant("LegT, fixed", "lssl", _lssl("legt", False), "HiPPO-LegT: a window"),
    Variant("LagT, fixed", "lssl", _lssl("lagt", False), "HiPPO-LagT: exponential"),
    Variant("random, learnt", "lssl", _lssl("random", True), "Gaussian, then learnt"),
    Variant(
        "LegS, learnt",
        "lssl",
        _lssl("legs", True),
        "HiPPO-LegS, then learnt",
        PUBLISHED["smnist"]["LSSL"],
    ),
    Variant("S4", "s4", {}, "HiPPO-LegS as diagonal plus low rank", PUBLISHED["smnist"]["S4"]),
    Variant("S4D-LegS", "s4d", {"init": "legs"}, "the normal part of HiPPO-LegS"),
    Variant("S4D-Real", "s4d", {"init": "real"}, "real poles −1, −2, … without oscillation"),
)


@dataclass(frozen=True)
class HippoSizes:
    """Sizes of a preset."""

    task: str = "digits8"
    epochs: float = 20
    seeds: int = 3
    width: int = 32
    state_size: int = 32
    batch_size: int = 64
    learning_rate: float = 1e-2
    variants: tuple[Variant, ...] = VARIANTS
    evaluations: int = 10
    examples: int | None = None  # of a validation; None: all


PRESETS = {
    "seconds": HippoSizes(
        epochs=0.2, seeds=2, width=16, state_size=4, variants=VARIANTS[:2], evaluations=1
    ),
    "minutes": HippoSizes(),
    "hours": HippoSizes(
        "smnist", epochs=10, seeds=3, width=64, state_size=64, batch_size=50, examples=1000
    ),
}


class HippoTable(RemadeTable):
    """What HiPPO's state matrix is worth."""

    name = "hippo"
    title = "A random state matrix against HiPPO's"
    presets: ClassVar[Mapping[str, HippoSizes]] = PRESETS

    def cells(self, preset: str) -> list[TableCell]:
        sizes = self.presets[preset]
        return [
            _cell(sizes, variant, seed) for seed in range(sizes.seeds) for variant in sizes.variants
        ]

    def content(self, preset: str, results: Results) -> TableContent:
        sizes = self.presets[preset]
        runs = {
            variant.name: [results[_key(variant, seed)] for seed in range(sizes.seeds)]
            for variant in sizes.variants
        }
        return HippoContent(sizes, runs).content()


def _key(variant: Variant, seed: int) -> str:
    return f"{variant.name.lower().replace(', ', '-')}-{seed}"


def _cell(sizes: HippoSizes, variant: Variant, seed: int) -> TableCell:
    config = run_config(sizes, variant, seed)
    return TableCell(
        _key(variant, seed),
        f"{variant.name}, seed {seed}",
        {"run": config.model_dump(mode="json")},
        partial(train_cell, config),
    )


def run_config(sizes: HippoSizes, variant: Variant, seed: int) -> RunConfig:
    """The run of one state matrix; the learning rate falls to 0."""
    steps = max(1, round(sizes.epochs * card(sizes.task).sizes[0] / sizes.batch_size))
    mixer = variant.mixer, {"state_size": sizes.state_size, **variant.options}
    return RunConfig(
        data=DataSettings(
            name=sizes.task,
            batch_size=sizes.batch_size,
            eval_examples=sizes.examples,
            seed=seed,
        ),
        model=one_layer(mixer, sizes.width, seed, pooling="last"),
        training=TrainingSettings(
            steps=steps,
            learning_rate=sizes.learning_rate,
            final_lr=0.0,
            schedule="linear",
            warmup_fraction=0.0,
            weight_decay=0.01,
            eval_every=max(1, steps // sizes.evaluations),
            seed=seed,
        ),
        threads=1,
    )


@dataclass(frozen=True)
class HippoContent:
    """The table of trained models, by variant, one run for each seed."""

    sizes: HippoSizes
    runs: Mapping[str, list[dict[str, Any]]]

    def content(self) -> TableContent:
        return TableContent(
            self.sentence(),
            list(self.summary()),
            [self.section()],
            list(self.differences()),
            list(self.setup()),
            SOURCES,
            [variant.name for variant in self.sizes.variants],
        )

    def scores(self, name: str) -> list[float]:
        """The test accuracy of each seed."""
        return [run["test"] for run in self.runs[name]]

    def sentence(self) -> str:
        random, hippo = (fmean(self.scores(name)) for name in ("random, fixed", "LegS, fixed"))
        return (
            f"With a random state matrix {_percent(random)} of the digits are recognised, with "
            f"HiPPO-LegS {_percent(hippo)}"
        )

    def summary(self) -> Iterator[str]:
        random, hippo = self.scores("random, fixed"), self.scores("LegS, fixed")
        apart = "every seed of HiPPO is above every seed of the random matrix"
        if min(hippo) <= max(random):
            apart = "the seeds of both overlap"
        yield (
            f"Fixed A, all else trained: {_percent(fmean(random))} against "
            f"{_percent(fmean(hippo))}, means of {self.sizes.seeds} seeds; {apart}. Published on "
            f"sMNIST: {100 * PUBLISHED_RANDOM:.0f} % against {100 * PUBLISHED_HIPPO:.0f} %."
        )
        if "random, learnt" in self.runs:
            yield (
                f"If A is learnt too, the random start reaches "
                f"{_percent(fmean(self.scores('random, learnt')))} and HiPPO's "
                f"{_percent(fmean(self.scores('LegS, learnt')))}."
            )

    def section(self) -> TableSection:
        header = (
            "model",
            "mixer",
            "state matrix A",
            "test accuracy, %",
            "seeds, %",
            "published on sMNIST, %",
            "parameters",
        )
        grid = TextGrid(
            "Test accuracy",
            f"Mean of {self.sizes.seeds} seeds, then each seed; chance is "
            f"{_percent(card(self.sizes.task).chance)}.",
            header,
            tuple(self._row(variant) for variant in self.sizes.variants),
        )
        return TableSection(
            "result",
            "Result",
            f"{card(self.sizes.task).title}: the classifier sees the last output only.",
            (grid,),
            (self.ranges(), self.curves()),
        )

    def _row(self, variant: Variant) -> tuple[str, ...]:
        scores, published = self.scores(variant.name), variant.published
        return (
            variant.name,
            variant.mixer,
            variant.matrix,
            f"{100 * fmean(scores):.1f}",
            ", ".join(f"{100 * score:.1f}" for score in scores),
            "–" if published is None else f"{100 * published:.4g}",
            f"{self.runs[variant.name][0]['parameters']:,}",
        )

    def ranges(self) -> Figure:
        rows = [
            Range(v.name, series, fmean(self.scores(v.name)), float("nan"), self.scores(v.name))
            for series, v in enumerate(self.sizes.variants)
        ]
        text = "Pale dots are seeds, the marker is their mean."
        return range_chart(
            "Test accuracy by state matrix", text, rows, Axis("accuracy", "percent", better="high")
        )

    def curves(self) -> Figure:
        lines = [
            Line(v.name, series, mean_curve([run["curve"] for run in self.runs[v.name]]))
            for series, v in enumerate(self.sizes.variants)
        ]
        return line_chart(
            "Learning curves",
            "Accuracy on the validation split by training steps, mean over seeds.",
            lines,
            Axis("steps", "count"),
            Axis("accuracy", "percent", better="high"),
        )

    def differences(self) -> Iterator[str]:
        length = card(self.sizes.task).length
        hippo, random = fmean(self.scores("LegS, fixed")), fmean(self.scores("random, fixed"))
        if self.sizes.task != "smnist":
            yield (
                f"The digits have {length} pixels here and 784 in sMNIST, with "
                f"{card(self.sizes.task).sizes[0]:,} training examples instead of 60,000: a "
                "shorter memory is enough, and there is less to learn from."
            )
        yield (
            f"HiPPO-LegS: {_percent(hippo)} here, {100 * PUBLISHED_HIPPO:.0f} % published; random "
            f"A: {_percent(random)} here, {100 * PUBLISHED_RANDOM:.0f} % published. The gap is "
            f"{100 * (hippo - random):.0f} points here and 38 published."
        )
        yield (
            "The random A here is Gaussian, moved to the left until no free motion grows, so that "
            "it is stable; the random matrix of the paper may have been drawn in another way."
        )
        yield (
            f"One layer of width {self.sizes.width} with states of size "
            f"{self.sizes.state_size} and {self.sizes.epochs:g} epochs; the published LSSL and S4 "
            "have several layers and were trained for many more."
        )

    def setup(self) -> Iterator[str]:
        sizes = self.sizes
        yield (
            f"Data: {card(sizes.task).title} (`{sizes.task}`), {card(sizes.task).length} numbers "
            "per example, one at a time."
        )
        yield (
            f"Models: a linear map, one state-space layer (width {sizes.width}, state size "
            f"{sizes.state_size}), a linear map of its last output; no norm, no residual "
            "connection."
        )
        yield (
            f"Training: AdamW, learning rate {sizes.learning_rate:g} falling linearly to 0, "
            f"batches of {sizes.batch_size}, {sizes.epochs:g} epochs; the last weights are tested. "
            "One thread."
        )


def mean_curve(curves: list[list[list[float]]]) -> list[tuple[float, float]]:
    """The mean over seeds at each evaluation."""
    return [(points[0][0], fmean(p[1] for p in points)) for points in zip(*curves, strict=False)]


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %"


SOURCES = (
    'Gu et al. 2022, "Efficiently Modeling Long Sequences with Structured State Spaces", section '
    "2.2 (60 % against 98 %) and table 7 (LSSL, S4).",
    'Gu et al. 2021, "Combining Recurrent, Convolutional, and Continuous-time Models with Linear '
    'State-Space Layers".',
    'Gu et al. 2022, "On the Parameterization and Initialization of Diagonal State Space Models".',
)
