"""Overhead of the training loop over the bare forward pass, backward pass and optimizer.

The speed of a small model varies by a few percent with the addresses of its tensors, more than the
loop costs. So both contenders train the same model object with the same optimizer, in turns.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.measure import Comparison, Contender, max_ratio
from threefold import LanguageModel, Spec
from threefold.data.loaders import Tokens, Windows
from threefold.training.objectives import PredictionObjective
from threefold.training.reporters import Reporter
from threefold.training.run_folder import RunFolder
from threefold.training.settings import TrainingSettings
from threefold.training.trainer import Trainer

NEVER = 10**9  # more steps than any run takes
MEMORY = ("kept",)  # as in `threefold train`
SHAPES = {"tiny": (64, 2, 8, 128), "small": (128, 4, 16, 256)}  # width, depth, batch, length
ROUNDS = {"tiny": (201, 4), "small": (101, 1)}  # rounds, and steps per round
MIXERS = ("mamba", "gla", "lstm")
BARE = "bare forward + backward + AdamW"


def build_trainer(mixer: str, shape: tuple[int, int, int, int]) -> Trainer:
    width, depth, batch, length = shape
    torch.manual_seed(0)
    model = LanguageModel(Spec("language", width, depth, mixer))
    settings = TrainingSettings(
        steps=NEVER, learning_rate=1e-3, save_every=NEVER, warmup_fraction=0.0
    )
    return Trainer(model, Windows(random_tokens(), batch, length), settings, PredictionObjective())


def ours(run: Trainer, folder: Path, steps: int) -> Contender:
    """Steps of the loop: loader, schedule, clipping, checks and log, but no checkpoint."""
    run_folder, reporter = RunFolder(folder), Reporter()
    run.start(run_folder, reporter, {})

    def work() -> list[Tensor]:
        for _ in range(steps):
            run.step(run_folder)
            reporter.on_step(run)
            run.log_and_save(run_folder, reporter)
        return []

    return work


def bare(run: Trainer, steps: int) -> Contender:
    """The same model and optimizer without the loop, on a batch prepared in advance."""
    batch = run.batches(0)
    (optimizer,) = run.optimizer.optimizers

    def work() -> list[Tensor]:
        for _ in range(steps):
            logits, _ = run.model(batch.inputs)
            loss = F.cross_entropy(logits.flatten(0, 1), batch.targets.flatten())
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        return []

    return work


def random_tokens() -> Tokens:
    return np.random.default_rng(0).integers(0, 256, 100_000)


def comparisons(rounds: dict[str, tuple[int, int]]) -> Iterator[Comparison]:
    """Every mixer at every size of `rounds`."""
    with tempfile.TemporaryDirectory() as folder:
        for name, (round_count, steps) in rounds.items():
            for mixer in MIXERS:
                run_path = Path(folder) / f"{name}-{mixer}"
                run_path.mkdir()
                shape = SHAPES[name]
                run = build_trainer(mixer, shape)
                yield Comparison(
                    f"training loop, {mixer} {shape[0]} × {shape[1]}, {steps} steps of "
                    f"{shape[2]} × {shape[3]} tokens",
                    {"threefold": ours(run, run_path, steps), BARE: bare(run, steps)},
                    rounds=round_count,
                    targets=(max_ratio(1.05, BARE),),
                    unchecked=(BARE,),
                )


def run() -> Iterator[Comparison]:
    yield from comparisons(ROUNDS)


def quick() -> Iterator[Comparison]:
    yield from comparisons({"tiny": (1, 1)})
