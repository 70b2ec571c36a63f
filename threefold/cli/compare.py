"""`threefold compare DATA`: which sequence model suits it, in a fair race and one page."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from threefold.cli import options, output
from threefold.errors import ThreefoldError

if TYPE_CHECKING:
    from threefold.lab.race.request import RaceRequest
    from threefold.lab.report.report import Report

PROGRESS_SECONDS = 10  # between two lines of progress that are not written to a terminal
MIXERS = "lstm,attention,s4d,mamba,gated_delta_net"

Source = Annotated[
    str, typer.Argument(help="A task of `threefold tasks`, or your own file or folder.")
]
Mixers = Annotated[
    str,
    typer.Option(
        help="Models to race: a,b are two models, a+b is a hybrid, x=a names a model x.",
    ),
]
Time = Annotated[
    str,
    typer.Option(
        metavar="DURATION",
        help="Time of the whole race, e.g. 10m or 90s, or steps for each model, e.g. 500steps.",
    ),
]
Match = Annotated[
    Literal["parameters", "time", "tokens"], typer.Option(help="What all models have in common.")
]
Seeds = Annotated[
    str,
    typer.Option(
        metavar="N|auto",
        help="Runs of each model; auto: until the verdict is clear or the time is over.",
    ),
]
Tune = Annotated[
    bool,
    typer.Option(
        "--tune", help="First choose learning rate, width against depth and dropout of each model."
    ),
]
EarlyStop = Annotated[
    bool,
    typer.Option(
        "--early-stop/--no-early-stop",
        help="No further seeds for models that are clearly behind the leader.",
    ),
]
ThenTrain = Annotated[
    str | None,
    typer.Option(
        metavar="DURATION",
        help="After the race, train the best model on all data for this long, e.g. 10m.",
    ),
]
Folder = Annotated[
    Path | None,
    typer.Option(help="Folder of the race; default: runs/compare-NAME-ID, one per set of options."),
]
Width = Annotated[int, typer.Option(min=1, help="Approximate model width.")]
Depth = Annotated[int, typer.Option(min=1, help="Approximate number of blocks.")]
Parameters = Annotated[
    int | None, typer.Option(min=1, help="Target number of parameters; default: from the width.")
]
LearningRate = Annotated[
    float, typer.Option(min=0, help="Peak learning rate of all models (ignored with --tune).")
]
BatchSize = Annotated[int, typer.Option(min=1, help="Examples per batch.")]
Baselines = Annotated[
    Literal["none", "simple", "strong"],
    typer.Option(help="Simple models beside the others, e.g. MiniRocket, n-grams or ridge."),
]


def compare(
    data: Source,
    mixers: Mixers = MIXERS,
    time: Time = "10m",
    match: Match = "parameters",
    seeds: Seeds = "3",
    tune: Tune = False,
    folder: Folder = None,
    width: Width = 64,
    depth: Depth = 2,
    parameters: Parameters = None,
    learning_rate: LearningRate = 3e-3,
    batch_size: BatchSize = 16,
    baselines: Baselines = "strong",
    early_stop: EarlyStop = True,
    then_train: ThenTrain = None,
    kind: options.Kind = None,
    target: options.Target = None,
    features: options.Features = None,
    time_column: options.TimeColumn = None,
    group_column: options.GroupColumn = None,
    series_column: options.SeriesColumn = None,
    horizon: options.Horizon = None,
    known_future: options.KnownFuture = None,
    overrides: options.Set = None,
    plugins: options.Plugins = None,
    as_json: options.AsJson = False,
) -> None:
    """Race sequence models on your data and write one page with the verdict.

    The best model is saved in the folder of the race: `threefold predict FOLDER …` uses it.
    If the race is interrupted, the same command with the same --folder continues it.
    """
    from threefold.lab.bench.bench import split_names
    from threefold.lab.race.request import RaceRequest

    columns = options.data_settings(locals())
    given = [f"{name}={value}" for name, value in columns.items() if value is not None]
    request = RaceRequest(
        data, split_names(mixers), time, match, parse_seeds(seeds), tune, width, depth, parameters,
        learning_rate, batch_size, (*given, *(overrides or ())), baselines, early_stop,
    )  # fmt: skip
    _race(request, folder, as_json, then_train)


def parse_seeds(text: str) -> int | str:
    """A number of seeds, or auto."""
    if text == "auto":
        return text
    if not text.isdecimal() or int(text) < 1:
        raise ThreefoldError(f"--seeds is {text!r}, expected a number from 1 on, or auto")
    return int(text)


def _race(request: RaceRequest, folder: Path | None, as_json: bool, then_train: str | None) -> None:
    from threefold.kernels.system_memory import keep_memory
    from threefold.lab.race.race import RaceFolder, default_folder, ranks, run_race
    from threefold.lab.race.runs import StoppedError
    from threefold.runtime.interrupts import InterruptedByUser

    keep_memory()
    rank, _ = ranks()
    race_folder = RaceFolder(folder or default_folder(request), writes_report=rank == 0)
    try:
        report = run_race(request, race_folder, progress_printer(), then_train=then_train)
    except (StoppedError, KeyboardInterrupt):
        raise InterruptedByUser("interrupted; finished runs are kept") from None
    if rank:
        return
    if as_json:
        output.say_json(report.to_dict())
    else:
        show(report, race_folder.path)


def progress_printer() -> Callable[[str], None]:
    """How to print progress: over the last message on a terminal, otherwise as sparse lines."""
    return output.whisper if sys.stderr.isatty() else PlainProgress().say


class PlainProgress:
    """Progress as lines on stderr: one for each finished run, others only now and then."""

    def __init__(self) -> None:
        self.printed_at = -math.inf

    def say(self, message: str) -> None:
        """Print a message, or drop it if another one was printed shortly before."""
        now = monotonic()
        if message.startswith(("finished ", "note: ")) or now - self.printed_at >= PROGRESS_SECONDS:
            print(message, file=sys.stderr, flush=True)
            self.printed_at = now


def show(report: Report, folder: Path) -> None:
    """Print the verdict, the warnings, the table, and where the page is."""
    from threefold.lab.report.evidence import best_lines, evidence, use_commands
    from threefold.lab.report.tables import columns

    table = columns(report)
    header = ["model", *(title for title, _, _ in table)]
    rows = [[c.label, *(cells[i] for _, cells, _ in table)] for i, c in enumerate(report.ranked)]
    output.whisper("")
    output.say(output.paint(report.sentence, "head"))
    for text in evidence(report):
        output.say(text)
    for warning in report.warnings:
        output.say(output.paint(f"note: {warning}", "weak"))
    output.say()
    output.say_table(header, rows, fold=header[-3:])
    output.say(f"\nreport: {folder / 'report.html'}")
    for line in best_lines(report):
        output.say(line)
    for command in use_commands(report):
        output.say(f"use it: {command}")
