"""Configurations that reach a known figure in minutes on a processor: `threefold lab recipe`.

    recipes/NAME.toml    data, model and training, as `threefold train --config` reads them
    RECIPES              what each shows, what it must reach, what it reached, in how many minutes

Hyperparameters were chosen on validation; the figures are of the test split, seed 0.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from threefold.errors import ThreefoldError, nearest
from threefold.training.config import RunConfig, read_toml

if TYPE_CHECKING:
    from rich.console import Console

    from threefold.training.evaluation import Scores
    from threefold.training.experiment import TrainedRun

FOLDER = Path(__file__).parent
NATS = "nats"  # judged by the loss; any other unit by the task's metric
PERCENT = "%"


@dataclass(frozen=True)
class Asked:
    """A figure that must be reached, or, of a model that must fail, not be reached."""

    relation: str  # ≥, >, ≤ or <
    value: float

    def met(self, figure: float) -> bool:
        """Whether a figure is as asked."""
        return {
            "≥": figure >= self.value,
            ">": figure > self.value,
            "≤": figure <= self.value,
            "<": figure < self.value,
        }[self.relation]


@dataclass(frozen=True)
class Recipe:
    """One recipe: what it shows and what is known of it."""

    name: str
    shows: str
    unit: str
    asked: Asked | None  # None: nothing is asked, the figure is for comparison
    reached: tuple[float, ...]  # as trained, and at the other length
    minutes: float  # on one thread, the other core busy, evaluations included
    published: str = "–"
    length: int = 0  # judged once more in sequences of this length; 0: no

    @property
    def path(self) -> Path:
        """Its TOML file."""
        return FOLDER / f"{self.name}.toml"

    def config(self, changes: Iterable[str] = ()) -> RunConfig:
        """Its configuration, with changes such as `training.steps=100`."""
        return RunConfig.read(read_toml(self.path), changes)

    def figure(self, scores: Scores) -> float:
        """What the recipe is judged by."""
        if self.unit == NATS:
            return scores.loss
        return 100 * scores.metric if self.unit == PERCENT else scores.metric

    def says(self, figure: float) -> str:
        """A figure with its unit."""
        return f"{figure:.3f} nats" if self.unit == NATS else f"{figure:.1f} {self.unit}"

    @property
    def wants(self) -> str:
        """What is asked, in words."""
        if self.asked is None:
            return "–"
        both = f", also at {self.length:,}" if self.length else ""
        return f"{self.asked.relation} {self.asked.value:g} {self.unit}{both}"

    @property
    def known(self) -> str:
        """What it reached when it was recorded."""
        return ", ".join(map(self.says, self.reached))

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {**asdict(self), "reached": list(self.reached), "file": str(self.path)}


@dataclass(frozen=True)
class RecipeResult:
    """What a run of a recipe came to."""

    recipe: Recipe
    figures: tuple[float, ...]
    minutes: float
    reached: TrainedRun

    @property
    def met(self) -> bool:
        """Whether every figure is as asked."""
        asked = self.recipe.asked
        return asked is None or all(map(asked.met, self.figures))

    @property
    def facts(self) -> list[tuple[str, str]]:
        """What was reached, against what was asked and what is known."""
        recipe = self.recipe
        figures = ", ".join(map(recipe.says, self.figures))
        verdict = "" if recipe.asked is None else ", as asked" if self.met else ", NOT as asked"
        return [
            ("reached", figures + verdict),
            ("asked", recipe.wants),
            ("recorded", recipe.known),
            ("published", recipe.published),
            ("minutes", f"{self.minutes:.1f}, recorded {recipe.minutes:g}"),
        ]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "recipe": self.recipe.to_dict(),
            "reached": list(self.figures),
            "met": self.met,
            "minutes": self.minutes,
            "steps": self.reached.result.steps,
            "parameters": self.reached.model.parameter_count,
        }


def recipe(name: str) -> Recipe:
    """A recipe by name."""
    if name not in RECIPES:
        raise ThreefoldError(f"unknown recipe {name!r}; {nearest(name, RECIPES)}")
    return RECIPES[name]


def cook(
    name: str,
    changes: Iterable[str] = (),
    *,
    folder: Path | None = None,
    console: Console | None = None,
) -> RecipeResult:
    """Train as the recipe says, by the way of `threefold train`, and judge on the test split."""
    from threefold.training.experiment import run

    chosen, start = recipe(name), time.perf_counter()
    config = chosen.config(changes)
    reached = run(config, folder, console=console, test=False)
    if not reached.finished:
        raise ThreefoldError(f"{name}: interrupted before its end, so there is nothing to judge")
    lengths = [0, chosen.length] if chosen.length else [0]
    figures = tuple(chosen.figure(_judge(config, reached, length)) for length in lengths)
    return RecipeResult(chosen, figures, (time.perf_counter() - start) / 60, reached)


def _judge(config: RunConfig, reached: TrainedRun, length: int) -> Scores:
    """The whole test split, as trained or in sequences of another length, fewer at a time."""
    from threefold.training.experiment import evaluate_split
    from threefold.training.training_data import open_data

    data = config.data.model_copy(update={"eval_examples": None})
    if length:
        batch = max(1, data.batch_size * open_data(data).task.length // length)
        data = data.model_copy(update={"length": length, "batch_size": batch})
    return evaluate_split(open_data(data), reached.model, "test", config.training.carry_state)


SHAKESPEARE = "Tiny Shakespeare, 2,000 × 12 × 64 characters"
TABLE_1 = "at length 4,096 (Gu & Dao 2023, table 1)"

_RECIPES = (
    Recipe(
        "selective-copying-mamba",
        "selective copying, 16 symbols in 256: a selective memory keeps them",
        PERCENT,
        Asked(">", 99),
        (99.7,),
        9.1,
        f"99.8 % {TABLE_1}",
    ),
    Recipe(
        "selective-copying-s4d",
        "selective copying: a fixed filter is far behind",
        PERCENT,
        Asked("<", 60),
        (54.0,),
        4.1,
        f"S4 18.3 % {TABLE_1}",
    ),
    Recipe(
        "induction-heads-mamba",
        "induction heads: learnt at 256, answered at 4,096",
        PERCENT,
        Asked("≥", 99),
        (100.0, 100.0),
        8,
        "100 % at 256 and up to 1,048,576 (Gu & Dao 2023, table 11)",
        4096,
    ),
    Recipe(
        "recall-delta_net",
        "associative recall, 8 pairs in 128: the delta rule",
        PERCENT,
        Asked(">", 99),
        (99.1,),
        0.8,
    ),
    Recipe(
        "recall-attention",
        "associative recall: attention looks the pairs up",
        PERCENT,
        Asked(">", 99),
        (99.7,),
        2.7,
    ),
    Recipe(
        "recall-linear_attention",
        "associative recall: a sum of all pairs blurs them",
        PERCENT,
        Asked("<", 50),
        (13.5,),
        2.8,
    ),
    Recipe(
        "shakespeare-attention",
        f"{SHAKESPEARE}: nanoGPT's CPU architecture",
        NATS,
        Asked("≤", 1.92),
        (1.909,),
        3.5,
        "1.88, an estimate from 20 batches (nanoGPT)",
    ),
    Recipe("shakespeare-gla", f"{SHAKESPEARE}: GLA", NATS, None, (1.707,), 4.1),
    Recipe(
        "shakespeare-gated_delta_net",
        f"{SHAKESPEARE}: Gated DeltaNet",
        NATS,
        None,
        (1.594,),
        5.6,
    ),
    Recipe("shakespeare-mamba", f"{SHAKESPEARE}: Mamba", NATS, None, (1.555,), 5.4),
    Recipe("shakespeare-lstm", f"{SHAKESPEARE}: LSTM", NATS, None, (1.575,), 3.4),
    Recipe(
        "japanese-vowels-gru",
        "JapaneseVowels: who of nine speaks",
        PERCENT,
        Asked("≥", 95),
        (95.9,),
        0.1,
        "1-NN DTW 94.9 % (Bagnall et al. 2018)",
    ),
    Recipe(
        "smnist-s4d",
        "sMNIST: digits pixel by pixel",
        PERCENT,
        Asked("≥", 97),
        (97.7,),
        6,
        "S4 99.63 %, LSTM 98.9 % (Gu et al. 2022)",
    ),
    Recipe(
        "text-1k-mamba",
        "IMDb in bytes, the first 1,024 of each review",
        PERCENT,
        None,
        (79.3,),
        8.4,
        "at 4,096: S4 86.82 %, Transformer 64.27 % (Gu et al. 2022; Tay et al. 2021)",
    ),
    Recipe(
        "translation-transformer",
        "verses from English to German, by a Transformer of 920,000 parameters",
        "BLEU",
        None,
        (12.1,),
        26.8,
        "newstest2014: Transformer (base) 27.3 (Vaswani et al. 2017, table 2)",
    ),
)

RECIPES: dict[str, Recipe] = {one.name: one for one in _RECIPES}
