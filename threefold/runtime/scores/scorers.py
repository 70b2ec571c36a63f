"""What is said of each element of a stream.

    likelihood   log p(x_t | x_1 … x_{t−1}): of tokens, or of a gaussian forecast one step ahead,
                 summed over its channels
    predict      what is expected after x_t: the likeliest tokens or classes, or the forecast
    anomaly      how unusual x_t is, from x_1 … x_t alone

The anomaly score of a language model is the surprise s_t = −log p(x_t | x_<t) as a z-score: its
distance to the running mean of the surprises *before* it, in their running standard deviations.
Means are over all earlier elements, or fade (`window`): the newest weighs 1/min(n, window).  A
score says "less expected than this model usually finds this stream", no more: a model that knows
the stream badly finds everything usual.  There is none (null) before 30 surprises have come.
Of a tagger or a classifier the surprise is −log max_c p(c), doubt about its own answer, scored
alike; unknown inputs that it answers with confidence are not found (Hendrycks & Gimpel 2017, "A
Baseline for Detecting Misclassified and Out-of-Distribution Examples in Neural Networks").
Of a gaussian forecast the score is the largest |x − μ| / σ over channels, the standardised
residual; of quantiles how far x lies outside the outermost two, in units of their distance, 0
inside.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from threefold.errors import ThreefoldError, nearest
from threefold.models.forecaster import Forecaster, gaussian_loss
from threefold.models.language import LanguageModel

WHAT = ("likelihood", "predict", "anomaly")
WARM = 30  # surprises before the first score
NARROWEST = 1e-6  # standard deviation: a stream without any surprise has no unit

Columns: TypeAlias = dict[str, Sequence[Any]]  # by name, an entry for each element


class Scorer(ABC):
    """From elements and answers to columns.  `reduces`: what stands for a group of elements."""

    reduces: str = "last"  # last, sum (of log_likelihood) or largest (score)

    @abstractmethod
    def columns(self, elements: Tensor, before: Tensor | None, answers: Tensor) -> Columns:
        """Of elements [L], the answers [L, …] after each, and the one before the first of them."""

    def carried(self) -> list[float]:
        """What goes from piece to piece, as numbers."""
        return []

    def carry(self, carried: list[float]) -> None:
        """Go on with what `carried` said."""
        assert not carried  # who has some overrides both


class Running:
    """z_t = (s_t − mean) / deviation of what came before, one number after another."""

    def __init__(self, window: int | None) -> None:
        self.window = math.inf if window is None else window
        self.count, self.mean, self.variance = 0, 0.0, 0.0

    def scores(self, surprises: Sequence[float]) -> list[float]:
        """NaN where there is no surprise, or too few came before."""
        found = []
        for surprise in surprises:
            if math.isnan(surprise):
                found.append(math.nan)
                continue
            off = surprise - self.mean
            deviation = max(math.sqrt(self.variance), NARROWEST)
            found.append(off / deviation if self.count >= WARM else math.nan)
            self.count += 1
            share = 1 / min(self.count, self.window)
            self.mean += share * off
            self.variance = (1 - share) * (self.variance + share * off * off)
        return found


class LikelihoodScorer(Scorer):
    """Of tokens."""

    reduces = "sum"

    def columns(self, elements: Tensor, before: Tensor | None, answers: Tensor) -> Columns:
        return {"log_likelihood": token_likelihood(elements, before, answers)}


class TopTokensScorer(Scorer):
    """The `top` likeliest tokens or classes after each element."""

    def __init__(self, name: str, texts: Sequence[str] | None, top: int, count: int) -> None:
        self.name, self.texts, self.top = name, texts, min(top, count)
        self.count = count

    def columns(self, elements: Tensor, before: Tensor | None, answers: Tensor) -> Columns:
        chances, places = answers[:, : self.count].float().softmax(-1).topk(self.top, -1)
        made: Columns = {}
        for rank in range(self.top):
            suffix = f"_{rank + 1}" if rank else ""
            chosen = places[:, rank].tolist()
            made[f"{self.name}{suffix}"] = chosen
            if self.texts is not None:
                made[f"text_expected{suffix}"] = [self.texts[place] for place in chosen]
            made[f"probability{suffix}"] = chances[:, rank].tolist()
        return made


class SurpriseScorer(Scorer):
    """Surprises and their z-scores."""

    reduces = "largest"

    def __init__(self, tokens: bool, window: int | None) -> None:
        self.tokens, self.running = tokens, Running(window)

    def columns(self, elements: Tensor, before: Tensor | None, answers: Tensor) -> Columns:
        if self.tokens:
            surprise = [-value for value in token_likelihood(elements, before, answers)]
        else:
            surprise = (-answers.float().log_softmax(-1).amax(-1)).tolist()
        return {"surprise": surprise, "score": self.running.scores(surprise)}

    def carried(self) -> list[float]:
        return [self.running.count, self.running.mean, self.running.variance]

    def carry(self, carried: list[float]) -> None:
        count, self.running.mean, self.running.variance = carried
        self.running.count = int(count)


class ForecastScorer(Scorer):
    """The whole forecast, a column for each number."""

    def __init__(self, model: Forecaster) -> None:
        self.model = model
        levels = model.quantiles
        says = ("mean", "deviation") if levels is None else tuple(f"q{q:g}" for q in levels)
        self.names = [
            f"x{channel + 1}+{step + 1}.{what}"
            for step in range(model.horizon)
            for channel in range(model.channels)
            for what in says
        ]

    def columns(self, elements: Tensor, before: Tensor | None, answers: Tensor) -> Columns:
        numbers = answers.flatten(1).T.tolist()
        return dict(zip(self.names, numbers, strict=True))


class ResidualScorer(Scorer):
    """How far an element is from what was forecast, by its worst channel."""

    reduces = "largest"

    def __init__(self, model: Forecaster) -> None:
        if model.quantiles is not None and len(model.quantiles) < 2:
            raise ThreefoldError(
                f"a forecaster of one quantile ({model.quantiles[0]:g}) has no interval to leave; "
                "expected two quantiles or more, or a gaussian head"
            )
        self.model = model

    def columns(self, elements: Tensor, before: Tensor | None, answers: Tensor) -> Columns:
        value = elements[:, : self.model.channels].double()
        forecast = shifted(before, answers)[:, 0].double()  # one step ahead: [L, channels, outputs]
        if self.model.quantiles is None:
            scores = (value - forecast[..., 0]).abs() / forecast[..., 1]
        else:
            low, high = forecast[..., 0], forecast[..., -1]
            outside = torch.maximum(low - value, value - high).clamp(min=0)
            scores = outside / (high - low).clamp(min=NARROWEST)
            scores = torch.where(forecast.isnan().any(-1), torch.nan, scores)
        worst = scores.nan_to_num(0).argmax(-1, keepdim=True)
        expected = self.model.point_forecast(forecast)
        return {
            "channel": (worst[:, 0] + 1).tolist(),
            "value": value.gather(1, worst)[:, 0].tolist(),
            "expected": expected.gather(1, worst)[:, 0].tolist(),
            "score": scores.gather(1, worst)[:, 0].tolist(),
        }


class DensityScorer(Scorer):
    """log N(x; μ, σ²) of gaussian forecasts one step ahead."""

    reduces = "sum"

    def __init__(self, model: Forecaster) -> None:
        if model.quantiles is not None:
            raise ThreefoldError(
                "a forecaster of quantiles has no density, so elements have no likelihood; ask "
                "for predict or anomaly, or build it with a gaussian head"
            )
        self.model = model

    def columns(self, elements: Tensor, before: Tensor | None, answers: Tensor) -> Columns:
        value = elements[:, : self.model.channels].double()
        mean, deviation = shifted(before, answers)[:, 0].double().unbind(-1)
        return {"log_likelihood": (-gaussian_loss(mean, deviation, value)).sum(-1).tolist()}


def shifted(before: Tensor | None, answers: Tensor) -> Tensor:
    """The answer *before* each element; NaN before the first of all."""
    first = torch.full_like(answers[0], torch.nan) if before is None else before
    return torch.cat([first.unsqueeze(0), answers[:-1]])


def token_likelihood(tokens: Tensor, before: Tensor | None, logits: Tensor) -> list[float]:
    """log p(x_t | x_<t) of each token, NaN for the first of all."""
    logits = shifted(before, logits)
    logits = logits if logits.dtype == torch.float64 else logits.float()
    chosen = logits.gather(1, tokens.unsqueeze(1)).squeeze(1)
    found: list[float] = (chosen - logits.logsumexp(-1)).tolist()
    return found


def make_scorer(
    model: Any, what: str, *, texts: Sequence[str] | None, top: int, window: int | None
) -> Scorer:
    """What says `what` of the elements that a model reads; `texts` of tokens."""
    if what not in WHAT:
        raise ThreefoldError(f"unknown scores {what!r}; {nearest(what, WHAT)}")
    if isinstance(model, Forecaster):
        if what == "predict":
            return ForecastScorer(model)
        return ResidualScorer(model) if what == "anomaly" else DensityScorer(model)
    tokens = isinstance(model, LanguageModel)
    if what == "anomaly":
        return SurpriseScorer(tokens, window)
    if what == "predict":
        if tokens:
            known = model.spec.vocabulary if texts is None else len(texts)
            return TopTokensScorer("token_expected", texts, top, known)
        return TopTokensScorer("class", None, top, model.spec.option("classes"))
    if not tokens:
        raise ThreefoldError(
            f"a {model.kind} says nothing of how likely its inputs are; ask for predict or anomaly"
        )
    return LikelihoodScorer()
