"""Recipes: configurations that reach a known figure in minutes on two cores: `threefold lab recipe`.

    recipes/NAME.toml    data, model and training, as `threefold train --config` reads them
    RECIPES              what each shows, what it must reach, what it reached, in how many minutes

Hyperparameters were chosen on validation; the figures are of the test split, seed 0.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from threefold.errors import ThreefoldError, nearest
from threefold.training.config import Config, read_toml

if TYPE_CHECKING:
    from rich.console import Console

    from threefold.training.evaluation import Scores
    from threefold.training.running import Reached

FOLDER = Path(__file__).parent / "recipes"
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
    minutes: float  # two threads of an otherwise idle machine, evaluation included
    published: str = "–"
    length: int = 0  # judged once more in sequences of this length; 0: no

    @property
    def path(self) -> Path:
        """Its TOML file."""
        return FOLDER / f"{self.name}.toml"

    def config(self, changes: Iterable[str] = ()) -> Config:
        """Its configuration, with changes such as `training.steps=100`."""
        return Config.read(read_toml(self.path), changes)

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


@dataclass(frozen=True)
class Outcome:
    """What a run of a recipe came to."""

    recipe: Recipe
    figures: tuple[float, ...]
    minutes: float
    reached: Reached

    @property
    def met(self) -> bool:
        """Whether every figure is as asked."""
        asked = self.recipe.asked
        return asked is None or all(map(asked.met, self.figures))

    @property
    def lines(self) -> list[str]:
        """What was reached, against what was asked and what is known."""
        recipe = self.recipe
        figures = ", ".join(map(recipe.says, self.figures))
        verdict = "" if recipe.asked is None else ", as asked" if self.met else ", NOT as asked"
        return [
            f"reached    {figures}{verdict}",
            f"asked      {recipe.wants}",
            f"recorded   {recipe.known}",
            f"published  {recipe.published}",
            f"minutes    {self.minutes:.1f} (recorded {recipe.minutes:g})",
        ]


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
) -> Outcome:
    """Train as the recipe says, by the way of `threefold train`, and judge on the test split."""
    from threefold.training.running import run

    chosen, start = recipe(name), time.perf_counter()
    config = chosen.config(changes)
    reached = run(config, folder, console=console)
    if reached.test is None:
        raise ThreefoldError(f"{name}: interrupted before its end, so there is nothing to judge")
    figures = [chosen.figure(reached.test)]
    if chosen.length:
        figures.append(chosen.figure(_elsewhere(config, reached, chosen.length)))
    minutes = (time.perf_counter() - start) / 60
    return Outcome(chosen, tuple(figures), minutes, reached)


def _elsewhere(config: Config, reached: Reached, length: int) -> Scores:
    """The test split of the same task in sequences of another length, a few rows at a time."""
    from threefold.training.problem import problem
    from threefold.training.running import judge

    before = problem(config.data).task.length
    batch = max(1, config.data.batch * before // length)
    data = config.data.model_copy(update={"length": length, "batch": batch})
    return judge(problem(data), reached.model, "test", config.training.carry)
