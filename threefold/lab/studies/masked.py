"""BERT's masked loss against the unigram entropy: `python -m threefold.lab.studies.masked`.

    H = −Σ_b p(b) log p(b)   over the bytes of the held-out text

To get below H, a model must use the tokens around the masked one.  The data are the bytes of the
Python language reference, as in `threefold demo`.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from rich.console import Console

from threefold.data import ByteTokenizer, Windows, python_reference, split
from threefold.data.masking import MaskedBatches
from threefold.models.presets import bert
from threefold.models.spec import Spec
from threefold.models.table import build
from threefold.training import TrainingSettings, train
from threefold.training.reporters import Reporter, console_reporter

BYTES = 256
MASK = BYTES  # the first token after the bytes


@dataclass(frozen=True)
class MaskedResult:
    """The result on the held-out text, in nats per masked byte."""

    loss: float
    entropy: float
    accuracy: float
    steps: int
    seconds: float


def entropy(tokens: np.ndarray[tuple[int], np.dtype[np.integer]]) -> float:
    """−Σ p log p over the frequencies of the tokens."""
    counts = np.bincount(tokens)
    p = counts[counts > 0] / len(tokens)
    return float(-(p * np.log(p)).sum())


def spec(mixer: str = "attention", *, width: int = 64, depth: int = 2) -> Spec:
    """A small BERT for bytes, or the same model with another mixer, bidirectional."""
    small = bert(
        width=width,
        depth=depth,
        heads=4,
        vocabulary=BYTES + 1,
        max_length=256,
        hidden=2 * width,
        segments=0,
        dropout=0.0,
    )
    if mixer == "attention":
        return small
    return Spec.from_dict({**small.to_dict(), "mixers": [mixer]})


def study(
    described: Spec,
    settings: TrainingSettings,
    *,
    length: int = 32,
    reporters: Sequence[Reporter] | None = None,
) -> MaskedResult:
    """Train, then evaluate on the held-out text, with the same masked bytes every time."""
    tokenizer = ByteTokenizer()
    training, validation = map(tokenizer.encode, split(python_reference()))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        model = build(described)
    batches = MaskedBatches(
        Windows(training, 32, length, settings.seed), MASK, BYTES, seed=settings.seed
    )
    held_out = MaskedBatches(Windows(validation, 32, length, 10**6), MASK, BYTES, seed=10**6)
    pieces = [held_out(step) for step in range(20)]
    result = train(model, batches, settings, validation=pieces, reporters=reporters)
    scores = result.scores
    return MaskedResult(
        scores.loss, entropy(validation), scores.metric, result.steps, result.seconds
    )


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m threefold.lab.studies.masked", description=__doc__
    )
    parser.add_argument("--mixer", default="attention")
    parser.add_argument("--seconds", type=float, default=110)
    parser.add_argument("--learning-rate", type=float, default=4e-3)
    parser.add_argument("--length", type=int, default=32)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def main() -> None:
    """Print the loss and the entropy."""
    arguments = _parse_arguments()
    settings = TrainingSettings(
        time=arguments.seconds, learning_rate=arguments.learning_rate, seed=arguments.seed
    )
    result = study(
        spec(arguments.mixer),
        settings,
        length=arguments.length,
        reporters=[console_reporter(Console(), "masked")],
    )
    verdict = "below" if result.loss < result.entropy else "not below"
    print(
        f"{arguments.mixer}: masked loss {result.loss:.3f} nats, unigram entropy "
        f"{result.entropy:.3f} nats: {verdict}; "
        f"{result.accuracy:.1%} of the masked bytes right, {result.steps} steps, "
        f"{result.seconds:.0f} s"
    )


if __name__ == "__main__":
    main()
