"""`threefold train` and `threefold resume`: train a model in a run folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any

import typer

from threefold.cli import options, output
from threefold.cli.training_plan import print_plan
from threefold.errors import ThreefoldError

if TYPE_CHECKING:
    from threefold.training.config import RunConfig
    from threefold.training.experiment import TrainedRun
    from threefold.training.preparation import PreparedRun


Mixers = Annotated[str | None, typer.Option(help="A mixer, or a+b for a hybrid; default: mamba.")]
Size = Annotated[str | None, typer.Option(help="tiny, small (default), medium or large.")]
Steps = Annotated[int | None, typer.Option(help="Number of training steps.")]
Time = Annotated[
    str | None,
    typer.Option(
        metavar="DURATION", help="Training time, e.g. 10m or 90s, or 500steps; default: 10m."
    ),
]
Embedding = Annotated[
    str | None,
    typer.Option(
        metavar="VECTORS", help="Text: start from word vectors (`threefold words train`)."
    ),
]
From = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="MODEL",
        help="Fine-tune a trained model, or that of a run: its tokenizer, columns and scaling are "
        "kept, its head too if the labels are the same.",
    ),
]
Adapters = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="RANK",
        help="With --from: train only the head and low-rank adapters of this rank, e.g. 8.",
    ),
]
Pretrain = Annotated[
    bool,
    typer.Option(
        "--pretrain",
        help="Tables: first learn to predict the next element, also from rows without a label.",
    ),
]
Ensemble = Annotated[
    int | None,
    typer.Option(
        min=2, metavar="N", help="Train N models from other seeds and average their answers."
    ),
]
LearningRate = Annotated[float | None, typer.Option(help="Peak learning rate.")]
Seed = Annotated[
    int | None, typer.Option(min=0, help="Seed of initial weights, data order and dropout.")
]
Config = Annotated[
    Path | None, typer.Option(help="TOML file with settings; command-line options override it.")
]
Folder = Annotated[
    Path | None, typer.Option(help="Folder of the run; default: runs/MIXER-DATA-NUMBER.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the plan and exit.")]


def train(
    data: options.Data = None,
    mixers: Mixers = None,
    size: Size = None,
    steps: Steps = None,
    time: Time = None,
    kind: options.Kind = None,
    target: options.Target = None,
    features: options.Features = None,
    time_column: options.TimeColumn = None,
    group_column: options.GroupColumn = None,
    series_column: options.SeriesColumn = None,
    horizon: options.Horizon = None,
    known_future: options.KnownFuture = None,
    embedding: Embedding = None,
    from_model: From = None,
    adapters: Adapters = None,
    pretrain: Pretrain = False,
    ensemble: Ensemble = None,
    learning_rate: LearningRate = None,
    seed: Seed = None,
    config: Config = None,
    overrides: options.Set = None,
    folder: Folder = None,
    ranks: options.Ranks = 1,
    tensorboard: options.TensorBoard = False,
    dry_run: DryRun = False,
    plugins: options.Plugins = None,
) -> None:
    """Train a model on a task or on your own data.

    Prints a plan first. Ctrl-C saves the run and prints the command that resumes it.
    """
    started = monotonic()  # before torch is imported: a time limit includes that
    run_config = _read_config(config, _settings(locals()), overrides or [])
    path = folder or _free_folder(run_config)
    if dry_run:
        return _dry_run(run_config, started)
    _launch(ranks, [] if folder else ["--folder", str(path)])
    _run(run_config, path, started, tensorboard=tensorboard)


def _settings(arguments: dict[str, Any]) -> dict[str, Any]:
    """The settings among the arguments of `train`, by their full names."""
    model = ("mixers", "size", "embedding", "from_model", "adapters")
    return {
        **options.data_settings(arguments),
        **{f"{section}.seed": arguments["seed"] for section in ("data", "model", "training")},
        **{f"model.{name}": arguments[name] for name in model},
        **_limits(arguments["steps"], arguments["time"]),
        "data.name": arguments["data"],
        "data.pretrain": arguments["pretrain"] or None,
        "training.learning_rate": arguments["learning_rate"],
        "training.ensemble": arguments["ensemble"],
    }


def _dry_run(config: RunConfig, started: float) -> None:
    print_plan(*_prepare(config, None, started))


def _prepare(
    config: RunConfig, folder: Path | None, started: float, data_name: str | None = None
) -> tuple[RunConfig, PreparedRun]:
    """The configuration with what suits the data, and what the run needs."""
    from dataclasses import replace

    from threefold.training.defaults import suit
    from threefold.training.preparation import open_run_data, open_start, prepare

    start = open_start(config)
    data = open_run_data(config, start, data_name)
    chosen: Mapping[str, str] = {}
    if data_name is None:
        with output.progress_bar("comparing augmentations") as show:
            config, data, chosen = suit(
                config, data, start, folder, on_run=show, dry=folder is None
            )
    return config, replace(prepare(config, data, start, started), chosen=chosen)


def _limits(steps: int | None, time: str | None) -> dict[str, Any]:
    """Settings that end the run, from --steps and --time."""
    if time is None:
        return {"training.steps": steps}
    from threefold.training.durations import parse_duration

    duration = parse_duration(time)
    if steps is not None and duration.steps is not None:
        raise ThreefoldError(f"--steps {steps} and --time {time} both give steps; give one of them")
    return {"training.steps": steps or duration.steps, "training.time": duration.seconds}


def _read_config(path: Path | None, settings: dict[str, Any], overrides: list[str]) -> RunConfig:
    """The file at `path`, overridden by options of the command line and by --set."""
    from threefold.training.config import RunConfig, read_toml
    from threefold.training.fine_tuning import settle

    values = {} if path is None else read_toml(path)
    for key, value in settings.items():
        if value is not None:
            section, _, name = key.partition(".")
            section_values = values.setdefault(section, {})
            if not isinstance(section_values, dict):
                raise ThreefoldError(
                    f"{path}: {section} is {section_values!r}, expected [{section}]"
                )
            section_values[name] = value
    if not (isinstance(values.get("data"), dict) and "name" in values["data"]):
        raise ThreefoldError(
            "DATA is missing: give a file, a folder or a task, e.g. `threefold train notes.txt` "
            "(`threefold tasks` lists the tasks)"
        )
    return settle(RunConfig.read(values, overrides))


def resume(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder of a run.")],
    ranks: options.Ranks = 1,
    tensorboard: options.TensorBoard = False,
    plugins: options.Plugins = None,
) -> None:
    """Resume a run from its last checkpoint.

    A run limited by --steps ends with the same weights, bit for bit, as if it had never stopped.
    """
    started = monotonic()
    from threefold.training.data_paths import find_data
    from threefold.training.experiment import finished_steps, read_run

    config = read_run(folder)
    if finished := finished_steps(folder):
        output.say(
            f"{folder}: already finished after {finished:,} steps; nothing to resume. "
            "To train longer, start a new run with more --steps or --time."
        )
        return
    name = find_data(folder, config.data.name, "put the data there, or resume in their folder")
    _launch(ranks, [])
    _run(config, folder, started, tensorboard=tensorboard, data_name=name)


def _run(
    config: RunConfig,
    folder: Path,
    started: float,
    *,
    tensorboard: bool,
    data_name: str | None = None,
) -> None:
    """Train; data_name: where the data of a run are that is resumed."""
    from rich.console import Console

    from threefold.kernels.system_memory import keep_memory
    from threefold.training.distributed import join_group
    from threefold.training.experiment import run
    from threefold.training.reporters import TensorBoardReporter, console_reporter
    from threefold.training.summary import title_of

    keep_memory()
    with join_group() as group:
        config, prepared = _prepare(config, folder, started, data_name)
        if group.is_main and data_name is None:
            print_plan(config, prepared)
            output.say(f"folder      {folder}")
        reporters = [console_reporter(Console(), title_of(config))]
        if tensorboard and group.is_main:
            reporters.append(TensorBoardReporter(folder / "tensorboard"))
        try:
            with output.progress_bar("testing") as show:
                trained = run(config, folder, prepared=prepared, reporters=reporters, on_test=show)
        except KeyboardInterrupt:  # the second one: the first is noticed between two steps
            _print_interrupted(folder)
            raise typer.Exit(output.INTERRUPTED) from None
        if group.is_main:
            _print_result(trained, folder)
    if not trained.finished:
        raise typer.Exit(130)


def _print_interrupted(folder: Path) -> None:
    """What is left of a run that was ended before it could be saved."""
    import shlex

    if any(folder.glob("checkpoints/*")):
        output.complain("interrupted before this step was saved; to resume from the last one:")
        output.complain(f"  threefold resume {shlex.quote(str(folder))}")
    else:
        output.complain("interrupted before the first checkpoint; nothing is left to resume")


def _print_result(trained: TrainedRun, folder: Path) -> None:
    import shlex

    from threefold.training.result import STOP_REASONS

    result, summary = trained.result, trained.summary
    if not trained.finished:
        output.say(f"stopped after step {result.steps:,} and saved; to resume:")
        output.say(f"  threefold resume {shlex.quote(str(folder))}")
        return
    facts = [
        ("status", f"finished: {STOP_REASONS[result.stopped]}"),
        ("steps", f"{result.steps:,}"),
    ]
    for split, label in (("valid", "validation"), ("test", "test")):
        if text := output.scores_text(summary, split):
            if split == "test" and "test_examples" in summary:
                text += _sample_text(trained, shlex.quote(str(folder)))
            facts.append((label, text))
    if summary.get("bands"):
        facts.append(("bands", _bands_text(summary["bands"])))
    facts.append(("chance level", output.chance_text(summary)))
    if result.kept_step is not None:
        facts.append(("kept", _kept_text(result.kept_step)))
    if "decision" in summary:
        facts.append(("decision", summary["decision"]["text"]))
    if "overfitting" in summary:
        facts.append(("overfitting", summary["overfitting"]))
    if summary["published"]:
        published = "; ".join(f"{who} {value:g}" for who, value in summary["published"].items())
        facts.append(("published", published))
    facts.append(("model", str(folder / "model")))
    if (figure := folder / "figures" / "loss.svg").is_file():  # members of an ensemble have theirs
        facts.append(("figures", str(figure)))
    facts.append(("to use", _use_command(trained, shlex.quote(str(folder)))))
    output.say_facts(facts)


def _sample_text(trained: TrainedRun, folder: str) -> str:
    """Of how many examples a test score is, and how to get that of all."""
    total = "" if trained.data is None else f" of {trained.data.task.size('test'):,}"
    sample = f"{trained.summary['test_examples']:,}{total} examples"
    return f" (of a sample of {sample}; of all: threefold evaluate {folder})"


def _bands_text(bands: Sequence[Mapping[str, Any]]) -> str:
    """What each band holds of the test values."""
    known = [band for band in bands if band["actual"] is not None]
    shares = [f"{band['nominal']:.0%} band holds {band['actual']:.1%}" for band in known]
    return f"the {', the '.join(shares)} of the test values" if shares else "no value is known"


def _kept_text(step: int) -> str:
    if step == 0:
        return "the weights before training: the linear start is the best on validation"
    return f"the weights after step {step:,}, the best on validation"


def _use_command(trained: TrainedRun, folder: str) -> str:
    """The command that answers new data with the trained model."""
    if trained.model.kind == "forecaster" and trained.model.preprocessing is not None:
        return f"threefold forecast {folder} FILE"
    if trained.model.kind == "language" and trained.model.tokenizer is not None:
        return f"threefold generate {folder} TEXT"
    if trained.model.preprocessing is not None:
        return f"threefold predict {folder} INPUT…"
    return f"threefold info {folder}"


def _free_folder(config: RunConfig) -> Path:
    """runs/mamba-shakespeare-1, or the first number that is not taken."""
    from threefold.training.summary import title_of

    name = title_of(config).replace(" on ", "-").replace(" ", "-")
    number = 1
    while (Path("runs") / f"{name}-{number}").exists():
        number += 1
    return Path("runs") / f"{name}-{number}"


def _launch(ranks: int, extra_arguments: list[str]) -> None:
    """With several ranks, run this command in as many processes, and exit with their code."""
    import os

    if ranks > 1 and "RANK" not in os.environ:
        from threefold.cli.launch import launch

        raise typer.Exit(launch(ranks, extra_arguments))
