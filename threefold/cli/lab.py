"""`threefold lab …`: studies that measure and draw."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from threefold.cli import output

lab = typer.Typer(
    name="lab", help="Studies that measure and draw.", no_args_is_help=True, rich_markup_mode=None
)

Folder = Annotated[Path, typer.Option(help="Where figures are written, as PNG and SVG.")]
Seed = Annotated[int, typer.Option(min=0, help="Same seed, same numbers.")]


@lab.command()
def hippo(
    folder: Folder = Path(),
    size: Annotated[int, typer.Option(min=2, max=512, help="Coefficients.")] = 64,
    samples: Annotated[int, typer.Option(min=100, help="Samples of the signal.")] = 10_000,
) -> None:
    """Draw what each HiPPO remembers of a signal, and how well."""
    from threefold.lab.studies.hippo import run

    for line in run(folder, size, samples):
        output.say(line)


@lab.command()
def delay(
    folder: Folder = Path(),
    seconds: Annotated[float, typer.Option(min=1, help="Processor time of each mixer.")] = 120,
    elements: Annotated[int, typer.Option(min=2, help="How late the answer is.")] = 1000,
    seed: Seed = 0,
) -> None:
    """Train S4 and an LSTM to give a signal back a thousand elements late."""
    from threefold.lab.studies.delay import DelayStudy, run

    for line in run(folder, DelayStudy(elements=elements, seconds=seconds, seed=seed)):
        output.say(line)


@lab.command()
def digits(
    folder: Folder = Path(),
    epochs: Annotated[int, typer.Option(min=1, help="Times through the data.")] = 20,
    seeds: Annotated[int, typer.Option(min=1, max=20, help="How many seeds.")] = 3,
) -> None:
    """Train a random A and HiPPO's on digits read pixel by pixel."""
    from threefold.lab.studies.digits import DigitsStudy, run

    for line in run(folder, DigitsStudy(epochs=epochs, seeds=tuple(range(seeds)))):
        output.say(line)


@lab.command()
def rates(
    folder: Folder = Path(),
    mixer: Annotated[str, typer.Option(help="lssl, s4, s4d or s5.")] = "s4d",
    steps: Annotated[int, typer.Option(min=1, help="Training steps.")] = 300,
    seed: Seed = 0,
) -> None:
    """Train a classifier at one sampling rate, and listen at others."""
    from threefold.lab.studies.sampling_rates import SamplingRateStudy, run

    for line in run(folder, SamplingRateStudy(mixer=mixer, steps=steps, seed=seed)):
        output.say(line)


@lab.command()
def recipe(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="Train this one; without, list all.")
    ] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Any key of its configuration."),
    ] = None,
    folder: Annotated[
        Path | None, typer.Option(help="Keep the run there, and go on with what is there.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Recorded recipes: list them, or train one and hold it against what it must reach.

    Ends with 1 where a recipe does not reach what is asked of it.
    """
    if name is None:
        say_recipes(as_json)
        return
    from rich.console import Console

    from threefold.kernels.system_memory import keep_memory
    from threefold.lab.recipes.recipe import cook

    keep_memory()
    outcome = cook(name, changes or (), folder=folder, console=None if as_json else Console())
    if as_json:
        output.say_json(outcome.to_dict())
    else:
        output.say_facts(outcome.facts)
    if not outcome.met:
        raise typer.Exit(1)


def say_recipes(as_json: bool) -> None:
    """All recipes with what they reach, in how many minutes."""
    from threefold.lab.recipes.recipe import RECIPES

    if as_json:
        output.say_json([one.to_dict() for one in RECIPES.values()])
        return
    header = ("NAME", "SHOWS", "ASKED", "REACHED", "MINUTES", "PUBLISHED")
    rows = [
        (one.name, one.shows, one.wants, one.known, f"{one.minutes:g}", one.published)
        for one in RECIPES.values()
    ]
    output.say_table(header, rows, fold=("SHOWS", "PUBLISHED"))
