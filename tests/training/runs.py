"""A small run with everything that must survive a restart: dropout, carried state, evaluations."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from threefold.data.loaders import Batch
from threefold.models.language import LanguageModel
from threefold.models.spec import Spec
from threefold.training import Result, TrainingSettings, train
from threefold.training.trainer import Trainer

if TYPE_CHECKING:
    import pytest

STEPS = 40


def rows(step: int) -> Batch:
    """The batch of a step."""
    tokens = torch.randint(0, 17, (3, 13), generator=torch.Generator().manual_seed(step))
    starts = torch.tensor([step % 5 == 0, False, step % 3 == 0])
    return Batch(tokens[:, :-1], tokens[:, 1:], starts)


def make() -> LanguageModel:
    """A hybrid with initial weights."""
    torch.manual_seed(3)
    return LanguageModel(
        Spec("language", 16, 2, ("gla", "lstm"), vocabulary=17, options={"dropout": 0.1})
    )


def run(folder: Path | None, steps: int = STEPS, save: int = 3) -> tuple[LanguageModel, Result]:
    """Train the model, with or without a folder."""
    torch.set_num_threads(1)
    model = make()
    settings = TrainingSettings(
        steps=steps, carry_state=True, eval_every=10, save_every=save, seed=5
    )
    return model, train(model, rows, settings, validation=[rows(10**6)], folder=folder)


def die_after(steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make training end the process after so many steps, until `monkeypatch.undo()`."""
    monkeypatch.undo()
    step, left = Trainer.step, iter(range(steps))

    def dies(self: Trainer, *more: Any) -> bool:
        if next(left, None) is None:
            raise SystemExit(9)
        return step(self, *more)

    monkeypatch.setattr(Trainer, "step", dies)


if __name__ == "__main__":
    run(Path(sys.argv[1]), *map(int, sys.argv[2:3]), save=1 if len(sys.argv) > 2 else 3)
