"""The loss and the metric of each kind of model.

    tokens, labels   −log p(target)                    language, masked, classifier, tagger, …
    permuted tokens  −log p(target | earlier in order) xlnet: orders are part of the batch
    numbers          (answer − target)²                regressor and tagger
    forecaster       pinball loss, or −log N(μ, σ²)    from the elements of the context
    translators,     −log p(target), teacher forcing   metric of greedily decoded texts
    captioners

Losses are sums and counts, so that the mean does not depend on how rows are divided into batches,
steps and ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from threefold.data.loaders import IGNORE, Batch
from threefold.memory.state import POSITION, State
from threefold.models.encoder_decoder import EncoderDecoder
from threefold.models.forecaster import Forecaster, future_values
from threefold.runtime.generation import generate
from threefold.tasks.pairs import BEGIN, END, Pairs
from threefold.tasks.table import LOWER_IS_BETTER
from threefold.tasks.task import Compare, Metric, accuracy, squared_error
from threefold.training.scheduled_sampling import scheduled_sampling
from threefold.training.truncated_bptt import carry_state

Rows: TypeAlias = "Batch | Pairs"


class BatchLoss(NamedTuple):
    """The loss of a batch, with the outputs and the state after it."""

    loss: Tensor  # sum over the targets that are not ignored
    outputs: Tensor
    state: State | None  # for the next batch, if the state is carried


class Objective(Protocol):
    """The loss and the metric of a kind of model."""

    @property
    def lower(self) -> bool:
        """Whether a lower metric is better."""

    def count(self, rows: Any) -> int:
        """Number of targets of a batch that are not ignored."""

    def __call__(
        self, model: nn.Module, rows: Any, state: State | None, *, carry: bool, progress: float
    ) -> BatchLoss:
        """The loss of a batch; `progress` is the fraction of the run that is done."""

    def tally(self) -> Tally:
        """A new accumulator of the metric."""


class Tally(Protocol):
    """Accumulates a metric over batches."""

    def add(self, model: nn.Module, rows: Any, outputs: Tensor) -> None:
        """Add a batch."""

    @property
    def value(self) -> float:
        """The metric of all batches."""


class MeanTally:
    """The mean of a metric that scores each target or each row separately."""

    def __init__(self, metric: Metric) -> None:
        self.metric, self.total, self.count = metric, 0.0, 0

    def add(self, model: nn.Module, rows: Batch, outputs: Tensor) -> None:
        """Add a batch."""
        scores = self.metric(_wide(outputs), rows.targets)
        self.total += float(scores.sum())
        self.count += scores.numel()

    @property
    def value(self) -> float:
        """The mean score."""
        return self.total / max(self.count, 1)


class TranslationTally:
    """Compares greedily decoded translations with the references."""

    def __init__(self, compare: Compare) -> None:
        self.compare = compare
        self.translations: list[list[int]] = []
        self.references: list[Any] = []

    def add(self, model: nn.Module, rows: Pairs, outputs: Tensor) -> None:
        """Add a batch."""
        self.translations += translate_greedily(model, rows)
        self.references += rows.texts() if self.compare is exact_match else rows.references

    @property
    def value(self) -> float:
        """The metric of all translations."""
        return self.compare(self.translations, self.references)


def exact_match(translations: Sequence[Sequence[int]], references: Sequence[Any]) -> float:
    """The fraction of translations without a mistake, END included."""
    correct = sum(bool(a == b) for a, b in zip(translations, references, strict=True))
    return correct / max(len(references), 1)


class PredictionObjective:
    """Tokens, labels or numbers, predicted in one pass."""

    def __init__(
        self,
        metric: Metric = accuracy,
        smoothing: float = 0.0,
        class_weights: Tensor | None = None,
    ) -> None:
        self.metric, self.smoothing, self.class_weights = metric, smoothing, class_weights
        self.lower = lower_is_better(metric)

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
        progress: float = 0.0,
    ) -> BatchLoss:
        before = None if state is None or not carry else carry_state(state, rows.starts)
        # Image models accept none of these arguments, so pass only those that are set.
        optional = {"state": before, "mask": rows.mask, "ranks": rows.ranks}
        arguments = {name: value for name, value in optional.items() if value is not None}
        outputs, after = model(rows.inputs, **arguments)
        if rows.targets.is_floating_point():
            outputs = outputs.reshape(rows.targets.shape)
        loss = self._loss(outputs, rows, model.training)
        return BatchLoss(loss, outputs, after if carry else None)

    def _loss(self, outputs: Tensor, rows: Batch, training: bool) -> Tensor:
        """The sum over all targets; smoothing and weights are for training only."""
        weights = rows.weights if training else None
        if rows.targets.is_floating_point():
            if weights is None:
                return squared_error(outputs, rows.targets).sum()
            root = weights.to(outputs.dtype).sqrt().view(-1, *[1] * (outputs.dim() - 1))
            return squared_error(outputs * root, rows.targets * root).sum()
        smoothing = self.smoothing if training else 0.0
        classes = self.class_weights if training else None
        if weights is None:
            return cross_entropy(outputs, rows.targets, "sum", smoothing, classes)
        each = cross_entropy(outputs, rows.targets, "none", smoothing, classes)
        return (each.view(len(weights), -1).sum(1) * weights).sum()

    def tally(self) -> MeanTally:
        """The mean of the metric."""
        return MeanTally(self.metric)


def lower_is_better(metric: Metric) -> bool:
    """Whether a smaller value of a metric is the better one."""
    return getattr(metric, "__name__", "") in LOWER_IS_BETTER


class ForecastObjective:
    """Forecasts: trained from the elements of the context, evaluated from the last one.

    With a linear start only those elements count that have all of its lags before them.
    """

    def __init__(self, metric: Metric) -> None:
        self.metric = metric
        self.lower = lower_is_better(metric)

    def count(self, rows: Batch) -> int:
        """Number of values to forecast from the elements of the context; NaN does not count."""
        channels = 1 if rows.targets.dim() == 2 else rows.targets.shape[2]
        future = rows.targets.reshape(len(rows.targets), -1, channels)
        target, _ = future_values(
            torch.cat([rows.inputs[..., :channels], future], 1), future.shape[1]
        )
        return int((~target[:, : rows.inputs.shape[1]].isnan()).sum())

    def __call__(
        self,
        model: nn.Module,
        rows: Batch,
        state: State | None,
        *,
        carry: bool = False,
        progress: float = 0.0,
    ) -> BatchLoss:
        assert isinstance(model, Forecaster)  # its spec says what the targets are
        carry = carry and model.training  # evaluated from windows
        before = None if state is None or not carry else carry_state(state, rows.starts)
        series, exogenous = model.split_inputs(rows.inputs)
        forecast, after = model(series, before, exogenous=exogenous)
        future = rows.targets.reshape(len(series), -1, model.channels)
        target, _ = future_values(torch.cat([series, future], 1), model.horizon)
        target = target[:, : series.shape[1]]
        known = ~target.isnan()  # a missing value can be an input, but not a target
        losses = model.losses(forecast, target.nan_to_num())
        losses = torch.where(known, losses, torch.zeros_like(losses))
        counted = known & counted_elements(model, series, before)
        # What is counted weighs as much as all.
        losses = torch.where(counted, losses, 0.0).sum() * (
            known.sum() / counted.sum().clamp(min=1)
        )
        last = model.point_forecast(forecast[:, -1]).reshape(rows.targets.shape)
        return BatchLoss(losses, last, after if carry else None)

    def tally(self) -> MeanTally:
        """The mean of the metric, for forecasts from the last element."""
        return MeanTally(self.metric)


def counted_elements(model: Forecaster, series: Tensor, before: State | None) -> Tensor:
    """The elements [B, L, 1, 1] from which forecasts count.

    With a linear start, which needs its lags, an evaluation counts the last forecast alone.
    before: the state that was carried to the first element.
    """
    length = series.shape[1]
    places = torch.arange(length, device=series.device).expand(len(series), -1)
    if not model.lags:
        first = 0
    elif model.training:
        first = min(model.lags, length) - 1
        if before is not None:
            places = places + before[POSITION].unsqueeze(1)
    else:
        first = length - 1
    return (places >= first)[..., None, None]


class TranslationObjective:
    """Translation pairs: trained with teacher forcing, evaluated by greedy decoding."""

    def __init__(
        self,
        compare: Compare = exact_match,
        smoothing: float = 0.0,
        sampled: float = 0.0,
        *,
        lower: bool = False,
    ) -> None:
        self.compare, self.smoothing, self.sampled, self.lower = compare, smoothing, sampled, lower

    def count(self, rows: Pairs) -> int:
        """Number of target tokens to predict."""
        return int((rows.target_lengths - 1).sum())

    def __call__(
        self,
        model: nn.Module,
        rows: Pairs,
        state: State | None,
        *,
        carry: bool = False,
        progress: float = 0.0,
    ) -> BatchLoss:
        assert isinstance(model, EncoderDecoder)  # rows are pairs of a source and a target
        encoded = model.encode(rows.source, mask=rows.source_mask)
        share = self.sampled * progress if model.training else 0.0
        logits, _ = scheduled_sampling(model, rows.inputs, encoded, share, mask=rows.inputs_mask)
        smoothing = self.smoothing or model.spec.option("label_smoothing", 0.0)
        smoothing = smoothing if model.training else 0.0
        return BatchLoss(cross_entropy(logits, rows.answers, "sum", smoothing), logits, None)

    def tally(self) -> TranslationTally:
        """The metric of greedily decoded translations."""
        return TranslationTally(self.compare)


def translate_greedily(model: Any, rows: Pairs) -> list[list[int]]:
    """The translation of each source by greedy decoding, END included."""
    with torch.no_grad():
        state = model.encode(rows.source, mask=rows.source_mask)
    begin = torch.full((len(rows.source), 1), BEGIN, device=rows.source.device)
    max_tokens = rows.target.shape[1] + 1
    return generate(model, begin, state, max_tokens=max_tokens, stop=END, temperature=0.0).rows()


class ObjectiveOptions(NamedTuple):
    """What a task and the settings of a run say about an objective."""

    metric: Metric = accuracy  # per target
    smoothing: float = 0.0  # of labels
    sampled: float = 0.0  # share of the model's own predictions among the tokens of a target
    compare: Compare = exact_match  # of generated sequences
    lower: bool = False  # whether a lower `compare` is better
    class_weights: Tensor | None = None  # how much each class counts


def _predict(options: ObjectiveOptions) -> Objective:
    return PredictionObjective(options.metric, options.smoothing, options.class_weights)


def _forecast(options: ObjectiveOptions) -> Objective:
    return ForecastObjective(options.metric)


def _translate(options: ObjectiveOptions) -> Objective:
    compare, lower = options.compare, options.lower
    return TranslationObjective(compare, options.smoothing, options.sampled, lower=lower)


# By kind of model; all others predict in one pass.
OBJECTIVES: dict[str, Callable[[ObjectiveOptions], Objective]] = {
    "forecaster": _forecast,
    "seq2seq": _translate,
    "transformer": _translate,
    "captioner": _translate,
}


def objective_of(model: nn.Module | str, options: ObjectiveOptions | None = None) -> Objective:
    """The objective of a model, or of a kind of model; a plain torch module predicts."""
    kind = model if isinstance(model, str) else getattr(model, "kind", "")
    return OBJECTIVES.get(kind, _predict)(options or ObjectiveOptions())


def cross_entropy(
    logits: Tensor,
    targets: Tensor,
    reduction: str = "mean",
    smoothing: float = 0.0,
    class_weights: Tensor | None = None,
) -> Tensor:
    """Cross-entropy in nats, without ignored targets; logits […, classes], targets […]."""
    return F.cross_entropy(
        _wide(logits.flatten(0, -2)),
        targets.flatten(),
        class_weights,
        ignore_index=IGNORE,
        reduction=reduction,
        label_smoothing=smoothing,
    )


def _wide(outputs: Tensor) -> Tensor:
    """Outputs in float32 at least, as losses and metrics need them."""
    return outputs.to(torch.promote_types(outputs.dtype, torch.float32))
