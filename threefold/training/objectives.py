"""What is minimised and how an answer is judged, for each kind of model.

    tokens, labels   −log p(target)                    language, masked, classifier, tagger, …
    numbers          (answer − target)²                classifier and tagger
    forecaster       pinball loss, or −log N(μ, σ²)    from every element of the context
    translators      −log p(target), teacher forcing   judged by what they write themselves

Losses are sums and counts, so that any division into batches, steps and ranks has the same mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from threefold.data.loaders import IGNORE, Batch
from threefold.memory.state import State
from threefold.models.encoder_decoder import EncoderDecoder
from threefold.models.forecaster import Forecaster, future_values, gaussian_loss, pinball_loss
from threefold.models.transformer import Transformer
from threefold.runtime.generation import generate
from threefold.tasks.pairs import BEGIN, END, Pairs
from threefold.tasks.table import LOWER
from threefold.tasks.task import Compare, Metric, accuracy, squared_error
from threefold.training.scheduled_sampling import scheduled_sampling
from threefold.training.truncated_bptt import carry_on

Rows: TypeAlias = "Batch | Pairs"


class BatchLoss(NamedTuple):
    """What a model answered to a batch."""

    loss: Tensor  # the sum over the targets that count
    outputs: Tensor
    state: State | None  # for the batch that follows, if it is carried


class Objective(Protocol):
    """How to learn from a batch, and how to judge."""

    @property
    def lower(self) -> bool:
        """Whether less of the metric is better."""

    def count(self, rows: Any) -> int:
        """Targets that count."""

    def __call__(
        self, model: nn.Module, rows: Any, state: State | None, *, carry: bool, done: float
    ) -> BatchLoss:
        """The loss of a batch; `done` is the part of the run that is behind."""

    def tally(self) -> Tally:
        """A fresh count of the metric."""


class Tally(Protocol):
    """The metric over batches."""

    def add(self, model: nn.Module, rows: Any, outputs: Tensor) -> None:
        """One batch more."""

    @property
    def value(self) -> float:
        """The metric of all."""


class MeanTally:
    """The mean of a metric that scores each target, or each row, by itself."""

    def __init__(self, metric: Metric) -> None:
        self.metric, self.total, self.count = metric, 0.0, 0

    def add(self, model: nn.Module, rows: Batch, outputs: Tensor) -> None:
        """One batch more."""
        scores = self.metric(outputs, rows.targets)
        self.total += float(scores.sum())
        self.count += scores.numel()

    @property
    def value(self) -> float:
        """The mean."""
        return self.total / max(self.count, 1)


class Written:
    """What a translator writes from the sources alone, compared with what is right."""

    def __init__(self, compare: Compare) -> None:
        self.compare = compare
        self.answers: list[list[int]] = []
        self.right: list[Any] = []

    def add(self, model: nn.Module, rows: Pairs, outputs: Tensor) -> None:
        """One batch more."""
        self.answers += written(model, rows)
        self.right += rows.texts() if self.compare is exact else rows.references

    @property
    def value(self) -> float:
        """The metric of all answers."""
        return self.compare(self.answers, self.right)


def exact(answers: Sequence[Sequence[int]], right: Sequence[Any]) -> float:
    """The part of the answers that has no mistake, END included."""
    return sum(bool(a == b) for a, b in zip(answers, right, strict=True)) / max(len(right), 1)


class Answers:
    """Tokens, labels or numbers, answered in one pass."""

    def __init__(self, metric: Metric = accuracy, smoothing: float = 0.0) -> None:
        self.metric, self.smoothing = metric, smoothing
        self.lower = getattr(metric, "__name__", "") in LOWER

    def count(self, rows: Batch) -> int:
        """Targets that are neither IGNORE nor NaN."""
        targets = rows.targets
        counts = ~targets.isnan() if targets.is_floating_point() else targets != IGNORE
        return int(counts.sum())

    def __call__(
        self,
        model: nn.Module,
        rows: Batch,
        state: State | None,
        *,
        carry: bool = False,
        done: float = 0.0,
    ) -> BatchLoss:
        before = None if state is None or not carry else carry_on(state, rows.starts)
        # Models of images know neither.
        asked = {"state": before, "mask": rows.mask}
        extra = {name: value for name, value in asked.items() if value is not None}
        outputs, after = model(rows.inputs, **extra)
        if rows.targets.is_floating_point():
            outputs = outputs.reshape(rows.targets.shape)
            loss = squared_error(outputs, rows.targets).sum()
        else:
            smoothing = self.smoothing if model.training else 0.0
            loss = cross_entropy(outputs, rows.targets, "sum", smoothing)
        return BatchLoss(loss, outputs, after if carry else None)

    def tally(self) -> MeanTally:
        """The mean of the metric."""
        return MeanTally(self.metric)


class ForecastObjective:
    """A context, and what comes after it: learnt from every element, judged by the last."""

    def __init__(self, metric: Metric) -> None:
        self.metric = metric
        self.lower = getattr(metric, "__name__", "") in LOWER

    def count(self, rows: Batch) -> int:
        """Values that are forecast: `horizon` of every element of the context."""
        return rows.inputs.shape[0] * rows.inputs.shape[1] * rows.targets.shape[1]

    def __call__(
        self,
        model: nn.Module,
        rows: Batch,
        state: State | None,
        *,
        carry: bool = False,
        done: float = 0.0,
    ) -> BatchLoss:
        assert isinstance(model, Forecaster)
        series = rows.inputs[..., : model.channels]
        beside = rows.inputs[..., model.channels :] if model.exogenous else None
        forecast, _ = model(series, None, exogenous=beside)
        future = rows.targets.reshape(len(series), -1, model.channels)
        target, _ = future_values(torch.cat([series, future], 1), model.horizon)
        target = target[:, : series.shape[1]]
        if model.quantiles is None:
            losses = gaussian_loss(forecast[..., 0], forecast[..., 1], target)
        else:
            losses = pinball_loss(forecast, target, model.quantiles)
        last = model.point_forecast(forecast[:, -1]).reshape(rows.targets.shape)
        return BatchLoss(losses.sum(), last, None)

    def tally(self) -> MeanTally:
        """The mean of the metric of forecasts from the last element on."""
        return MeanTally(self.metric)


class Translations:
    """Pairs: the target read with teacher forcing, judged by what the model writes greedily."""

    def __init__(
        self,
        compare: Compare = exact,
        smoothing: float = 0.0,
        sampled: float = 0.0,
        *,
        lower: bool = False,
    ) -> None:
        self.compare, self.smoothing, self.sampled, self.lower = compare, smoothing, sampled, lower

    def count(self, rows: Pairs) -> int:
        """Tokens to be answered."""
        return int((rows.target_lengths - 1).sum())

    def __call__(
        self,
        model: nn.Module,
        rows: Pairs,
        state: State | None,
        *,
        carry: bool = False,
        done: float = 0.0,
    ) -> BatchLoss:
        assert isinstance(model, EncoderDecoder)
        read = model.encode(rows.source, mask=rows.source_mask)
        share = self.sampled * done if model.training else 0.0
        logits, _ = scheduled_sampling(model, rows.inputs, read, share, mask=rows.inputs_mask)
        answers = rows.answers
        smoothing = self.smoothing
        if isinstance(model, Transformer):
            smoothing = smoothing or model.spec.option("label_smoothing")
        smoothing = smoothing if model.training else 0.0
        return BatchLoss(cross_entropy(logits, answers, "sum", smoothing), logits, None)

    def tally(self) -> Written:
        """What is written from the sources alone."""
        return Written(self.compare)


def written(model: Any, rows: Pairs) -> list[list[int]]:
    """What a translator writes for each source, END included."""
    with torch.no_grad():
        state = model.encode(rows.source, mask=rows.source_mask)
    begin = torch.full((len(rows.source), 1), BEGIN)
    longest = rows.target.shape[1] + 1
    return generate(model, begin, state, max_tokens=longest, stop=END, temperature=0.0).rows()


def objective_of(
    model: nn.Module, metric: Metric = accuracy, *, smoothing: float = 0.0, sampled: float = 0.0
) -> Objective:
    """The objective for a kind of model."""
    if isinstance(model, EncoderDecoder):
        return Translations(smoothing=smoothing, sampled=sampled)
    if isinstance(model, Forecaster):
        return ForecastObjective(metric)
    return Answers(metric, smoothing)


def cross_entropy(
    logits: Tensor, targets: Tensor, reduction: str = "mean", smoothing: float = 0.0
) -> Tensor:
    """Nats over the targets that count; logits […, classes], targets […]."""
    return F.cross_entropy(
        logits.flatten(0, -2).float(),
        targets.flatten(),
        ignore_index=IGNORE,
        reduction=reduction,
        label_smoothing=smoothing,
    )
