"""What the training loop costs beside the bare forward pass, backward pass and optimiser.

How fast a small model runs depends by some percent on where its tensors happen to lie, more than
the loop costs. So both sides train the very same model with the same optimiser, and take turns.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.measure import Contender, Race, at_most
from threefold import LanguageModel, Spec
from threefold.data.loaders import Tokens, Windows
from threefold.training.loop import Trainer
from threefold.training.objectives import PredictionObjective
from threefold.training.reporters import Reporter
from threefold.training.run_folder import RunFolder
from threefold.training.settings import TrainingSettings

ENDLESS = 10**9
KEEPS_MEMORY = True  # as `threefold train` does
SHAPES = {"tiny": (64, 2, 8, 128), "small": (128, 4, 16, 256)}  # width, depth, batch, length
ROUNDS = {"tiny": (201, 4), "small": (101, 1)}  # and steps of each
MIXERS = ("mamba", "gla", "lstm")
BARE = "bare forward + backward + AdamW"


def made(mixer: str, shape: tuple[int, int, int, int]) -> Trainer:
    width, depth, batch, length = shape
    torch.manual_seed(0)
    model = LanguageModel(Spec("language", width, depth, mixer))
    settings = TrainingSettings(
        steps=ENDLESS, learning_rate=1e-3, save_every=ENDLESS, warmup_fraction=0.0
    )
    return Trainer(model, Windows(_text(), batch, length), settings, PredictionObjective())


def ours(trainer: Trainer, folder: Path, steps: int) -> Contender:
    """Steps of the loop: loader, schedule, clipping, checks, log; no checkpoint falls into them."""
    run_folder, reporter = RunFolder(folder), Reporter()
    trainer.start(run_folder, reporter, {})

    def work() -> list[Tensor]:
        for _ in range(steps):
            trainer.step(run_folder)
            reporter.on_step(trainer)
            trainer.log_and_save(run_folder, reporter)
        return []

    return work


def bare(trainer: Trainer, steps: int) -> Contender:
    """The same model and torch's optimiser of the loop, on a batch that lies ready."""
    ready = trainer.batches(0)
    (optimizer,) = trainer.optimizer.optimizers

    def work() -> list[Tensor]:
        for _ in range(steps):
            logits, _ = trainer.model(ready.inputs)
            loss = F.cross_entropy(logits.flatten(0, 1), ready.targets.flatten())
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        return []

    return work


def _text() -> Tokens:
    return np.random.default_rng(0).integers(0, 256, 100_000)


def races(rounds: dict[str, tuple[int, int]]) -> Iterator[Race]:
    """Every mixer at every size of `rounds`."""
    with tempfile.TemporaryDirectory() as folder:
        for name, (many, steps) in rounds.items():
            for mixer in MIXERS:
                place = Path(folder) / f"{name}-{mixer}"
                place.mkdir()
                shape = SHAPES[name]
                run = made(mixer, shape)
                yield Race(
                    f"training loop, {mixer} {shape[0]} × {shape[1]}, {steps} steps of "
                    f"{shape[2]} × {shape[3]} tokens",
                    {"threefold": ours(run, place, steps), BARE: bare(run, steps)},
                    rounds=many,
                    targets=(at_most(1.05, BARE),),
                    apart=(BARE,),
                )


def run() -> Iterator[Race]:
    yield from races(ROUNDS)


def quick() -> Iterator[Race]:
    yield from races({"tiny": (1, 1)})
