"""How the baselines of a race are fitted: each takes a task and returns how it answers a batch."""

from __future__ import annotations

import lzma
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from threefold.classical.autoregression import RidgeAutoregression
from threefold.classical.hashed_ngrams import TextLogistic
from threefold.classical.ngrams import NGrams
from threefold.classical.random_convolutions import RandomConvolutions
from threefold.classical.seasons import season_of
from threefold.classical.smoothing import fit_rates, forecast_windows
from threefold.classical.whole_sequences import (
    WINDOW,
    ConstantAnswer,
    Fitted,
    NearestSeries,
    PixelRidge,
    Readout,
    RocketRidge,
    TextScores,
    rows_of,
)
from threefold.data.loaders import IGNORE, Batch
from threefold.errors import ThreefoldError
from threefold.estimators.reservoir_readout import ReservoirRidge
from threefold.tasks.baselines import sample_rows
from threefold.tasks.task import Task

MOST_EXAMPLES = 2000  # of the training split that a baseline reads
MOST_NUMBERS = 40_000_000  # of their inputs
MOST_CELLS = 1_500_000_000  # of time warping, all pairs of a training and a test series together
PLACES = 8  # of each text at which the calibration of n-grams is measured

# From a batch to what the task's metric takes: numbers, or scores of classes, which are log-odds
# where the baseline has probabilities.
Answer = Callable[[Batch], Tensor]


@dataclass(frozen=True)
class TestFacts:
    """How much the baselines will be asked."""

    examples: int
    length: int


def _train(task: Task[Any], most: int = MOST_EXAMPLES) -> Batch:
    """Training examples, as many as a baseline reads."""
    numbers = max(1, task.length * max(1, task.features))
    return sample_rows(task, "train", max(20, min(most, MOST_NUMBERS // numbers)))


def _lengths(batch: Batch) -> Tensor | None:
    return None if batch.mask is None else batch.lengths


# ------------------------------------------------------------- one class or number per sequence


def _targets(task: Task[Any], batch: Batch) -> Tensor:
    """±1 for each class, or the numbers, [N, outputs] in float64."""
    if not task.classes:
        return batch.targets.double().reshape(len(batch.targets), -1)
    return 2 * torch.nn.functional.one_hot(batch.targets, task.classes).double() - 1


@dataclass(frozen=True)
class WholeAnswer:
    """What a fitted model says of the whole sequences of a batch; the model can be saved."""

    fitted: Fitted
    classes: int  # 0: numbers

    def __call__(self, batch: Batch) -> Tensor:
        answers = self.fitted(batch.inputs, _lengths(batch))
        return answers if self.classes else answers.reshape(batch.targets.shape)


def fit_majority(task: Task[Any], seed: int, facts: TestFacts) -> Answer:
    shares = torch.bincount(_train(task).targets, minlength=task.classes).float()
    return WholeAnswer(ConstantAnswer((shares + 1e-3).log()), task.classes)


def fit_mean(task: Task[Any], seed: int, facts: TestFacts) -> Answer:
    return WholeAnswer(ConstantAnswer(_targets(task, _train(task)).mean(0)), 0)


def _readout(task: Task[Any], features: Tensor, train: Batch) -> Readout:
    return Readout.fit(features, _targets(task, train), train.targets if task.classes else None)


def fit_rocket(task: Task[Any], seed: int, facts: TestFacts) -> Answer:
    train = _train(task)
    transform = RandomConvolutions.fit(train.inputs, _lengths(train), seed=seed)
    features = transform.transform(train.inputs, _lengths(train)).double()
    return WholeAnswer(RocketRidge.join(transform, _readout(task, features, train)), task.classes)


def fit_warping(task: Task[Any], seed: int, facts: TestFacts) -> Answer:
    cells = facts.examples * facts.length * max(1, WINDOW * 2 * facts.length) * task.features
    train = _train(task, min(MOST_EXAMPLES, max(20, int(MOST_CELLS / cells))))
    lengths = _lengths(train)
    if lengths is None:
        lengths = torch.full((len(train.inputs),), train.inputs.shape[1])
    known = NearestSeries(train.inputs.double(), lengths, _targets(task, train))
    return WholeAnswer(known, task.classes)


def fit_echo_state(task: Task[Any], seed: int, facts: TestFacts) -> Answer:
    """Mean states of a reservoir and a ridge."""
    train = _train(task)
    features = ReservoirRidge.features(train.inputs, _lengths(train), seed)
    fitted = ReservoirRidge(**vars(_readout(task, features, train)), seed=seed)
    return WholeAnswer(fitted, task.classes)


def fit_pixels(task: Task[Any], seed: int, facts: TestFacts) -> Answer:
    train = _train(task)
    readout = _readout(task, train.inputs.flatten(1).double(), train)
    return WholeAnswer(PixelRidge(**vars(readout)), task.classes)


def fit_logistic(task: Task[Any], seed: int, facts: TestFacts) -> Answer:
    train = _train(task, 4000)
    order = 4 if task.vocabulary <= 512 else 2  # of characters, or of words
    rows = rows_of(train.inputs, _lengths(train))
    model = TextLogistic.fit(rows, train.targets.numpy(), task.classes, order=order, seed=seed)
    return WholeAnswer(TextScores.of(model), task.classes)


def fit_commonest_tag(task: Task[Any], seed: int, facts: TestFacts) -> Answer:
    train = _train(task, 20_000)
    table = torch.zeros(task.vocabulary, task.classes)
    counts = train.targets != IGNORE
    places = train.inputs[counts] * task.classes + train.targets[counts]
    table.view(-1).index_add_(0, places, torch.ones(len(places)))
    # For words that training has not seen, and tags that it has not seen for a word.
    table += 1e-3 * (table.sum(0) + 1e-3) / table.sum()
    scores = table.log()
    return lambda batch: scores[batch.inputs]


# --------------------------------------------------------------------------------------- language


def fit_ngrams(task: Task[Any], seed: int, facts: TestFacts) -> Answer:
    assert task.corpus is not None
    text = task.corpus().tokens["train"]
    return NGramAnswers(NGrams.fit(text, task.vocabulary, 6 if task.vocabulary <= 512 else 4))


@dataclass(frozen=True)
class NGramAnswers:
    """Bits per token, and what n-grams expect at the end of a text."""

    model: NGrams

    def __call__(self, batch: Batch) -> Tensor:
        bits = []
        for inputs, targets in zip(batch.inputs.numpy(), batch.targets.numpy(), strict=True):
            came, wanted = np.append(inputs, targets[-1:]), np.append(inputs[:1], targets)
            bits.append(-self.model.log_probabilities(came, wanted)[1:] / math.log(2))
        return torch.from_numpy(np.concatenate(bits))

    def last_scores(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Log-probabilities [places, vocabulary] at a few places of each row, and what came."""
        ends = np.linspace(1, batch.inputs.shape[1], PLACES + 1).astype(int)[1:]
        rows = [(row, end) for row in range(len(batch.inputs)) for end in ends]
        found = [self.model.distribution(batch.inputs[row, :end].numpy()) for row, end in rows]
        targets = torch.stack([batch.targets[row, end - 1] for row, end in rows])
        return torch.from_numpy(np.log(np.stack(found))), targets


def fit_xz(task: Task[Any], seed: int, facts: TestFacts) -> Answer:
    """Bits per token that xz needs for the test split behind the training split."""
    assert task.corpus is not None
    corpus = task.corpus()
    texts = [corpus.tokenizer.decode(corpus.tokens[split]).encode() for split in ("train", "test")]
    options = {"format": lzma.FORMAT_RAW, "filters": [{"id": lzma.FILTER_LZMA2, "preset": 9}]}
    sizes = [len(lzma.compress(text, **options)) for text in (texts[0], b"".join(texts))]  # type: ignore[arg-type]
    bits = 8 * (sizes[1] - sizes[0]) / len(corpus.tokens["test"])
    return lambda batch: torch.full((batch.targets.numel(),), bits)


# -------------------------------------------------------------------------------------- forecasts


def _horizon(task: Task[Any]) -> tuple[int, int]:
    """Steps and channels of a forecast."""
    shape = task.rows("train", [0]).targets.shape
    return int(shape[1]), 1 if len(shape) == 2 else int(shape[2])


def _as_targets(forecast: Tensor, batch: Batch) -> Tensor:
    return forecast.float().reshape(batch.targets.shape)


def fit_last_value(task: Task[Any], seed: int, facts: TestFacts) -> Answer:
    horizon, channels = _horizon(task)
    return lambda batch: _as_targets(batch.inputs[:, -1:, :channels].expand(-1, horizon, -1), batch)


@dataclass(frozen=True)
class SeasonalNaive:
    """The last season of a window, repeated."""

    season: int
    horizon: int
    channels: int

    def __call__(self, batch: Batch) -> Tensor:
        last = batch.inputs[:, -self.season :, : self.channels]
        times = -(-self.horizon // self.season)
        return _as_targets(last.repeat(1, times, 1)[:, : self.horizon], batch)

    @property
    def remark(self) -> str:
        """What it repeats, in words."""
        return f"repeats the last {self.season} rows"


def fit_seasonal(task: Task[Any], seed: int, facts: TestFacts) -> Answer:
    """A season of the training windows, or seven of them (a week of days), whichever errs less."""
    horizon, channels = _horizon(task)
    train = _train(task, 500)
    season = season_of(train.inputs[:, :, 0])
    if not season:
        raise ThreefoldError("no season was found in the training windows")
    seasons = [m for m in (season, 7 * season) if m <= train.inputs.shape[1]]
    answers = [SeasonalNaive(m, horizon, channels) for m in seasons]
    return min(answers, key=lambda one: float(task.measure(one(train), train.targets).mean()))


def fit_autoregression(task: Task[Any], seed: int, facts: TestFacts) -> Answer:
    horizon, channels = _horizon(task)
    train = _train(task, 20_000)
    held = sample_rows(task, "valid", 1000)
    windows = [
        (b.inputs, b.targets.reshape(len(b.targets), horizon, channels)) for b in (train, held)
    ]
    season = season_of(train.inputs[:500, :, 0])
    # Of calendar and known future only the newest row counts: the others follow from it.
    current = 0 if task.preprocessing is None else task.preprocessing().current_size
    model = RidgeAutoregression.fit(
        *windows[0], season=season, current=current, held_out=windows[1]
    )
    return lambda batch: _as_targets(model.predict(batch.inputs), batch)


def fit_holt_winters(task: Task[Any], seed: int, facts: TestFacts) -> Answer:
    horizon, channels = _horizon(task)
    windows = _train(task, 500).inputs[:, :, :channels]
    season = season_of(windows[:, :, 0])
    chosen = windows[:: max(1, len(windows) // 4)][:4].numpy()
    rates = [fit_rates(list(chosen[:, :, c]), season=season, seed=seed) for c in range(channels)]

    def answer(batch: Batch) -> Tensor:
        rows = batch.inputs[:, :, :channels].numpy()
        forecasts = [
            forecast_windows(rows[:, :, c], rates[c], horizon, season=season)
            for c in range(channels)
        ]
        return _as_targets(torch.from_numpy(np.stack(forecasts, axis=2)), batch)

    return answer
