"""Simple, strong models beside the sequence models of a race; the verdict names the best of them.

    series → class or number   MiniRocket and ridge · nearest neighbour by time warping · echo state
    images → class             the same, and ridge on pixels
    texts → class              logistic regression on hashed n-grams
    language                   Kneser–Ney n-grams · xz
    forecasts                  last value · seasonal naive · ridge autoregression · Holt–Winters
    tags                       the commonest tag of each token

They are fitted to the training split and scored on the same test examples, by the same metric.
"""

from __future__ import annotations

import lzma
import math
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from threefold.classical.autoregression import RidgeAutoregression
from threefold.classical.hashed_ngrams import TextLogistic
from threefold.classical.leave_one_out import LeaveOneOutFit, fit_leave_one_out
from threefold.classical.ngrams import NGrams
from threefold.classical.random_convolutions import RandomConvolutions
from threefold.classical.smoothing import fit_rates, forecast_window
from threefold.classical.time_warping import nearest_neighbours
from threefold.data.loaders import IGNORE, Batch
from threefold.errors import ThreefoldError
from threefold.estimators.echo_state_network import EchoStateNetwork
from threefold.lab.report.report import BaselineResult
from threefold.tasks.baselines import sample_rows
from threefold.tasks.task import Task
from threefold.training.training_data import TrainingData

LEVELS = ("none", "simple", "strong")
MOST_EXAMPLES = 2000  # of the training split that a baseline reads
MOST_NUMBERS = 40_000_000  # of their inputs
MOST_CELLS = 1_500_000_000  # of time warping, all pairs of a training and a test series together
WINDOW = 0.1  # of time warping
FEWEST_SEASONS = 2  # within a context, to take one as a season
SEASONALITY = 0.3  # autocorrelation from which on there is a season

# From a batch to what the task's metric takes: scores of classes, or numbers.
Answer = Callable[[Batch], Tensor]


@dataclass(frozen=True)
class Baseline:
    """A simple model: `fit` returns how it answers."""

    name: str
    fit: Callable[[Task[Any], int, TestFacts], Answer]  # (task, seed, what will be asked)
    simple: bool = False  # also raced with --baselines simple
    random: bool = False  # depends on the seed


@dataclass(frozen=True)
class TestFacts:
    """How much the baselines will be asked."""

    examples: int
    length: int


POOLED = ("classifier", "hierarchical", "regressor")  # kinds with one answer per sequence


def baselines_for(task: Task[Any], level: str) -> list[Baseline]:
    """The baselines that suit a task."""
    chosen: list[Baseline] = []
    if task.kind == "language" and task.metric == "bits":
        chosen = [NGRAMS, XZ]
    elif task.kind == "forecaster" and task.metric in ("absolute_error", "squared_error"):
        chosen = [LAST_VALUE, SEASONAL, AUTOREGRESSION, HOLT_WINTERS]
    elif task.kind == "tagger" and task.vocabulary:
        chosen = [COMMONEST_TAG]
    elif task.kind in POOLED and task.metric in SCORED and not _pairs(task):
        chosen = [MAJORITY if task.classes else MEAN]
        if task.features:
            chosen += [ROCKET, WARPING, ECHO_STATE] + [PIXELS] * (task.domain == "vision")
        elif task.classes:
            chosen += [LOGISTIC]
    return [b for b in chosen if level == "strong" or (level == "simple" and b.simple)]


SCORED = ("accuracy", "absolute_error", "squared_error")


def _pairs(task: Task[Any]) -> bool:
    """Whether an example is a pair of sequences."""
    return bool(task.rows("train", [0]).inputs.dim() - (task.features > 0) == 3)


def run_baselines(
    data: TrainingData, level: str, seeds: int, examples: int, say: Callable[[str], None]
) -> list[BaselineResult]:
    """Fit and score all baselines; one that cannot be fitted is left out, and told."""
    task = data.task
    pieces = list(data.limited(examples).pieces("test"))
    if level == "none" or not isinstance(pieces[0], Batch):
        return []
    facts = TestFacts(sum(len(p.inputs) for p in pieces), task.length)
    results = []
    for baseline in baselines_for(task, level):
        say(f"fitting the baseline {baseline.name}")
        try:
            results.append(_run(baseline, task, pieces, seeds, facts))
        except ThreefoldError as error:
            say(f"the baseline {baseline.name} was left out: {error}")
    return results


def _run(
    baseline: Baseline, task: Task[Any], pieces: Sequence[Batch], seeds: int, facts: TestFacts
) -> BaselineResult:
    scores, fitting, asking = [], [], []
    for seed in range(seeds if baseline.random else 1):
        start = time.perf_counter()
        answer = baseline.fit(task, seed, facts)
        fitted = time.perf_counter()
        scores.append(score(task, answer, pieces))
        fitting.append(fitted - start)
        asking.append(time.perf_counter() - fitted)
    repeated = scores if baseline.random else scores * seeds
    elements = sum(int(np.prod(p.inputs.shape[:2])) for p in pieces)
    return BaselineResult(
        baseline.name,
        tuple(enumerate(repeated)),
        statistics.fmean(fitting),
        statistics.fmean(asking) / max(1, elements),
    )


def score(task: Task[Any], answer: Answer, pieces: Iterable[Batch]) -> float:
    """The mean of the task's metric over all targets of the pieces."""
    total, count = 0.0, 0
    for piece in pieces:
        answers = answer(piece)
        measured = answers if task.metric == "bits" else task.measure(answers, piece.targets)
        total += float(measured.double().sum())
        count += measured.numel()
    return total / max(1, count)


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


def _shaped(task: Task[Any], answers: Tensor, batch: Batch) -> Tensor:
    return answers if task.classes else answers.reshape(batch.targets.shape)


def _majority(task: Task[Any], seed: int, facts: TestFacts) -> Answer:
    mean = _targets(task, _train(task)).mean(0)
    return lambda batch: _shaped(task, mean.expand(len(batch.inputs), -1).float(), batch)


def _ridge(task: Task[Any], features: Tensor, train: Batch) -> tuple[LeaveOneOutFit, Tensor]:
    """A ridge on features of equal spread, and that spread."""
    spread = features.std(0, correction=0)
    spread = torch.where(spread > 0, spread, 1.0)
    return fit_leave_one_out(features / spread, _targets(task, train)), spread


def _rocket(task: Task[Any], seed: int, facts: TestFacts) -> Answer:
    train = _train(task)
    transform = RandomConvolutions.fit(train.inputs, _lengths(train), seed=seed)
    fit, spread = _ridge(task, transform.transform(train.inputs, _lengths(train)).double(), train)

    def answer(batch: Batch) -> Tensor:
        features = transform.transform(batch.inputs, _lengths(batch)).double()
        return _shaped(task, fit(features / spread).float(), batch)

    return answer


def _warping(task: Task[Any], seed: int, facts: TestFacts) -> Answer:
    cells = facts.examples * facts.length * max(1, WINDOW * 2 * facts.length) * task.features
    train = _train(task, min(MOST_EXAMPLES, max(20, int(MOST_CELLS / cells))))
    known, targets = train.inputs.double(), _targets(task, train)

    def answer(batch: Batch) -> Tensor:
        near, _ = nearest_neighbours(
            batch.inputs.double(), known, _lengths(batch), _lengths(train), window=WINDOW
        )
        return _shaped(task, targets[near].float(), batch)

    return answer


def _echo_state(task: Task[Any], seed: int, facts: TestFacts) -> Answer:
    """Mean states of a reservoir and a ridge."""
    train = _train(task)
    network = EchoStateNetwork(units=200, seed=seed, bias_scale=0.5, squares=True)

    def features(batch: Batch) -> Tensor:
        lengths = batch.lengths if batch.mask is not None else None
        rows = [
            row if lengths is None else row[: int(lengths[i])] for i, row in enumerate(batch.inputs)
        ]
        states = [network.states(row.double()) for row in rows]
        return torch.stack([torch.cat([s.mean(0), s[-1], s.std(0, correction=0)]) for s in states])

    fit, spread = _ridge(task, features(train), train)
    return lambda batch: _shaped(task, fit(features(batch) / spread).float(), batch)


def _pixels(task: Task[Any], seed: int, facts: TestFacts) -> Answer:
    train = _train(task)
    fit, spread = _ridge(task, train.inputs.flatten(1).double(), train)
    return lambda batch: fit(batch.inputs.flatten(1).double() / spread).float()


def _logistic(task: Task[Any], seed: int, facts: TestFacts) -> Answer:
    train = _train(task, 4000)
    order = 4 if task.vocabulary <= 512 else 2  # of characters, or of words
    model = TextLogistic.fit(
        _rows(train), train.targets.numpy(), task.classes, order=order, seed=seed
    )
    return lambda batch: model.scores(_rows(batch))


def _rows(batch: Batch) -> list[Any]:
    lengths = batch.lengths if batch.mask is not None else None
    rows = batch.inputs.numpy()
    return [row if lengths is None else row[: int(lengths[i])] for i, row in enumerate(rows)]


def _commonest_tag(task: Task[Any], seed: int, facts: TestFacts) -> Answer:
    train = _train(task, 20_000)
    table = torch.zeros(task.vocabulary, task.classes)
    counts = train.targets != IGNORE
    places = train.inputs[counts] * task.classes + train.targets[counts]
    table.view(-1).index_add_(0, places, torch.ones(len(places)))
    table += 1e-3 * table.sum(0) / table.sum()  # for words that training has not seen
    return lambda batch: table[batch.inputs]


# --------------------------------------------------------------------------------------- language


def _ngrams(task: Task[Any], seed: int, facts: TestFacts) -> Answer:
    assert task.corpus is not None
    text = task.corpus().tokens["train"]
    model = NGrams.fit(text, task.vocabulary, 6 if task.vocabulary <= 512 else 4)

    def answer(batch: Batch) -> Tensor:
        bits = []
        for inputs, targets in zip(batch.inputs.numpy(), batch.targets.numpy(), strict=True):
            row = np.concatenate([inputs[:1], targets])
            bits.append(-model.log_probabilities(row)[1:] / math.log(2))
        return torch.from_numpy(np.concatenate(bits))

    return answer


def _xz(task: Task[Any], seed: int, facts: TestFacts) -> Answer:
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


def _last_value(task: Task[Any], seed: int, facts: TestFacts) -> Answer:
    horizon, channels = _horizon(task)
    return lambda batch: _as_targets(batch.inputs[:, -1:, :channels].expand(-1, horizon, -1), batch)


def season_of(windows: Tensor) -> int:
    """The lag at which the changes of windows [N, C] resemble themselves most; 0 if none does."""
    changes = windows.diff(dim=1).double()
    changes = changes - changes.mean()
    energy = float(changes.square().mean()) or 1.0
    longest = windows.shape[1] // FEWEST_SEASONS
    alike = {
        lag: float((changes[:, lag:] * changes[:, :-lag]).mean()) / energy
        for lag in range(2, longest + 1)
    }
    peaks = [k for k in alike if alike[k] >= max(alike.get(k - 1, -1), alike.get(k + 1, -1))]
    best = max(peaks, key=alike.__getitem__, default=0)
    if not best or alike[best] < SEASONALITY:
        return 0
    # The shortest of the lags that are nearly as good: a season repeats at its multiples, too.
    return min(k for k in peaks if alike[k] >= 0.9 * alike[best])


def _seasonal(task: Task[Any], seed: int, facts: TestFacts) -> Answer:
    horizon, channels = _horizon(task)
    season = season_of(_train(task, 500).inputs[:, :, 0])
    if not season:
        raise ThreefoldError("no season was found in the training windows")

    def answer(batch: Batch) -> Tensor:
        last = batch.inputs[:, -season:, :channels]
        return _as_targets(last.repeat(1, -(-horizon // season), 1)[:, :horizon], batch)

    return answer


def _autoregression(task: Task[Any], seed: int, facts: TestFacts) -> Answer:
    horizon, channels = _horizon(task)
    train = _train(task, 20_000)
    held = sample_rows(task, "valid", 1000)
    windows = [
        (b.inputs, b.targets.reshape(len(b.targets), horizon, channels)) for b in (train, held)
    ]
    season = season_of(train.inputs[:500, :, 0])
    model = RidgeAutoregression.fit(*windows[0], season=season, held_out=windows[1])
    return lambda batch: _as_targets(model.predict(batch.inputs), batch)


def _holt_winters(task: Task[Any], seed: int, facts: TestFacts) -> Answer:
    horizon, channels = _horizon(task)
    windows = _train(task, 500).inputs[:, :, :channels]
    season = season_of(windows[:, :, 0])
    chosen = windows[:: max(1, len(windows) // 4)][:4].numpy()
    rates = [fit_rates(list(chosen[:, :, c]), season=season, seed=seed) for c in range(channels)]

    def answer(batch: Batch) -> Tensor:
        rows = batch.inputs[:, :, :channels].numpy()
        forecasts = [
            [forecast_window(row[:, c], rates[c], horizon, season=season) for c in range(channels)]
            for row in rows
        ]
        return _as_targets(torch.from_numpy(np.array(forecasts)).transpose(1, 2), batch)

    return answer


MAJORITY = Baseline("majority", _majority, simple=True)
MEAN = Baseline("mean", _majority, simple=True)
ROCKET = Baseline("MiniRocket", _rocket, random=True)
WARPING = Baseline("time warping", _warping)
ECHO_STATE = Baseline("echo state network", _echo_state, random=True)
PIXELS = Baseline("ridge on pixels", _pixels, simple=True)
LOGISTIC = Baseline("logistic regression", _logistic)
COMMONEST_TAG = Baseline("commonest tag", _commonest_tag, simple=True)
NGRAMS = Baseline("n-grams", _ngrams)
XZ = Baseline("xz", _xz, simple=True)
LAST_VALUE = Baseline("last value", _last_value, simple=True)
SEASONAL = Baseline("seasonal naive", _seasonal, simple=True)
AUTOREGRESSION = Baseline("ridge", _autoregression)
HOLT_WINTERS = Baseline("Holt–Winters", _holt_winters)

__all__ = ["LEVELS", "Baseline", "baselines_for", "run_baselines", "season_of"]
