"""What data need of a model: its kind, its vocabulary and its options, by the kind of a task."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from threefold.errors import ThreefoldError, option_name
from threefold.tasks.table import IMAGE_KINDS
from threefold.training.config import ModelSettings

if TYPE_CHECKING:
    from threefold.training.training_data import TrainingData


class NeededModel(NamedTuple):
    """What the data need of a model."""

    kind: str
    vocabulary: int  # of tokens that it reads, or writes if it translates; 0: it reads numbers
    options: dict[str, Any]


def _language(data: TrainingData, model: ModelSettings) -> NeededModel:
    return NeededModel(data.task.kind, data.task.vocabulary, {})  # or a masked one, or XLNet


def _images(data: TrainingData, model: ModelSettings) -> NeededModel:
    channels, *image = data.first.inputs.shape[1:]
    options = {"image": image, "channels": channels, "classes": data.task.classes}
    return NeededModel(data.task.kind, 0, options)


def _tagger(data: TrainingData, model: ModelSettings) -> NeededModel:
    task = data.task
    options = {"classes": max(task.classes, 1), "input_size": task.features}
    return NeededModel("tagger", task.vocabulary, options)


def _classifier(data: TrainingData, model: ModelSettings) -> NeededModel:
    options = {"classes": max(data.task.classes, 1), **_pooled_options(data)}
    return NeededModel("classifier", data.task.vocabulary, options)


def _hierarchical(data: TrainingData, model: ModelSettings) -> NeededModel:
    task = data.task
    if task.features or not task.vocabulary:
        raise ThreefoldError(
            f"{task.name}: a hierarchical model reads documents of sentences, but these are "
            f"numbers; expected texts with labels, or another {option_name('kind')}"
        )
    return NeededModel("hierarchical", task.vocabulary, {"classes": max(task.classes, 1)})


def _regressor(data: TrainingData, model: ModelSettings) -> NeededModel:
    targets = data.first.targets
    outputs = 1 if targets.dim() == 1 else targets.shape[1]
    options = {"outputs": outputs, **_pooled_options(data)}
    return NeededModel("regressor", data.task.vocabulary, options)


def _pooled_options(data: TrainingData) -> dict[str, Any]:
    features = data.task.features
    is_pair = data.first.inputs.dim() - (features > 0) == 3
    return {"pair": is_pair, "input_size": features}


def _forecaster(data: TrainingData, model: ModelSettings) -> NeededModel:
    targets = data.first.targets
    channels = 1 if targets.dim() == 2 else targets.shape[2]
    options = {"horizon": targets.shape[1], "exogenous": data.task.features - channels}
    several = {} if channels == 1 else {"channels": channels}
    start = data.linear_start(model)
    lags = {} if start is None else {"lags": start.lags}
    return NeededModel("forecaster", data.task.vocabulary, {**options, **several, **lags})


def _translator(data: TrainingData, model: ModelSettings) -> NeededModel:
    task, kind = data.task, model.kind or "seq2seq"
    options: dict[str, Any] = {"source_vocabulary": task.vocabulary}
    if kind == "transformer":
        options["share_embeddings"] = task.vocabulary == task.classes
    return NeededModel(kind, task.classes, options)


def _captioner(data: TrainingData, model: ModelSettings) -> NeededModel:
    source = data.first.source
    if source.dim() < 4:
        options = {"encoder": "vector", "input_size": source.shape[-1]}
    else:
        options = {"image": tuple(source.shape[2:]), "channels": source.shape[1]}
    return NeededModel("captioner", data.task.classes, options)


# By the kind of a task, each of MODEL_KINDS.
NEEDED_MODELS: dict[str, Callable[[TrainingData, ModelSettings], NeededModel]] = {
    "language": _language,
    "masked": _language,
    "xlnet": _language,
    **dict.fromkeys(IMAGE_KINDS, _images),
    "classifier": _classifier,
    "hierarchical": _hierarchical,
    "regressor": _regressor,
    "tagger": _tagger,
    "forecaster": _forecaster,
    "seq2seq": _translator,
    "captioner": _captioner,
}
