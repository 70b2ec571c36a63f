"""The scores of each element of a stream, by mode.

    likelihood   log p(x_t | x_1 … x_{t−1}): of a token, or of an element under a gaussian forecast
                 one step ahead, summed over its channels
    predict      what follows x_t: the most likely tokens or classes, the numbers of a regressor (of
                 x_1 … x_t, in the user's units), or the forecast
    anomaly      how unusual x_t is, given x_1 … x_t alone

The anomaly score of a language model is the surprise s_t = −log p(x_t | x_<t) as a z-score: its
distance from the running mean of the surprises *before* it, in running standard deviations.
A score means "less expected than usual for this model on this stream", no more: a model that fits
the stream badly finds nothing unusual.  The first 30 surprises have no score (null).
For a tagger or a classifier the surprise is −log max_c p(c), its uncertainty, scored in the same
way; unknown inputs that it classifies with confidence are not detected (Hendrycks & Gimpel 2017, "A
Baseline for Detecting Misclassified and Out-of-Distribution Examples in Neural Networks").
For a forecast the score is the largest |x − μ| / σ over channels, the standardised residual, where
forecasts from windows get a second look (`second_look.py`).  Of quantiles, μ is the median and σ
the deviation of the normal distribution whose interval between the outermost two is as wide:
(q₀.₉ − q₀.₁) / 2.56.  (Halves of it would be 0 where two quantiles meet.)

Units: forecasts (`flow+1`, one step after the row, and `flow+1_q0.1`, its lowest decile), values
and expected values are those of the table; scores have none; log-likelihoods are in nats, of the
standardised values where a model was trained on a table.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from threefold.data.preprocessing import Chain
from threefold.data.preprocessing.decisions import Thresholds, answer_first
from threefold.data.preprocessing.numbers import Standardise
from threefold.data.preprocessing.text import Labels
from threefold.errors import ThreefoldError, nearest
from threefold.models.forecaster import Forecaster, gaussian_loss
from threefold.models.regressor import Regressor
from threefold.runtime.scores.adaptive_bands import AdaptiveBands
from threefold.runtime.scores.forecast_values import (
    SMALLEST_DEVIATION,
    forecast_deviation,
    original_units,
    target_names,
)
from threefold.runtime.scores.likelihoods import shifted, token_likelihood
from threefold.runtime.scores.second_look import SecondLook
from threefold.runtime.table_forecasts import forecast_levels, named_levels
from threefold.tasks.user_data.examples import output_names

MODES = ("likelihood", "predict", "anomaly")
WARM_UP = 30  # surprises before the first score

Columns: TypeAlias = dict[str, Sequence[Any]]  # name to one value per element


class Scorer(ABC):
    """Computes columns from elements and outputs; `reduction` is how a group becomes one row."""

    reduction: str = "last"  # last, sum (of log_likelihood) or largest (score)
    compared: str | None = None  # the column that alarms compare with a clean stretch

    @abstractmethod
    def columns(self, elements: Tensor, before: Tensor | None, outputs: Tensor) -> Columns:
        """Score elements [L], given the outputs [L, …] after each and the one before the first."""

    def see(self, inputs: Tensor) -> None:  # noqa: B027 (most scorers need no inputs)
        """Note the inputs of the model [L, …] that belong to the elements scored next."""

    def state(self) -> list[float]:
        """Return the numbers that are carried from chunk to chunk."""
        return []

    def restore(self, state: list[float]) -> None:
        """Continue with the numbers that `state` returned."""
        assert not state  # a scorer with a state overrides both methods


class RunningZScore:
    """z_t = (s_t − mean) / deviation, both of the values before s_t."""

    def __init__(self) -> None:
        self.count, self.mean, self.variance = 0, 0.0, 0.0

    def scores(self, surprises: Sequence[float]) -> list[float]:
        """Return the z-scores; NaN where the surprise is NaN or too few came before."""
        scores = []
        for surprise in surprises:
            if math.isnan(surprise):
                scores.append(math.nan)
                continue
            difference = surprise - self.mean
            deviation = max(math.sqrt(self.variance), SMALLEST_DEVIATION)
            scores.append(difference / deviation if self.count >= WARM_UP else math.nan)
            self.count += 1
            share = 1 / self.count
            self.mean += share * difference
            self.variance = (1 - share) * (self.variance + share * difference * difference)
        return scores


class LikelihoodScorer(Scorer):
    """Log-likelihood of each token."""

    reduction = "sum"

    def columns(self, elements: Tensor, before: Tensor | None, outputs: Tensor) -> Columns:
        return {"log_likelihood": token_likelihood(elements, before, outputs)}


class TopTokensScorer(Scorer):
    """The k most likely tokens or classes after each element, by number and by text."""

    thresholds: Thresholds = ()  # of the probabilities of labels

    def __init__(self, name: str, texts: Sequence[str] | None, top_k: int, count: int) -> None:
        self.name, self.texts, self.top_k = name, texts, min(top_k, count)
        self.count = count

    def columns(self, elements: Tensor, before: Tensor | None, outputs: Tensor) -> Columns:
        probabilities = outputs[:, : self.count].double().softmax(-1)
        indices = answer_first(probabilities, self.thresholds).topk(self.top_k, -1).indices
        values = probabilities.gather(-1, indices)
        columns: Columns = {}
        for rank in range(self.top_k):
            suffix = f"_{rank + 1}" if rank else ""
            columns |= self._named(indices[:, rank].tolist(), suffix)
            columns[f"probability{suffix}"] = values[:, rank].tolist()
        return columns

    def _named(self, chosen: list[int], suffix: str) -> Columns:
        columns: Columns = {f"{self.name}{suffix}": chosen}
        if self.texts is not None:
            columns[f"predicted_text{suffix}"] = [self.texts[index] for index in chosen]
        return columns


class LabelScorer(TopTokensScorer):
    """The answered label so far, and the k − 1 most likely others, by name."""

    def _named(self, chosen: list[int], suffix: str) -> Columns:
        assert self.texts is not None  # labels have names
        return {f"{self.name}{suffix}": [self.texts[index] for index in chosen]}


class SurpriseScorer(Scorer):
    """Surprises and their z-scores."""

    reduction = "largest"
    compared = "surprise"

    def __init__(self, tokens: bool) -> None:
        self.tokens, self.running = tokens, RunningZScore()

    def columns(self, elements: Tensor, before: Tensor | None, outputs: Tensor) -> Columns:
        if self.tokens:
            surprise = [-value for value in token_likelihood(elements, before, outputs)]
        else:
            surprise = (-outputs.double().log_softmax(-1).amax(-1)).tolist()
        return {"surprise": surprise, "score": self.running.scores(surprise)}

    def state(self) -> list[float]:
        return [self.running.count, self.running.mean, self.running.variance]

    def restore(self, state: list[float]) -> None:
        count, self.running.mean, self.running.variance = state
        self.running.count = int(count)


class NumbersScorer(Scorer):
    """The numbers that a regressor predicts, in the units of its training data, by name."""

    def __init__(self, model: Regressor) -> None:
        steps = None if model.preprocessing is None else model.preprocessing.outputs
        scale = None if steps is None else steps.find(Standardise)
        count = model.spec.option("outputs")
        names = output_names(count) if scale is None else scale.columns
        self.names = names if count > 1 else output_names(1)
        self.steps = steps or Chain()

    def columns(self, elements: Tensor, before: Tensor | None, outputs: Tensor) -> Columns:
        values = self.steps.invert(outputs.double().cpu().numpy())
        return {name: values[:, i].tolist() for i, name in enumerate(self.names)}


class ForecastScorer(Scorer):
    """The whole forecast in original units: flow+1, flow+1_q0.1, …, flow+2, …

    The bands of a calibrated model adapt to the stream.
    """

    def __init__(self, model: Forecaster, series: str) -> None:
        self.model, self.names, self.series = model, target_names(model), series
        calibration = model.calibration
        self.adaptive = None if calibration is None else AdaptiveBands(calibration)

    def state(self) -> list[float]:
        return [] if self.adaptive is None else self.adaptive.state()

    def restore(self, state: list[float]) -> None:
        if self.adaptive is not None and state:
            self.adaptive.restore(state)

    def _levels(self, elements: Tensor, outputs: Tensor) -> tuple[Any, Any]:
        """Levels and numbers, as `forecast_levels`."""
        if self.adaptive is None:
            return forecast_levels(self.model, outputs)
        truth = elements[:, : self.model.channels].double().cpu().numpy()
        wide = outputs.double().cpu()
        point = self.model.point_forecast(wide).numpy()
        quantiles = self.model.quantile_forecast(wide).numpy()
        return named_levels(self.model, point, self.adaptive.bands(truth, quantiles, point))

    def columns(self, elements: Tensor, before: Tensor | None, outputs: Tensor) -> Columns:
        levels, numbers = self._levels(elements, outputs)
        values = [
            original_units(self.model, torch.from_numpy(part), self.series) for part in numbers
        ]
        columns: Columns = {}
        for step in range(self.model.horizon):
            for channel, name in enumerate(self.names):
                for level, part in zip(levels, values, strict=True):
                    title = f"{name}+{step + 1}" + ("" if level is None else f"_q{level:g}")
                    columns[title] = part[:, step, channel].tolist()
        return columns


class ResidualScorer(Scorer):
    """Distance of each element from its forecast, for the channel where it is largest."""

    reduction = "largest"
    compared = "score"

    def __init__(self, model: Forecaster, series: str) -> None:
        if model.quantiles is not None and len(model.quantiles) < 2:
            raise ThreefoldError(
                f"anomaly scores need an interval, but this forecaster has one quantile "
                f"({model.quantiles[0]:g}); expected at least two, or a gaussian head"
            )
        self.model, self.names, self.series = model, target_names(model), series
        self.second_look: SecondLook | None = None
        self.inputs: Tensor | None = None

    def look_twice(self, context: int) -> None:
        """Also compare with forecasts from a past without surprising elements."""
        self.second_look = SecondLook(self.model, context, self._scores)

    def see(self, inputs: Tensor) -> None:
        self.inputs = inputs

    def state(self) -> list[float]:
        return [] if self.second_look is None else self.second_look.state()

    def restore(self, state: list[float]) -> None:
        if self.second_look is not None:
            self.second_look.restore(state)

    def _scores(self, value: Tensor, forecast: Tensor) -> Tensor:
        distance = (value - self.model.point_forecast(forecast)).abs()
        return distance / forecast_deviation(self.model, forecast)

    def columns(self, elements: Tensor, before: Tensor | None, outputs: Tensor) -> Columns:
        value = elements[:, : self.model.channels].double()  # NaN where it is missing
        forecast = shifted(before, outputs)[:, 0].double()  # one step ahead: [L, channels, outputs]
        if self.second_look is not None and self.inputs is not None:
            forecast = self.second_look.better(value, forecast, self.inputs)
        scores = self._scores(value, forecast)
        worst = scores.nan_to_num(-1).argmax(-1, keepdim=True)
        expected = original_units(self.model, self.model.point_forecast(forecast), self.series)
        return {
            "column": [self.names[index] for index in worst[:, 0].tolist()],
            "value": original_units(self.model, value, self.series).gather(1, worst)[:, 0].tolist(),
            "expected": expected.gather(1, worst)[:, 0].tolist(),
            "score": scores.gather(1, worst)[:, 0].tolist(),
        }


class DensityScorer(Scorer):
    """log N(x; μ, σ²) of gaussian forecasts one step ahead."""

    reduction = "sum"

    def __init__(self, model: Forecaster) -> None:
        if model.quantiles is not None:
            raise ThreefoldError(
                "a forecaster of quantiles defines no likelihood; use mode predict or anomaly, or "
                "build the model with a gaussian head"
            )
        self.model = model

    def columns(self, elements: Tensor, before: Tensor | None, outputs: Tensor) -> Columns:
        value = elements[:, : self.model.channels].double()
        mean, deviation = shifted(before, outputs)[:, 0].double().unbind(-1)
        densities = -gaussian_loss(mean, deviation, value)
        total = densities.nansum(-1).masked_fill(densities.isnan().all(-1), torch.nan)
        return {"log_likelihood": total.tolist()}


def default_mode(model: Any) -> str:
    """Likelihood for models that have one, else predict."""
    has_one = model.kind == "language" or (
        isinstance(model, Forecaster) and model.quantiles is None
    )
    return "likelihood" if has_one else "predict"


class ScorerOptions(NamedTuple):
    """What a stream says about its scores."""

    mode: str
    token_texts: Sequence[str] | None  # the text of each token
    top_k: int
    series: str  # whose elements are scored, if there are several


def _token_scorer(model: Any, options: ScorerOptions) -> Scorer:
    if options.mode == "anomaly":
        return SurpriseScorer(True)
    if options.mode == "likelihood":
        return LikelihoodScorer()
    texts = options.token_texts
    count = model.spec.vocabulary if texts is None else len(texts)
    return TopTokensScorer("predicted_token", texts, options.top_k, count)


def _class_scorer(model: Any, options: ScorerOptions) -> Scorer:
    if options.mode == "anomaly":
        return SurpriseScorer(False)
    if options.mode == "predict":
        return _label_scorer(model, options.top_k)
    raise ThreefoldError(
        f"a {model.kind} model does not predict its inputs, so they have no likelihood; use "
        "mode predict or anomaly"
    )


def _forecast_scorer(model: Any, options: ScorerOptions) -> Scorer:
    if options.mode == "predict":
        return ForecastScorer(model, options.series)
    return (
        ResidualScorer(model, options.series) if options.mode == "anomaly" else DensityScorer(model)
    )


def _numbers_scorer(model: Any, options: ScorerOptions) -> Scorer:
    if options.mode == "predict":
        return NumbersScorer(model)
    raise ThreefoldError(
        f"a regressor predicts numbers without their probability, so mode {options.mode} has "
        "nothing to score; use mode predict"
    )


# By kind of model: each that can read a stream.
SCORERS: dict[str, Callable[[Any, ScorerOptions], Scorer]] = {
    "language": _token_scorer,
    "tagger": _class_scorer,
    "classifier": _class_scorer,
    "hierarchical": _class_scorer,
    "regressor": _numbers_scorer,
    "forecaster": _forecast_scorer,
}


def make_scorer(
    model: Any,
    mode: str,
    *,
    token_texts: Sequence[str] | None,
    top_k: int,
    series: str = "",
) -> Scorer:
    """Return the scorer for a model and a mode; token_texts: the text of each token."""
    if mode not in MODES:
        raise ThreefoldError(f"unknown mode {mode!r}; {nearest(mode, MODES)}")
    return SCORERS[model.kind](model, ScorerOptions(mode, token_texts, top_k, series))


def _label_scorer(model: Any, top_k: int) -> TopTokensScorer:
    """The most likely labels by name, or classes by number if they have no names."""
    steps = None if model.preprocessing is None else model.preprocessing.outputs
    labels = None if steps is None else steps.find(Labels)
    classes = model.spec.option("classes")
    if labels is None:
        return TopTokensScorer("class", None, top_k, classes)
    name = "tag" if model.kind == "tagger" else "label"
    scorer = LabelScorer(name, labels.names, top_k, classes)
    scorer.thresholds = labels.thresholds
    return scorer
