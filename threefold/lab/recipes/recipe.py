"""Configurations that reach a known score within minutes on a CPU: `threefold lab recipe`.

    recipes/NAME.toml    data, model and training, as for `threefold train --config`
    RECIPES              what each shows, which score is required and was reached, and the minutes

Hyperparameters were chosen on the validation split; scores are those of the test split, seed 0.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from threefold.errors import ThreefoldError, nearest
from threefold.training.config import RunConfig, read_toml

if TYPE_CHECKING:
    from threefold.training.data_cache import DataCache
    from threefold.training.evaluation import Scores
    from threefold.training.experiment import TrainedRun
    from threefold.training.reporters import Reporter

FOLDER = Path(__file__).parent
NATS = "nats"  # the score is the loss; with any other unit it is the metric of the task
PERCENT = "%"


@dataclass(frozen=True)
class Requirement:
    """A score that must be reached, or must not be reached by a model that is expected to fail."""

    relation: str  # ≥, >, ≤ or <
    value: float

    def met(self, score: float) -> bool:
        """Whether a score meets the requirement."""
        return {
            "≥": score >= self.value,
            ">": score > self.value,
            "≤": score <= self.value,
            "<": score < self.value,
        }[self.relation]


@dataclass(frozen=True)
class Recipe:
    """One recipe: what it shows, and which score it reaches."""

    name: str
    shows: str
    unit: str
    required: Requirement | None  # None: the score is for comparison only
    reached: tuple[float, ...]  # at the training length, and at the other length if there is one
    minutes: float  # on one thread with the other core busy, including evaluations
    published: str = "–"
    length: int = 0  # evaluated at this length as well; 0: no

    @property
    def path(self) -> Path:
        """The TOML file."""
        return FOLDER / f"{self.name}.toml"

    def config(self, overrides: Iterable[str] = ()) -> RunConfig:
        """The configuration, with overrides such as `training.steps=100`."""
        return RunConfig.read(read_toml(self.path), overrides)

    def score(self, scores: Scores) -> float:
        """The score in the unit of the recipe."""
        if self.unit == NATS:
            return scores.loss
        return 100 * scores.metric if self.unit == PERCENT else scores.metric

    def format(self, score: float) -> str:
        """A score with its unit."""
        return f"{score:.3f} nats" if self.unit == NATS else f"{score:.1f} {self.unit}"

    @property
    def requirement(self) -> str:
        """The required score in words."""
        if self.required is None:
            return "–"
        both = f", also at {self.length:,}" if self.length else ""
        return f"{self.required.relation} {self.required.value:g} {self.unit}{both}"

    @property
    def recorded(self) -> str:
        """The recorded scores in words."""
        return ", ".join(map(self.format, self.reached))

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {**asdict(self), "reached": list(self.reached), "file": str(self.path)}


@dataclass(frozen=True)
class RecipeResult:
    """The result of training a recipe."""

    recipe: Recipe
    scores: tuple[float, ...]
    minutes: float
    reached: TrainedRun

    @property
    def met(self) -> bool:
        """Whether every score meets the requirement."""
        required = self.recipe.required
        return required is None or all(map(required.met, self.scores))

    @property
    def facts(self) -> list[tuple[str, str]]:
        """The scores next to what is required, recorded and published."""
        recipe = self.recipe
        scores = ", ".join(map(recipe.format, self.scores))
        passed = "requirement met" if self.met else "requirement NOT met"
        verdict = "" if recipe.required is None else f" ({passed})"
        return [
            ("reached", scores + verdict),
            ("required", recipe.requirement),
            ("recorded", recipe.recorded),
            ("published", recipe.published),
            ("minutes", f"{self.minutes:.1f}, recorded {recipe.minutes:g}"),
        ]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "recipe": self.recipe.to_dict(),
            "reached": list(self.scores),
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


def train_recipe(
    name: str,
    overrides: Iterable[str] = (),
    *,
    folder: Path | None = None,
    reporters: Sequence[Reporter] | None = None,
) -> RecipeResult:
    """Train a recipe as `threefold train` does, and evaluate it on the whole test split."""
    from threefold.training.data_cache import DataCache
    from threefold.training.experiment import run
    from threefold.training.preparation import prepare

    chosen, start, cache = recipe(name), time.perf_counter(), DataCache()
    config = chosen.config(overrides)
    prepared = prepare(config, cache.open(config.data))
    ended = run(config, folder, prepared=prepared, reporters=reporters, test=False)
    reached = ended.complete()
    lengths = [0, chosen.length] if chosen.length else [0]
    scores = tuple(chosen.score(_evaluate(config, cache, reached, length)) for length in lengths)
    return RecipeResult(chosen, scores, (time.perf_counter() - start) / 60, reached)


def _evaluate(config: RunConfig, cache: DataCache, reached: TrainedRun, length: int) -> Scores:
    """Scores on the whole test split, at the training length (0) or at another length."""
    from threefold.training.experiment import evaluate_split

    data = config.data.model_copy(update={"eval_examples": None})
    if length:
        batch = max(1, data.batch_size * cache.open(data).task.length // length)
        data = data.model_copy(update={"length": length, "batch_size": batch})
    return evaluate_split(cache.open(data), reached.model, "test", config.training.carry_state)


SHAKESPEARE = "Tiny Shakespeare, 2,000 × 12 × 64 characters"
TABLE_1 = "at length 4,096 (Gu & Dao 2023, table 1)"

_RECIPES = (
    Recipe(
        "selective-copying-mamba",
        "selective copying, 16 symbols in 256 elements: a selective memory keeps them",
        PERCENT,
        Requirement(">", 99),
        (99.7,),
        9.1,
        f"99.8 % {TABLE_1}",
    ),
    Recipe(
        "selective-copying-s4d",
        "selective copying: a fixed filter is far behind",
        PERCENT,
        Requirement("<", 60),
        (54.0,),
        4.1,
        f"S4 18.3 % {TABLE_1}",
    ),
    Recipe(
        "induction-heads-mamba",
        "induction heads: trained at length 256, evaluated at 4,096",
        PERCENT,
        Requirement("≥", 99),
        (100.0, 100.0),
        8,
        "100 % at 256 and up to 1,048,576 (Gu & Dao 2023, table 11)",
        4096,
    ),
    Recipe(
        "recall-delta_net",
        "associative recall, 8 pairs in 128 elements: the delta rule keeps them apart",
        PERCENT,
        Requirement(">", 99),
        (99.1,),
        0.8,
    ),
    Recipe(
        "recall-attention",
        "associative recall: attention looks the pairs up",
        PERCENT,
        Requirement(">", 99),
        (99.7,),
        2.7,
    ),
    Recipe(
        "recall-linear_attention",
        "associative recall: a sum of all pairs blurs them",
        PERCENT,
        Requirement("<", 50),
        (13.5,),
        2.8,
    ),
    Recipe(
        "shakespeare-attention",
        f"{SHAKESPEARE}: nanoGPT's CPU architecture",
        NATS,
        Requirement("≤", 1.92),
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
        "JapaneseVowels: which of nine speakers it is",
        PERCENT,
        Requirement("≥", 95),
        (95.9,),
        0.1,
        "1-NN DTW 94.9 % (Bagnall et al. 2018)",
    ),
    Recipe(
        "smnist-s4d",
        "sMNIST: digits pixel by pixel",
        PERCENT,
        Requirement("≥", 97),
        (97.7,),
        6,
        "S4 99.63 %, LSTM 98.9 % (Gu et al. 2022)",
    ),
    Recipe(
        "digits8-vit",
        "digits of 8 × 8 pixels: a Vision Transformer, four patches of 4 × 4",
        PERCENT,
        Requirement("≥", 95),
        (97.8,),
        0.3,
    ),
    Recipe(
        "digits8-mamba",
        "digits of 8 × 8 pixels: a bidirectional Mamba, 16 patches of 2 × 2",
        PERCENT,
        Requirement("≥", 95),
        (98.9,),
        0.4,
    ),
    Recipe(
        "digits8-swin",
        "digits of 8 × 8 pixels: a Swin Transformer, 16 patches in windows of 2 × 2",
        PERCENT,
        Requirement("≥", 95),
        (98.6,),
        1.1,
    ),
    Recipe(
        "fashion-resnet",
        "Fashion-MNIST as images: a ResNet-18, a quarter of its width, three stages",
        PERCENT,
        Requirement("≥", 89),
        (90.7,),
        3.4,
    ),
    Recipe(
        "masked-code-attention",
        "masked bytes of Python's standard library: BERT, far below the unigram 4.6 bits",
        "bits",
        Requirement("≤", 3),
        (2.6,),
        0.8,
    ),
    Recipe(
        "text-1k-mamba",
        "IMDb reviews as bytes, the first 1,024 of each",
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
