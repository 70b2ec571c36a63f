"""`python -m benchmarks.autocast`: the loss of every causal mixer after training in bfloat16.

Each mixer is trained twice on the Python language reference, byte by byte, from the same weights
and on the same batches: with training.precision float32 and bfloat16 (autocast). The losses on
held-out text, each in its own precision, may differ by 2 %.
"""

from __future__ import annotations

import argparse
import sys
from typing import NamedTuple

import numpy as np
import torch

import threefold
from threefold import LanguageModel, Spec
from threefold.data.loaders import TokenStream, Windows
from threefold.data.python_manual import python_reference, split
from threefold.training.loop import train
from threefold.training.settings import TrainingSettings

LIMIT = 0.02  # relative difference of the losses
WIDTH, BATCH, LENGTH = 32, 8, 64


class Losses(NamedTuple):
    """Held-out losses of a mixer in nats per byte."""

    float32: float
    bfloat16: float

    @property
    def difference(self) -> float:
        """Relative to float32; above 0 if bfloat16 is worse."""
        return self.bfloat16 / self.float32 - 1


def measure(mixer: str, steps: int) -> Losses:
    """Train a mixer in both precisions."""
    return Losses(*(held_out_loss(mixer, steps, name) for name in Losses._fields))


def held_out_loss(mixer: str, steps: int, precision: str) -> float:
    """The loss on held-out text after so many steps."""
    training, held_out = (
        np.frombuffer(text.encode(), np.uint8).astype(np.int64)
        for text in split(python_reference())
    )
    torch.manual_seed(0)
    model = LanguageModel(Spec("language", WIDTH, 1, mixer))
    settings = TrainingSettings(steps=steps, precision=precision, device="cpu")
    batches = Windows(training, BATCH, LENGTH)
    validation = TokenStream(held_out, 4 * BATCH, LENGTH)
    result = train(model, batches, settings, validation=[validation(i) for i in range(4)])
    return result.scores.loss


def causal_mixers() -> list[str]:
    """The mixers of which language models are made."""
    return [name for name, entry in threefold.MIXERS.items() if entry.load().causal]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="mixers; default: all causal ones")
    parser.add_argument("--steps", type=int, default=100)
    options = parser.parse_args()
    print("| mixer | float32 | bfloat16 | difference |\n|---|---|---|---|")
    worse = []
    for name in options.names or causal_mixers():
        losses = measure(name, options.steps)
        if not abs(losses.difference) <= LIMIT:
            worse.append(name)
        print(
            f"| {name} | {losses.float32:.4f} | {losses.bfloat16:.4f} | {losses.difference:+.2%} |",
            flush=True,
        )
    if worse:
        sys.exit(f"more than {LIMIT:.0%} apart: {', '.join(worse)}")


if __name__ == "__main__":
    main()
