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

import math
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from threefold.classical.seasons import season_of
from threefold.data.loaders import Batch
from threefold.errors import ThreefoldError
from threefold.lab.race import baseline_fits as fits
from threefold.lab.race.baseline_fits import Answer, TestFacts
from threefold.lab.race.probes import FittedBaseline, ProbeSizes, probe_baseline
from threefold.lab.race.test_set import Examples, ExampleScores
from threefold.lab.report.results import BaselineResult
from threefold.tasks.task import Task
from threefold.training.training_data import TrainingData

LEVELS = ("none", "simple", "strong")
# Takes the scores of each test example: (name, seed, scores).
KeepScores = Callable[[str, int, Examples], object]
MOST_FITS = 5  # of a baseline that depends on the seed


@dataclass(frozen=True)
class Baseline:
    """A simple model: `fit` returns how it answers."""

    name: str
    fit: Callable[[Task[Any], int, TestFacts], Answer]  # (task, seed, what will be asked)
    simple: bool = False  # also raced with --baselines simple
    random: bool = False  # depends on the seed
    log_odds: bool = False  # of classes are what it answers
    predicts: bool = True  # element by element, so that its speed and memory mean something


POOLED = ("classifier", "hierarchical", "regressor")  # kinds with one answer per sequence


def baselines_for(task: Task[Any], level: str) -> list[Baseline]:
    """The baselines that suit a task."""
    chosen: list[Baseline] = []
    if task.kind == "language" and task.metric == "bits":
        chosen = [NGRAMS, XZ]
    elif task.kind == "forecaster" and task.metric in ("absolute_error", "squared_error"):
        chosen = [LAST_VALUE, SEASONAL, AUTOREGRESSION, HOLT_WINTERS]
    elif task.kind == "vision" and task.metric == "accuracy":
        chosen = [MAJORITY, PIXELS]
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
    data: TrainingData,
    level: str,
    seeds: int,
    examples: int,
    say: Callable[[str], None],
    limit: float = math.inf,
    sizes: ProbeSizes | None = None,
    keep: KeepScores = lambda *_: None,
) -> list[BaselineResult]:
    """Fit and score all baselines; one that cannot be fitted is left out, and told.

    When `limit` seconds are over, the rest is left out, too.
    sizes: of the examples on which they are also measured as the models are.
    keep: is given the scores of each test example.
    """
    begin = time.monotonic()
    task = data.task
    pieces = list(data.limited(examples).pieces("test"))
    if level == "none" or not isinstance(pieces[0], Batch):
        return []
    results = []
    for baseline in baselines_for(task, level):
        if time.monotonic() - begin > limit:
            say(f"the baseline {baseline.name} was left out: the others took {limit:.0f} s")
            continue
        say(f"fitting the baseline {baseline.name}")
        try:
            results.append(_run(baseline, data, pieces, seeds, sizes, keep))
            if remark := results[-1].extras.get("remark"):
                say(f"{baseline.name} {remark}")
        except ThreefoldError as error:
            say(f"the baseline {baseline.name} was left out: {error}")
    return results


def _run(
    baseline: Baseline,
    data: TrainingData,
    pieces: Sequence[Batch],
    seeds: int,
    sizes: ProbeSizes | None,
    keep: KeepScores,
) -> BaselineResult:
    task, scores, fitting, asking = data.task, [], [], []
    examples = sum(len(p.inputs) for p in pieces)
    extras: dict[str, Any] = {} if baseline.predicts else {"predicts": False}
    for seed in range(min(seeds, MOST_FITS) if baseline.random else 1):
        start = time.perf_counter()
        answer = baseline.fit(task, seed, TestFacts(examples, task.length))
        fitted = time.perf_counter()
        collected = ExampleScores(task.measure)
        scores.append(score(task, answer, pieces, collected))
        keep(baseline.name, seed, collected.array)
        fitting.append(fitted - start)
        asking.append(time.perf_counter() - fitted)
        if seed == 0 and sizes is not None and baseline.predicts:
            extras = _probe(baseline, data, answer, asking[0] / examples, sizes)
    if remark := getattr(answer, "remark", None):
        extras = {**extras, "remark": remark}
    repeated = scores if baseline.random else scores * seeds
    elements = sum(int(np.prod(p.inputs.shape[:2])) for p in pieces)
    return BaselineResult(
        baseline.name,
        tuple(enumerate(repeated)),
        statistics.fmean(fitting),
        statistics.fmean(asking) / max(1, elements),
        extras,
    )


def _probe(
    baseline: Baseline, data: TrainingData, answer: Answer, seconds: float, sizes: ProbeSizes
) -> dict[str, Any]:
    """What is also measured of the models."""

    def scored(rows: Sequence[Batch]) -> float:
        return score(data.task, answer, rows)

    scores = None
    if baseline.log_odds and data.task.classes:
        scores = lambda batch: (answer(batch), batch.targets)  # noqa: E731
    scores = getattr(answer, "last_scores", scores)
    fitted = FittedBaseline(answer, scored, scores, seconds)
    return probe_baseline(data, fitted, sizes)


def score(
    task: Task[Any],
    answer: Answer,
    pieces: Iterable[Batch],
    collected: ExampleScores | None = None,
) -> float:
    """The mean of the task's metric over all targets of the pieces; collected: by example."""
    total, count = 0.0, 0
    for piece in pieces:
        answers = answer(piece)
        measured = answers if task.metric == "bits" else task.measure(answers, piece.targets)
        total += float(measured.double().sum())
        count += measured.numel()
        if collected is not None and task.metric == "bits":
            collected.add_scores(measured.reshape(piece.targets.shape))
        elif collected is not None:
            collected.add(piece, answers)
    return total / max(1, count)


MAJORITY = Baseline("majority", fits.fit_majority, simple=True, log_odds=True)
MEAN = Baseline("mean", fits.fit_mean, simple=True)
ROCKET = Baseline("MiniRocket", fits.fit_rocket, random=True, log_odds=True)
WARPING = Baseline("time warping", fits.fit_warping)
ECHO_STATE = Baseline("echo state network", fits.fit_echo_state, random=True, log_odds=True)
PIXELS = Baseline("ridge on pixels", fits.fit_pixels, simple=True, log_odds=True)
LOGISTIC = Baseline("logistic regression", fits.fit_logistic, log_odds=True)
COMMONEST_TAG = Baseline("commonest tag", fits.fit_commonest_tag, simple=True, log_odds=True)
NGRAMS = Baseline("n-grams", fits.fit_ngrams)
XZ = Baseline("xz", fits.fit_xz, simple=True, predicts=False)
LAST_VALUE = Baseline("last value", fits.fit_last_value, simple=True)
SEASONAL = Baseline("seasonal naive", fits.fit_seasonal, simple=True)
AUTOREGRESSION = Baseline("ridge", fits.fit_autoregression)
HOLT_WINTERS = Baseline("Holt–Winters", fits.fit_holt_winters)

__all__ = ["LEVELS", "Baseline", "baselines_for", "run_baselines", "season_of"]
