"""A simple model that has won a race of an estimator, as a model that `save` writes as a folder."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from threefold.classical.hashed_ngrams import TextLogistic
from threefold.classical.whole_sequences import (
    ConstantAnswer,
    NearestSeries,
    RocketRidge,
    TextScores,
)
from threefold.data.preprocessing import Preprocessing
from threefold.data.preprocessing.text import Tokenize
from threefold.estimators.baselines import MeanAnswer, Neighbours
from threefold.estimators.reservoir_readout import ReservoirReadout, ReservoirRidge
from threefold.models.simple import SimpleModel

Array = NDArray[Any]
IMPOSSIBLE = -1e4  # log-odds of a class that training has not seen
LEAST = 1e-12  # probability whose logarithm is taken


def as_model(
    name: str, fitted: Any, preprocessing: Preprocessing, outputs: int, input_size: int
) -> SimpleModel:
    """The model of a fitted one; outputs: classes or numbers; input_size: 0 for tokens."""
    classes = outputs if preprocessing.kind == "classifier" else 0
    step = preprocessing.inputs.find(Tokenize)
    model = SimpleModel.of(
        name,
        _whole(fitted, outputs, classes > 0),
        0 if step is None else step.vocabulary,
        answers=preprocessing.kind,
        classes=classes,
        outputs=outputs,
        input_size=input_size,
    )
    model.preprocessing = preprocessing
    model.tokenizer = None if step is None or step.offset else step.tokenizer
    return model


def _whole(fitted: Any, outputs: int, classify: bool) -> Any:
    """The same answers, from batches of padded sequences: log-odds of classes, or numbers."""
    if isinstance(fitted, MeanAnswer):
        return ConstantAnswer(_scores(fitted.answer, classify))
    if isinstance(fitted, Neighbours):
        known = torch.from_numpy(fitted.inputs), torch.from_numpy(np.asarray(fitted.lengths))
        return NearestSeries(*known, _scores(fitted.answers, classify))
    if isinstance(fitted, TextLogistic):
        return TextScores.of(fitted)
    if isinstance(fitted, ReservoirReadout):
        seen = np.arange(fitted.weight.shape[1])
        weight, offset = _of_all(fitted.weight, fitted.offset, seen, outputs)
        spread = torch.from_numpy(fitted.spread)
        return ReservoirRidge(spread, weight, offset, fitted.temperature or 1.0, fitted.seed)
    return _rocket(fitted, outputs)


def _rocket(fitted: Any, outputs: int) -> RocketRidge:
    """That of a `RocketClassifier` or a `RocketRegressor`."""
    classify = hasattr(fitted, "classes_")
    seen = fitted.classes_ if classify else np.arange(outputs)
    weight, offset = _of_all(fitted.coef_.T, fitted.intercept_, seen, outputs)
    plan = {name: torch.from_numpy(part) for name, part in fitted.plan_.items()}
    return RocketRidge(
        torch.from_numpy(fitted.scale_),
        weight,
        offset,
        float(fitted.temperature_) if classify else 1.0,
        **plan,
        length=int(fitted.length_),
        width=int(fitted.n_channels_in_),
    )


def _scores(answers: Array, classify: bool) -> Tensor:
    """Log-odds of probabilities; numbers as they are."""
    return torch.from_numpy(np.log(np.maximum(answers, LEAST)) if classify else answers)


def _of_all(weight: Array, offset: Array, seen: Array, outputs: int) -> tuple[Tensor, Tensor]:
    """A ridge for all outputs; those that training has not seen are impossible."""
    wide, low = np.zeros((len(weight), outputs)), np.full(outputs, IMPOSSIBLE)
    wide[:, seen], low[seen] = weight, offset
    return torch.from_numpy(wide), torch.from_numpy(low)
