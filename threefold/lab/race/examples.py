"""The test examples on which a model is most wrong, as JSON values that a page can draw.

series    curves with label and answer          image     pixels with label and answer
text      the text with label and answer        forecast  history, truth, forecast and band
stretch   the most surprising part of a text, token by token, in bits
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from threefold.data.loaders import IGNORE, Batch
from threefold.lab.race.calibration import batches_of
from threefold.models.model import Model
from threefold.tasks.pairs import Pairs
from threefold.tasks.preview import spell
from threefold.training.evaluation import evaluate
from threefold.training.evaluations.forecast_measure import ForecastMeasure
from threefold.training.evaluations.measures import (
    Array,
    ClassificationMeasure,
    Measure,
    RegressionMeasure,
    shorten,
)
from threefold.training.evaluations.translation import TranslationMeasure
from threefold.training.objectives import BatchLoss
from threefold.training.settings import TrainingSettings
from threefold.training.training_data import TrainingData

MOST = 6  # examples
MOST_POINTS = 160  # of a curve
MOST_CHANNELS = 3
MOST_PIXELS = 32  # along each side of an image
STRETCH, BEFORE = 64, 24  # tokens of a stretch, and before it
MOST_STRETCHES = 4

Example = dict[str, Any]


class Numbered(Measure):
    """Also says the numbers of the worst examples."""

    def show(self, number: int, position: int | None = None) -> dict[str, str]:
        """Where an example stands, what it is, and its number."""
        return {**super().show(number, position), "number": str(number)}


class NumberedClassification(Numbered, ClassificationMeasure):
    """Labels, with the numbers of the worst examples."""


class NumberedRegression(Numbered, RegressionMeasure):
    """Numbers, with the numbers of the worst examples."""


def worst_examples(data: TrainingData, model: Model, numbers: Array) -> list[Example]:
    """The examples, among those with these numbers, on which a model is most wrong."""
    first = data.task.rows("test", [0])
    if data.task.kind in ("language", "masked"):
        return _stretches(data, model, numbers)
    measure = _measure(data, model, numbers, first)
    objective = data.objective(TrainingSettings(steps=1))
    with measure.watching(model):
        evaluate(model, batches_of(data, numbers), objective=objective, on_batch=measure)
    values = measure.values()
    if isinstance(measure, ForecastMeasure):
        return [_forecast(values, picture) for picture in values["pictures"]]
    return [_example(data, entry) for entry in _distinct(values["worst"])[:MOST]]


def _measure(data: TrainingData, model: Model, numbers: Array, first: Any) -> Measure:
    if isinstance(first, Pairs):
        return TranslationMeasure(data, "test", numbers)
    if model.kind == "forecaster":
        measure = ForecastMeasure(data, "test", numbers)
        measure.worst_pictures = MOST - 1
        return measure
    if first.targets.is_floating_point():
        return NumberedRegression(data, "test", numbers)
    classes = int(model.spec.option("classes"))
    return NumberedClassification(data, "test", numbers, classes)


def _distinct(worst: Sequence[Example]) -> list[Example]:
    """Each example once, although several of its elements may be wrong."""
    return list({entry["place"]: entry for entry in reversed(worst)}.values())[::-1]


def _example(data: TrainingData, entry: Example) -> Example:
    """A wrong answer with what is needed to draw its input."""
    number = entry.get("number")
    told = {name: value for name, value in entry.items() if name not in ("number", "input")}
    if number is None:
        return {"form": "text", **told, "text": entry["input"]}
    return {**told, **_drawn(data, int(number), entry["input"])}


def _drawn(data: TrainingData, number: int, shown: str) -> Example:
    """The input of an example as text, curves or pixels."""
    task, rows = data.task, data.task.rows("test", [number])
    inputs = rows.inputs[0] if rows.mask is None else rows.inputs[0][rows.mask[0]]
    if not task.features and inputs.dim() == 1:
        text = shown if task.raw is not None else spell(task, inputs.numpy())
        return {"form": "text", "text": shorten(text)}
    if not inputs.is_floating_point():
        return {"form": "text", "text": shown}
    side = math.isqrt(len(inputs)) if inputs.dim() == 2 else 0
    if inputs.dim() == 3:
        return _image(inputs.permute(1, 2, 0).numpy())
    if task.domain == "vision" and side * side == len(inputs):
        return _image(inputs.reshape(side, side, -1).numpy())
    raw = None if task.raw is None else task.raw("test", number)[1]
    original = isinstance(raw, np.ndarray) and raw.ndim == 2 and raw.dtype.kind == "f"
    return _series(raw if original and raw is not None else inputs.numpy())


def _series(values: Array) -> Example:
    """Curves [length, channels], thinned; a table's row of many numbers is one curve."""
    if len(values) == 1 and values.shape[1] > MOST_CHANNELS:
        values = values.T
    places = np.unique(np.linspace(0, len(values) - 1, MOST_POINTS).round().astype(int))
    curves = [
        [_rounded(value) for value in values[places, channel]]
        for channel in range(min(MOST_CHANNELS, values.shape[1]))
    ]
    more = max(0, values.shape[1] - MOST_CHANNELS)
    return {"form": "series", "places": places.tolist(), "curves": curves, "more_channels": more}


def _image(pixels: Array) -> Example:
    """Pixels [height, width, channels] from 0 to 255; of a large image every few."""
    step = max(1, math.ceil(max(pixels.shape[:2]) / MOST_PIXELS))
    small = pixels[::step, ::step].astype(np.float64)
    low, high = float(np.nanmin(small)), float(np.nanmax(small))
    grey = np.nan_to_num((small - low) / ((high - low) or 1.0)) * 255
    if grey.shape[2] not in (1, 3):
        grey = grey.mean(2, keepdims=True)
    return {"form": "image", "pixels": grey.round().astype(int).tolist()}


def _forecast(values: Example, picture: Example) -> Example:
    """A typical or bad forecast in original units."""
    lines = {
        name: [None if value is None else _rounded(value) for value in picture[name]]
        for name in ("history", "truth", "forecast", "low", "high")
    }
    told = {"title": picture["title"], "place": picture["place"]}
    target = next(iter(values["by_target"]))
    levels = values["picture_levels"]
    return {"form": "forecast", **told, "target": target, "levels": levels, **lines}


def _stretches(data: TrainingData, model: Model, numbers: Array) -> list[Example]:
    """The most surprising stretches, at most one of each window."""
    found: list[tuple[float, int, Any, Any]] = []  # mean bits, number, tokens, their bits
    seen = 0

    def look(rows: Batch, batch_loss: BatchLoss, _: Any) -> None:
        nonlocal seen
        logits = batch_loss.outputs.float().transpose(1, -1)
        nats = F.cross_entropy(logits, rows.targets, reduction="none", ignore_index=IGNORE)
        bits = nats.double().cpu() / math.log(2)
        for row, target in zip(bits, rows.targets.cpu(), strict=True):
            mean, start, end = most_surprising(row)
            first = max(0, start - BEFORE)
            found.append((mean, int(numbers[seen]), target[first:end], row[first:end]))
            seen += 1

    objective = data.objective(TrainingSettings(steps=1))
    evaluate(model, batches_of(data, numbers), objective=objective, on_batch=look)
    found.sort(key=lambda entry: (-entry[0], entry[1]))
    return [
        {
            "form": "stretch",
            "place": f"window {number + 1}",
            "bits": mean,
            "pieces": list(_pieces(data, tokens.tolist(), bits.tolist())),
        }
        for mean, number, tokens, bits in found[:MOST_STRETCHES]
    ]


def most_surprising(bits: torch.Tensor) -> tuple[float, int, int]:
    """Mean bits, start and end of the most surprising stretch of a window."""
    length = min(STRETCH, len(bits))
    means = bits.unfold(0, length, 1).mean(1)
    start = int(means.argmax())
    return float(means[start]), start, start + length


def _pieces(
    data: TrainingData, tokens: Sequence[int], bits: Sequence[float]
) -> Iterator[list[Any]]:
    """[text, bits] of each token; tokens of one character together."""
    tokenizer = data.tokenizer
    if tokenizer is None or IGNORE in tokens:
        shown = ("·" if token == IGNORE else str(token) for token in tokens)
        yield from ([f"{text} ", _rounded(x)] for text, x in zip(shown, bits, strict=True))
        return
    pending = 0.0
    for text, x in zip(tokenizer.stream(tokens), [*bits, 0.0], strict=True):
        pending += x
        if text:
            yield [text, _rounded(pending)]
            pending = 0.0


def _rounded(value: float) -> float | None:
    """Four significant digits, as a drawing needs them."""
    return float(f"{value:.4g}") if math.isfinite(value) else None
