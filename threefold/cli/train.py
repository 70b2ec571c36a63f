"""`threefold train`, `threefold resume`: a model from data, in a folder that survives anything."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from threefold.cli import output
from threefold.errors import ThreefoldError

if TYPE_CHECKING:
    from threefold.training.config import RunConfig
    from threefold.training.experiment import Reached

DataArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="DATA_OR_TASK",
        help="A task of `threefold tasks`, or a file or folder of your own. "
        "May be left out where --config names it.",
    ),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Any key of the configuration."),
]


def train(
    data: DataArgument = None,
    mixer: Annotated[
        str | None, typer.Option(help="A name, or several with commas for a hybrid.")
    ] = None,
    size: Annotated[str | None, typer.Option(help="tiny, small, medium or large.")] = None,
    steps: Annotated[int | None, typer.Option(help="Steps of training.")] = None,
    minutes: Annotated[
        float | None, typer.Option(help="Minutes of training; 10 where nothing is said.")
    ] = None,
    batch: Annotated[int | None, typer.Option(help="Examples of one step.")] = None,
    length: Annotated[int | None, typer.Option(help="Elements of one example.")] = None,
    learning_rate: Annotated[float | None, typer.Option(help="The highest of the run.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Of weights, order and dropout.")] = None,
    config: Annotated[Path | None, typer.Option(help="A TOML file; options go before it.")] = None,
    changes: SetOption = None,
    folder: Annotated[
        Path | None, typer.Option(help="Where the run is kept; runs/NAME where nothing is said.")
    ] = None,
    ranks: Annotated[int, typer.Option(min=1, help="Processes on this machine.")] = 1,
    tensorboard: Annotated[bool, typer.Option(help="Write for TensorBoard, too.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan and end.")] = False,
) -> None:
    """Train a model on a task or on your own data; prints the plan first.

    Ctrl-C saves and says how to go on.
    """
    from threefold.training.config import RunConfig, read_toml

    values = {} if config is None else read_toml(config)
    given = {
        "data.name": data,
        "model.mixers": mixer,
        "model.size": size,
        "training.steps": steps,
        "training.seconds": None if minutes is None else 60 * minutes,
        "data.batch": batch,
        "data.length": length,
        "training.learning_rate": learning_rate,
        "data.seed": seed,
        "model.seed": seed,
        "training.seed": seed,
    }
    _put(values, given, config)
    if not (isinstance(values.get("data"), dict) and "name" in values["data"]):
        raise ThreefoldError(
            "what to learn from is missing: `threefold train DATA_OR_TASK`, e.g. `threefold train "
            "notes.txt`, or `threefold tasks` for a list"
        )
    whole = RunConfig.read(values, changes or ())
    place = folder or _free_folder(whole)
    if dry_run:
        _plan(whole)
        return
    _spread(ranks, [] if folder else ["--folder", str(place)])
    _run(whole, place, tensorboard=tensorboard, announce=True)


def _put(values: dict[str, Any], given: dict[str, Any], config: Path | None) -> None:
    """What the command says goes before what the file says."""
    for key, value in given.items():
        if value is not None:
            section, _, name = key.partition(".")
            inside = values.setdefault(section, {})
            if not isinstance(inside, dict):
                raise ThreefoldError(f"{config}: {section} is {inside!r}, expected [{section}]")
            inside[name] = value


def resume(
    folder: Annotated[Path, typer.Argument(help="The folder of a run.")],
    ranks: Annotated[int, typer.Option(min=1, help="Processes on this machine.")] = 1,
    tensorboard: Annotated[bool, typer.Option(help="Write for TensorBoard, too.")] = False,
) -> None:
    """Go on with a run that was stopped, to the same bits as if it had not been."""
    from threefold.training.experiment import read_run

    whole = read_run(folder)
    _spread(ranks, [])
    _run(whole, folder, tensorboard=tensorboard, announce=False)


def _run(whole: RunConfig, folder: Path, *, tensorboard: bool, announce: bool) -> None:
    from rich.console import Console

    from threefold.kernels.system_memory import keep_memory
    from threefold.training.curves import draw_run
    from threefold.training.distributed import joined
    from threefold.training.experiment import run
    from threefold.training.watching import SampleReporter, TensorBoardReporter

    keep_memory()
    with joined() as group:
        console = Console() if group.leads else None
        if group.leads and announce:
            _plan(whole)
            output.say(f"folder      {folder}")
        watchers: list[Any] = [SampleReporter(folder / "samples.txt")]
        if tensorboard:
            watchers.append(TensorBoardReporter(folder / "tensorboard"))
        reached = run(whole, folder, console=console, watchers=watchers if group.leads else ())
        if group.leads:
            draw_run(folder)
            _tell(reached, folder)
    if not reached.finished:
        raise typer.Exit(130)


def _tell(reached: Reached, folder: Path) -> None:
    import json
    import shlex

    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    result = reached.result
    if not reached.finished:
        output.say(f"stopped after step {result.steps:,} and saved; to go on:")
        output.say(f"  threefold resume {shlex.quote(str(folder))}")
        return
    facts = [("ended by", result.stopped), ("steps", f"{result.steps:,}")]
    for split in ("valid", "test"):
        scores = summary[split]
        if scores and scores["loss"] is not None:
            known = scores["metric"] is not None
            metric = f"{summary['metric']} {scores['metric']:.4f}" if known else ""
            facts.append((split, f"loss {scores['loss']:.4f}  {metric}"))
    facts.append(("chance", f"{summary['metric']} {summary['chance']:.4f}"))
    if summary["published"]:
        best = "; ".join(f"{who} {value:g}" for who, value in summary["published"].items())
        facts.append(("published", best))
    facts += [("model", str(folder / "model")), ("figures", str(folder / "figures" / "loss.svg"))]
    output.say_facts(facts)


def _plan(whole: RunConfig) -> None:
    """What will be trained on what, and what it will take."""
    from threefold.training.estimate import check_memory, estimate
    from threefold.training.experiment import prepare
    from threefold.training.reporters import readable_time

    found, model = prepare(whole)
    settings, task = whole.training, found.task
    objective = found.objective(settings)
    check_memory(model, objective, found.first, whole.data.batch, settings)
    step = estimate(model, objective, found.batches(settings.carry)(0), settings)
    spec = model.spec
    names = ", ".join(name for name, _ in spec.entries)
    total = readable_time(step.total(settings))
    until = f"{settings.steps:,} steps" if settings.steps else f"{total}"
    examples = " / ".join(f"{size:,}" for size in task.sizes)
    what = f"{task.vocabulary:,} tokens" if task.vocabulary else f"{task.features} numbers"
    output.say_facts(
        [
            ("data", f"{task.title}: {examples} examples of {task.length:,} elements ({what})"),
            ("model", f"{spec.kind}, {names}, {spec.width} × {spec.depth}"),
            ("parameters", f"{model.parameter_count:,}"),
            ("training", f"{settings.optimiser}, {settings.learning_rate:g}, {settings.schedule}"),
            ("a step", f"{step.elements:,} elements, about {1000 * step.seconds:.0f} ms"),
            ("run", f"{until}, about {total}"),
            ("memory", f"about {output.readable(step.memory)}"),
            ("judged by", f"{task.metric}, chance {task.chance:.4g}"),
        ]
    )


def _free_folder(whole: RunConfig) -> Path:
    """runs/mamba-shakespeare-1, or the first number after it that is free."""
    from threefold.training.experiment import title_of

    name = title_of(whole).replace(" on ", "-").replace(" ", "-")
    number = 1
    while (Path("runs") / f"{name}-{number}").exists():
        number += 1
    return Path("runs") / f"{name}-{number}"


def _spread(ranks: int, more: list[str]) -> None:
    """Run this command in several processes and end with them; in one of those, do nothing."""
    import os

    if ranks > 1 and "RANK" not in os.environ:
        from threefold.cli.launch import launch

        raise typer.Exit(launch(ranks, more))
