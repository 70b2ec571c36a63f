"""Which model is evaluated on which data: a model, its folder or a run; its own data or others.

New data are read with the model's own preprocessing: its columns by name, its labels in its order,
its scaling.  Nothing is fitted to them.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any

from threefold.data.preprocessing import Preprocessing
from threefold.data.readers import checked_path
from threefold.errors import ThreefoldError, nearest, option, override
from threefold.models.config import is_model_folder
from threefold.models.model import Model
from threefold.models.saving import load
from threefold.models.spec import Spec
from threefold.runtime.input_notes import input_notes
from threefold.runtime.prediction import find_preprocessing
from threefold.runtime.raw_inputs import RawInput
from threefold.runtime.table_forecasts import check_times
from threefold.tasks.table import SPLITS, TASKS, TEXT_KINDS
from threefold.tasks.task import Task
from threefold.tasks.user_data import user_task
from threefold.tasks.user_data.settings import FIELDS, read_settings
from threefold.training.config import ModelSettings, RunConfig
from threefold.training.data_paths import find_data
from threefold.training.experiment import CONFIG, MODEL, TrainedRun, read_run
from threefold.training.overrides import parse_override
from threefold.training.run_folder import RUN
from threefold.training.training_data import TrainingData, open_data

TRANSLATORS = ("seq2seq", "transformer")
NOTED_FORMS = ("text", "words", "row", "series")  # of inputs that are cheap to read twice


@dataclass(frozen=True)
class EvaluationSubject:
    """A model and the examples that it is evaluated on."""

    name: str  # of the model
    model: Model
    data: TrainingData
    split: str  # train, valid or test
    whole: bool  # all of the data, whatever the split
    carry: bool = False
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class TrainedModel:
    """A model with what is known of its training."""

    name: str
    model: Model
    config: RunConfig | None = None
    folder: Path | None = None  # of the run
    data: TrainingData | None = None  # that are still in memory


def open_subject(
    model: Model | TrainedRun | str | PathLike[str],
    data: Any = None,
    split: str | None = None,
    *,
    settings: Sequence[str] = (),
    skip_unknown: bool = False,
) -> EvaluationSubject:
    """Load the model and open the data; `settings` are overrides such as data.length=1024."""
    if split is not None and split not in SPLITS:
        raise ThreefoldError(f"unknown split {split!r}; {nearest(split, SPLITS)}")
    for text in settings:
        if parse_override(text)[0][0] != "data":
            raise ThreefoldError(
                f"{override(text)}: an evaluation can only change settings of the data, such as "
                "data.length=1024"
            )
    trained = _trained(model)
    if any(parse_override(text)[0] == ["data", "horizon"] for text in settings):
        raise ThreefoldError(
            f"{override('data.horizon=…')}: how far a model forecasts is fixed by its training; "
            "`threefold forecast` goes beyond it with a horizon of its own"
        )
    if data is None:
        subject = _own_data(trained, split or "test", settings)
    else:
        subject = _new_data(trained, data, split, settings, skip_unknown)
    _check_fit(trained, subject.data)
    return subject


def _trained(model: Model | TrainedRun | str | PathLike[str]) -> TrainedModel:
    if isinstance(model, Model):
        return TrainedModel(f"this {model.kind} model", model)
    if isinstance(model, TrainedRun):
        name = str(model.folder or model.summary.get("title") or "this run")
        return TrainedModel(name, model.model, model.config, model.folder, model.data)
    folder = checked_path("model", model, ", a model or a run")
    if not folder.is_dir():
        raise ThreefoldError(f"{folder}: no such folder")
    if (folder / CONFIG).is_file():
        if not is_model_folder(folder / MODEL):
            raise ThreefoldError(
                f"{folder}: this run has not saved its model yet, because it has not finished; "
                f"continue it with: threefold resume {shlex.quote(str(folder))}"
            )
        return TrainedModel(str(folder), load(folder / MODEL), read_run(folder), folder)
    if not is_model_folder(folder):
        raise ThreefoldError(f"{folder}: neither a run of `threefold train` nor a saved model")
    return TrainedModel(str(folder), load(folder))


def _own_data(trained: TrainedModel, split: str, settings: Sequence[str]) -> EvaluationSubject:
    """The data that a run was trained on."""
    if trained.config is None:
        run = Path(trained.name).parent
        hint = f", or evaluate the run: {run}" if (run / CONFIG).is_file() else ""
        raise ThreefoldError(
            f"{trained.name}: a saved model does not know its data; give DATA as well: "
            f"`threefold evaluate {trained.name} DATA`{hint}"
        )
    config = RunConfig.read(trained.config.model_dump(mode="json"), settings)
    notes: list[str] = []
    if trained.data is not None and not settings:
        data = trained.data
    else:
        hint = f"give the data as well: `threefold evaluate {trained.name} DATA --split test`"
        name = find_data(trained.folder, config.data.name, hint)
        found = config.data.model_copy(update={"name": name})
        data = open_data(found, preprocessing=trained.model.preprocessing)
        notes += _changed_note(trained, data)
        data = TrainingData(data.task, config.data)  # under the name that the user knows
    carry = config.training.carry_state and data.task.corpus is not None
    return EvaluationSubject(
        trained.name, trained.model, data.limited(None), split, False, carry, tuple(notes)
    )


def _changed_note(trained: TrainedModel, data: TrainingData) -> list[str]:
    if not data.from_user:
        return []
    before = _digests(trained.folder)
    if not before or before == set(data.identity().values()):
        return []
    return [
        f"{data.data.name} has changed since the model was trained, so its test split may contain "
        "examples that the model was trained on"
    ]


def _digests(folder: Path | None) -> set[str]:
    """The checksums of the files that a run was trained on."""
    try:
        content = json.loads((folder / RUN).read_text(encoding="utf-8")) if folder else {}
        values = content.get("configuration", {}).items()
    except (OSError, ValueError, AttributeError):
        return set()
    return {value for key, value in values if key.startswith("data file ")}


def _new_data(
    trained: TrainedModel,
    source: Any,
    split: str | None,
    settings: Sequence[str],
    skip_unknown: bool,
) -> EvaluationSubject:
    """Other data than those of the training: all of them, unless a split is asked for."""
    named = isinstance(source, (str, PathLike))
    name = str(source) if named else type(source).__name__
    if not name:
        raise ThreefoldError("DATA is empty; expected a file, a folder or the name of a task")
    values = _reading_values(trained, name)
    config = RunConfig.read({"data": values}, settings).data
    is_task = named and name in TASKS
    if is_task or (named and not Path(name).exists()):
        kept = {key: values[key] for key in values if key not in FIELDS}
        data = open_data(RunConfig.read({"data": kept}, settings).data)
        return EvaluationSubject(trained.name, trained.model, data, split or "test", False)
    preprocessing = find_preprocessing(
        trained.model, "train it with `threefold train`, or evaluate it on its own task"
    )
    task = user_task(
        Path(name) if named else source,
        read_settings(config.model_dump()),
        preprocessing=preprocessing,
        split=split is not None,
        skip_unknown=skip_unknown,
    )
    for series in () if task.windows is None else task.windows.series:
        check_times(task.name, task.windows.preprocessing, series)
    data = TrainingData(task, config)
    notes = [
        *_seen_note(trained, data, split),
        *_skipped_note(task.skipped),
        *(() if task.description is None else task.description.notes),
        *_input_notes(task, preprocessing, split or "test"),
    ]
    return EvaluationSubject(
        trained.name, trained.model, data, split or "test", split is None, notes=tuple(notes)
    )


def _reading_values(trained: TrainedModel, name: str) -> dict[str, Any]:
    """Settings with which new data are read: those of the training that are not in the model."""
    values: dict[str, Any] = {"name": name}
    preprocessing = trained.model.preprocessing
    if trained.config is not None:
        values["batch_size"] = trained.config.data.batch_size
        if trained.model.kind in TEXT_KINDS and trained.config.data.length is not None:
            values["length"] = trained.config.data.length
    if preprocessing is not None and preprocessing.kind == "forecaster":
        read = {"resample": preprocessing.resample, "day_first": preprocessing.day_first}
        values |= {key: value for key, value in read.items() if value is not None}
    return values


def _seen_note(trained: TrainedModel, data: TrainingData, split: str | None) -> list[str]:
    if split is not None or not Path(data.data.name).exists():
        return []
    if not _digests(trained.folder) & set(data.identity().values()):
        return []
    return [
        "the model was trained on most of these data, so the scores are optimistic; "
        f"{option('split', 'test')} evaluates it on the examples that it has not seen"
    ]


def _input_notes(task: Task[Any], preprocessing: Preprocessing, split: str) -> list[str]:
    """What `predict` says about inputs: cut, missing, not in the training data."""
    if task.raw is None or preprocessing.form not in NOTED_FORMS:
        return []
    rows = [
        RawInput(value, place)
        for place, value in (task.raw(split, number) for number in range(task.size(split)))
    ]
    chain = preprocessing.inputs
    return input_notes(chain, rows, [chain.apply(row.value) for row in rows])


def _skipped_note(skipped: Sequence[str]) -> list[str]:
    if not skipped:
        return []
    shown = ", ".join(skipped[:3]) + (", …" if len(skipped) > 3 else "")
    return [f"{len(skipped):,} examples with unknown labels were left out: {shown}"]


def _check_fit(trained: TrainedModel, data: TrainingData) -> None:
    """Refuse data that need another model."""
    settings = ModelSettings() if trained.config is None else trained.config.model
    spec, needed = trained.model.spec, data.spec(settings)
    name = data.data.name
    if spec.kind in TRANSLATORS and needed.kind in TRANSLATORS:
        needed = replace(needed, kind=spec.kind)
    if needed.kind != (kind := spec.option("answers", spec.kind)):
        raise ThreefoldError(
            f"{trained.name} is a {kind} model, but {name} needs a {needed.kind} model"
        )
    for what, have, need in _sizes(spec, needed):
        if have != need:
            raise ThreefoldError(f"{trained.name} has {what} {have}, but {name} needs {need}")


def _sizes(spec: Spec, needed: Spec) -> list[tuple[str, Any, Any]]:
    """What must be the same: (what, of the model, for the data)."""
    sizes: list[tuple[str, Any, Any]] = [("a vocabulary of", spec.vocabulary, needed.vocabulary)]
    for name in ("classes", "input_size", "horizon", "channels", "exogenous"):
        if name in spec.options and name in needed.options:
            have, need = spec.options[name], needed.options[name]
            sizes.append((f"{name.replace('_', ' ')}", have, need))
    return sizes
