"""`threefold lab …`: experiments that reproduce known results and draw figures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from threefold.cli import output
from threefold.errors import ThreefoldError

lab = typer.Typer(
    name="lab",
    help="Experiments that reproduce known results and draw figures.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Folder = Annotated[Path, typer.Option(help="Folder for the figures (PNG and SVG).")]
Seed = Annotated[int, typer.Option(min=0, help="Random seed.")]


@lab.command()
def hippo(
    folder: Folder = Path(),
    size: Annotated[int, typer.Option(min=2, max=512, help="Number of coefficients.")] = 64,
    samples: Annotated[
        int, typer.Option(min=100, help="Number of samples of the signal.")
    ] = 10_000,
) -> None:
    """Show what each HiPPO variant remembers of a signal."""
    from threefold.lab.studies.hippo import run

    for line in run(folder, size, samples):
        output.say(line)


@lab.command()
def delay(
    folder: Folder = Path(),
    time: Annotated[
        str,
        typer.Option(metavar="DURATION", help="CPU time for training each mixer, e.g. 90s or 2m."),
    ] = "2m",
    elements: Annotated[int, typer.Option(min=2, help="Length of the delay.")] = 1000,
    seed: Seed = 0,
) -> None:
    """Train S4 and an LSTM to delay a signal."""
    from threefold.lab.studies.delay import DelayStudy, run

    study = DelayStudy(elements=elements, seconds=parse_seconds(time), seed=seed)
    for line in run(folder, study):
        output.say(line)


def parse_seconds(text: str) -> float:
    """The seconds of a --time such as 90s; a number of steps is refused."""
    from threefold.training.durations import parse_duration

    seconds = parse_duration(text).seconds
    if seconds is None:
        raise ThreefoldError(f"--time is {text!r}, expected a time such as 90s or 2m, not steps")
    if seconds < 1:
        raise ThreefoldError(f"--time is {text!r}, expected at least 1s")
    return seconds


@lab.command()
def digits(
    folder: Folder = Path(),
    epochs: Annotated[int, typer.Option(min=1, help="Number of epochs.")] = 20,
    seeds: Annotated[int, typer.Option(min=1, max=20, help="Number of seeds.")] = 3,
) -> None:
    """Compare random and HiPPO state matrices on digits.

    They are state matrices of an LSSL; the digits are read pixel by pixel.
    """
    from threefold.lab.studies.digits import DigitsStudy, run

    for line in run(folder, DigitsStudy(epochs=epochs, seeds=tuple(range(seeds)))):
        output.say(line)


@lab.command("sampling-rates")
def sampling_rates(
    folder: Folder = Path(),
    mixer: Annotated[str, typer.Option(help="lssl, s4, s4d or s5.")] = "s4d",
    steps: Annotated[int, typer.Option(min=1, help="Training steps.")] = 300,
    seed: Seed = 0,
) -> None:
    """Evaluate a classifier at other sampling rates."""
    from threefold.lab.studies.sampling_rates import SamplingRateStudy, run

    for line in run(folder, SamplingRateStudy(mixer=mixer, steps=steps, seed=seed)):
        output.say(line)


@lab.command()
def recipe(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[NAME]", help="The recipe to train; without it, all recipes are listed."
        ),
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Override a setting of the recipe."),
    ] = None,
    folder: Annotated[
        Path | None, typer.Option(help="Run folder; an interrupted run in it is resumed.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the recorded recipes, or train one.

    Its score is compared with the required one, and the exit code is 1 if it is not reached.
    """
    if name is None:
        say_recipes(as_json)
        return
    from rich.console import Console

    from threefold.kernels.system_memory import keep_memory
    from threefold.lab.recipes.recipe import train_recipe
    from threefold.training.reporters import console_reporter

    keep_memory()
    reporters = [] if as_json else [console_reporter(Console(), name)]
    outcome = train_recipe(name, overrides or (), folder=folder, reporters=reporters)
    if as_json:
        output.say_json(outcome.to_dict())
    else:
        output.say_facts(outcome.facts)
    if not outcome.met:
        raise typer.Exit(1)


def say_recipes(as_json: bool) -> None:
    """Print all recipes with their scores and durations."""
    from threefold.lab.recipes.recipe import RECIPES

    if as_json:
        output.say_json([one.to_dict() for one in RECIPES.values()])
        return
    header = ("NAME", "SHOWS", "REQUIRED", "REACHED", "MINUTES", "PUBLISHED")
    rows = [
        (one.name, one.shows, one.requirement, one.recorded, f"{one.minutes:g}", one.published)
        for one in RECIPES.values()
    ]
    output.say_table(header, rows, fold=("SHOWS", "PUBLISHED"))
