"""`threefold.train`: from data to a trained model in one call."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

from threefold.data.readers import checked_path
from threefold.errors import ThreefoldError
from threefold.models.model import Model
from threefold.tasks.table import TASKS
from threefold.tasks.task import Task
from threefold.tasks.user_data.datasets import batch_size_of
from threefold.tasks.user_data.settings import join_names
from threefold.training import clock
from threefold.training.config import RunConfig
from threefold.training.defaults import suit
from threefold.training.durations import parse_duration
from threefold.training.experiment import TrainedRun, run
from threefold.training.fine_tuning import open_starting_model, settle
from threefold.training.preparation import PreparedRun, open_run_data, open_start, prepare
from threefold.training.training_data import TrainingData

Names = str | int | Sequence[str | int]  # of columns
COLUMNS = ("target", "features", "time_column", "group_column", "series_column", "known_future")
LOGGER = logging.getLogger("threefold.training")


def train(
    data: Any,
    *,
    mixers: str | Sequence[Any] | None = None,
    size: str | None = None,
    steps: int | None = None,
    time: str | float | None = None,
    folder: str | PathLike[str] | None = None,
    seed: int = 0,
    kind: str | None = None,
    target: Names | None = None,
    features: Names | None = None,
    time_column: str | int | None = None,
    group_column: str | int | None = None,
    series_column: str | int | None = None,
    horizon: int | None = None,
    known_future: Names | None = None,
    from_model: Model | str | PathLike[str] | None = None,
    adapters: int | None = None,
    pretrain: bool = False,
    ensemble: int | None = None,
    settings: Mapping[str, Any] | None = None,
) -> TrainedRun:
    """Train a model and evaluate it on the test split; returns run.model, .folder, .history.

    data: a path, a task's name, a pandas or polars DataFrame, a dict of columns, a list of texts,
    (inputs, targets) as arrays, a Task, or a torch Dataset or DataLoader: one, (train, test) or
    (train, valid, test).  mixers: "gla", or a hybrid "a+b"; default: mamba (xlnet: transformer_xl).
    size: tiny, small, medium or large.  time: "5m", "90s" or seconds; without steps and time, ten
    minutes.  folder: where checkpoints, log and model are written; None writes nothing.
    kind, target: what to predict, if the data do not say.  target, features: columns of a table,
    as a list or separated by commas.  time_column: in the order of which rows follow each other.
    group_column, series_column: rows with one value of it are one sequence or one time series.
    horizon: rows to forecast. known_future: features that are known for these rows, too.
    from_model: a trained model, or its folder, to start from: blocks, tokenizer, columns and
    scaling are kept, the head too if the labels are the same. adapters: a rank, e.g. 8; then only
    the head and low-rank adapters are trained. pretrain: first learn to predict the next element,
    also without labels. ensemble: number of models from other seeds, whose answers are averaged.
    settings: others by full names (`threefold config`), which override: {"data.length": 96}.
    """
    _check_types(folder, settings)
    config = _config(_values(locals()), settings or {})
    path = None if folder is None else Path(folder)
    prepared, config = _prepare(config, data, from_model, path)
    return run(config, path, prepared=prepared)


def _check_types(folder: Any, settings: Any) -> None:
    if folder is not None:
        checked_path("folder", folder, ", or None to write nothing")
    if not isinstance(settings, Mapping | None):
        raise ThreefoldError(
            f"settings: expected a mapping of full names to values, got {settings!r}"
        )


def _values(arguments: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The arguments of `train` as settings, by section."""
    data, seed = arguments["data"], arguments["seed"]
    if data is None:
        raise ThreefoldError("data is None; expected a path, a task's name, or data in memory")
    read = {name: _join_names(name, arguments[name]) for name in COLUMNS}
    read["pretrain"] = arguments["pretrain"] or None
    read.update(**_data_values(data), seed=seed, **{n: arguments[n] for n in ("kind", "horizon")})
    model = {name: arguments[name] for name in ("mixers", "size", "seed", "adapters")}
    training = {**_limits(arguments["steps"], arguments["time"]), "seed": seed}
    training["ensemble"] = arguments["ensemble"]
    return {"data": read, "model": model, "training": training}


def _prepare(
    config: RunConfig,
    data: Any,
    from_model: Model | str | PathLike[str] | None,
    folder: Path | None,
) -> tuple[PreparedRun, RunConfig]:
    """Open the model to start from and the data, and build the model."""
    started = clock.now()
    in_memory = from_model if isinstance(from_model, Model) else None
    if from_model is not None and in_memory is None:
        model = config.model.model_copy(update={"from_model": str(from_model)})
        config = config.model_copy(update={"model": model})
    config = settle(config, in_memory)
    start = open_start(config) if in_memory is None else open_starting_model(in_memory)
    opened = open_run_data(config, start, source=None if isinstance(data, (str, Path)) else data)
    _tell(opened)
    config, opened, chosen = suit(config, opened, start, folder)
    for name, reason in chosen.items():
        LOGGER.info("%s was chosen: %s", name, reason)
    return replace(prepare(config, opened, start, started), chosen=chosen), config


def _config(values: dict[str, dict[str, Any]], settings: Mapping[str, Any]) -> RunConfig:
    """The configuration of values by section, which settings with full names override."""
    for key, value in settings.items():
        section, _, name = key.partition(".")
        if section not in values or not name:
            raise ThreefoldError(
                f"settings: unknown key {key!r}; expected data.…, model.… or training.…"
            )
        values[section][name] = value
    return RunConfig.read({part: _given(section) for part, section in values.items()})


def _join_names(option: str, names: Names | None) -> Any:
    """Names of columns as the settings have them, separated by commas; None stays None."""
    if names is None or isinstance(names, str):
        return names
    if not isinstance(names, int | Sequence):
        raise ThreefoldError(f"{option} is {names!r}; expected names of columns, or their numbers")
    return join_names([str(name) for name in ([names] if isinstance(names, int) else names)])


def _tell(data: TrainingData) -> None:
    """Log how a user's data were understood; what they should know, as a warning."""
    description = data.task.description
    if description is not None:
        for what, value in (("kind", description.kind), *description.facts):
            LOGGER.info("%s: %s", what, value)
        for note in description.notes:
            LOGGER.warning("%s: %s", description.name, note)


def _data_values(data: Any) -> dict[str, Any]:
    return {"name": data_name(data), "batch_size": batch_size_of(data)}


def data_name(data: Any) -> str:
    """The name of data: that of a task, the path of a file, or what is in memory."""
    if isinstance(data, (str, Path)):
        return str(data) if str(data) in TASKS or not Path(data).exists() else str(Path(data))
    return data.name if isinstance(data, Task) else type(data).__name__


def _limits(steps: int | None, time: str | float | None) -> dict[str, Any]:
    if time is None:
        return {"steps": steps}
    duration = parse_duration(f"{time}s" if isinstance(time, (int, float)) else time)
    if steps is not None and duration.steps is not None:
        raise ThreefoldError(f"steps={steps} and time={time!r} both give steps; give one of them")
    return {"steps": steps or duration.steps, "time": duration.seconds}


def _given(section: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in section.items() if value is not None}
