"""x̄* − x̄ over resampled test examples:  how much of a difference is due to the test set.

Seeds show how much a score depends on chance in training; another test set would change it, too.
The bootstrap draws the test examples with replacement, the same ones for all models, and looks at
how far the difference of two models moves.  Examples that follow each other in a text or a series
are drawn in blocks of n^⅓, because neighbours resemble each other.

Efron 1979, "Bootstrap Methods: Another Look at the Jackknife"; Künsch 1989, "The Jackknife and the
Bootstrap for General Stationary Observations" (blocks).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from threefold.data.loaders import Batch
from threefold.lab.race.significance import CONFIDENCE, Interval
from threefold.tasks.task import Metric
from threefold.training.objectives import BatchLoss

RESAMPLES = 4000
FEWEST_EXAMPLES = 8  # below which resampling says nothing
AT_ONCE = 2_000_000  # numbers that are resampled at a time
NEIGHBOURS = ("language", "masked", "forecaster")  # kinds whose examples follow each other

Examples = NDArray[np.float64]  # [N, 2]: sum of the scores of each example, and how many there are


class ExampleScores:
    """Collects the scores of each test example, batch by batch."""

    def __init__(self, metric: Metric) -> None:
        self.metric = metric
        self.rows: list[tuple[float, int]] = []

    def on_batch(self, rows: Batch, batch_loss: BatchLoss, tally: object) -> None:
        """Add a batch of an evaluation."""
        self.add(rows, batch_loss.outputs)

    def add(self, rows: Batch, outputs: Tensor) -> None:
        """Add a batch."""
        outputs = outputs.to(torch.promote_types(outputs.dtype, torch.float32))
        for i in range(len(rows.targets)):
            scores = self.metric(outputs[i : i + 1], rows.targets[i : i + 1])
            self.rows.append((float(scores.sum()), scores.numel()))

    def add_scores(self, scores: Tensor) -> None:
        """Add a batch whose scores are known, one row for each example."""
        self.rows += [(float(row.double().sum()), row.numel()) for row in scores]

    @property
    def array(self) -> Examples:
        """Sums and counts, [N, 2]."""
        return np.array(self.rows, np.float64).reshape(-1, 2)


def bootstrap_margins(
    examples: Mapping[str, Mapping[int, Examples]],
    leader: str,
    *,
    lower: bool,
    kind: str = "",
    confidence: float = CONFIDENCE,
) -> dict[str, Interval]:
    """How much better the leader is than each other model, with the interval over test examples.

    examples: by name and seed.  A model is compared over the seeds that it shares with the leader.
    """
    sign = -1.0 if lower else 1.0
    margins = {}
    for name, by_seed in examples.items():
        seeds = sorted(set(by_seed) & set(examples[leader]))
        if name == leader or not seeds:
            continue
        gaps = [sign * (examples[leader][seed] - by_seed[seed])[:, 0] for seed in seeds]
        counts = np.mean([by_seed[seed][:, 1] for seed in seeds], axis=0)
        if len(counts) >= FEWEST_EXAMPLES:
            block = block_length(len(counts), kind)
            margins[name] = bootstrap_mean(np.mean(gaps, axis=0), counts, confidence, block)
    return margins


def block_length(examples: int, kind: str) -> int:
    """Examples that are drawn together."""
    return max(1, round(examples ** (1 / 3))) if kind in NEIGHBOURS else 1


def bootstrap_mean(
    sums: Sequence[float] | NDArray[np.float64],
    counts: Sequence[float] | NDArray[np.float64],
    confidence: float = CONFIDENCE,
    block: int = 1,
    resamples: int = RESAMPLES,
) -> Interval:
    """Σ sums / Σ counts with its percentile interval over resampled examples."""
    both = np.stack([np.asarray(sums, np.float64), np.asarray(counts, np.float64)], 1)
    mean = float(both[:, 0].sum() / both[:, 1].sum())
    means = resampled(both, block, resamples)
    low, high = np.quantile(means, [(1 - confidence) / 2, (1 + confidence) / 2])
    half = max(float(high) - mean, mean - float(low))
    return Interval(mean, half, len(both), confidence)


def resampled(both: Examples, block: int, resamples: int) -> NDArray[np.float64]:
    """Ratios of sums and counts of examples drawn with replacement, in blocks that wrap around."""
    rng = np.random.default_rng(0)  # the same report every time
    size = len(both)
    blocks = math.ceil(size / block)
    at_once = max(1, AT_ONCE // (blocks * block))
    ratios = []
    for first in range(0, resamples, at_once):
        starts = rng.integers(size, size=(min(at_once, resamples - first), blocks, 1))
        drawn = ((starts + np.arange(block)) % size).reshape(len(starts), -1)[:, :size]
        totals = both[drawn].sum(1)
        ratios.append(totals[:, 0] / np.maximum(totals[:, 1], 1e-300))
    return np.concatenate(ratios)
