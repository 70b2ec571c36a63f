"""BERT's loss beside the unigram entropy: `python -m threefold.lab.studies.masked`.

    H = −Σ_b p(b) log p(b)   over the bytes of the text to be judged by

Below H a model must have looked at the tokens around the hidden one.  Bytes of the Python language
reference, of which `threefold demo` learns, too.
"""

from __future__ import annotations

import argparse
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

BYTES = 256
MASK = BYTES  # the token after all bytes


@dataclass(frozen=True)
class MaskedResult:
    """What was reached on the held-out text, in nats for each hidden byte."""

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
    """A small BERT for bytes, or the same with another mixer in both directions."""
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
    described: Spec, settings: TrainingSettings, *, length: int = 32, console: Console | None = None
) -> MaskedResult:
    """Train, then judge by the held-out text, whose hidden bytes are always the same."""
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
    result = train(model, batches, settings, validation=pieces, console=console, title="masked")
    scores = result.scores
    return MaskedResult(
        scores.loss, entropy(validation), scores.metric, result.steps, result.seconds
    )


def main() -> None:
    """Print the loss and the entropy."""
    parser = argparse.ArgumentParser(
        prog="python -m threefold.lab.studies.masked", description=__doc__
    )
    parser.add_argument("--mixer", default="attention")
    parser.add_argument("--seconds", type=float, default=110)
    parser.add_argument("--learning-rate", type=float, default=4e-3)
    parser.add_argument("--length", type=int, default=32)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    settings = TrainingSettings(
        time=given.seconds, learning_rate=given.learning_rate, seed=given.seed
    )
    found = study(spec(given.mixer), settings, length=given.length, console=Console())
    verdict = "below" if found.loss < found.entropy else "not below"
    print(
        f"{given.mixer}: masked loss {found.loss:.3f} nats, unigram entropy {found.entropy:.3f} "
        f"nats: {verdict}; {found.accuracy:.1%} of the hidden bytes guessed, {found.steps} steps, "
        f"{found.seconds:.0f} s"
    )


if __name__ == "__main__":
    main()
