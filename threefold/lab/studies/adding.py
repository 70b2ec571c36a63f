"""The adding problem for several mixers: `python -m threefold.lab.studies.adding`.

Numbers and marks → a linear map → the mixer → a linear map of its last output; Adam on the squared
error of new sequences, clipped gradients, until the error on held-out sequences is below 0.01.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from threefold.data.loaders import Batch
from threefold.layers.mixer import Mixer
from threefold.layers.table import mixer
from threefold.tasks import card
from threefold.tasks.adding import adding

# A forget gate with a bias of 3 remembers for about e³ elements from the first step on.
MIXERS: dict[str, Mapping[str, Any]] = {
    "lstm": {"forget_bias": 3.0},
    "gru": {},
    "coupled_lstm": {"forget_bias": 3.0},
    "rnn": {},
}


@dataclass(frozen=True)
class AddingStudy:
    """Training settings, the same for every mixer."""

    length: int = 200
    width: int = 64
    batch: int = 32
    steps: int = 4000
    learning_rate: float = 5e-3
    clip: float = 1.0
    eval_every: int = 50
    seed: int = 0


@dataclass(frozen=True)
class AddingResult:
    """The best error on held-out sequences, and when it was reached."""

    mixer: str
    error: float
    steps: int
    seconds: float

    @property
    def solved(self) -> bool:
        return card("adding").reached(self.error)

    def __str__(self) -> str:
        verdict = "solved" if self.solved else "not solved"
        return (
            f"{self.mixer:<16}{verdict:<12}error {self.error:.4f}  after {self.steps:>5} steps  "
            f"{self.seconds:.0f} s"
        )


class Adder(nn.Module):
    """A mixer that reads pairs of numbers and outputs one number at the end."""

    def __init__(self, inner: Mixer) -> None:
        super().__init__()
        self.input = nn.Linear(2, inner.width)
        self.mixer = inner
        self.out = nn.Linear(inner.width, 1)

    def forward(self, x: Tensor) -> Tensor:
        y, _ = self.mixer(self.input(x))
        answer: Tensor = self.out(y[:, -1]).squeeze(-1)
        return answer


def learn(model: Adder, optimiser: torch.optim.Optimizer, rows: Batch, clip: float) -> None:
    """One step, with the norm of the gradient clipped."""
    optimiser.zero_grad(set_to_none=True)
    F.mse_loss(model(rows.inputs), rows.targets).backward()  # type: ignore[no-untyped-call]
    nn.utils.clip_grad_norm_(model.parameters(), clip)
    optimiser.step()


def study(name: str, plan: AddingStudy) -> tuple[AddingResult, Adder]:
    """Train one mixer until it solves the task or the steps run out."""
    torch.manual_seed(plan.seed)
    model = Adder(mixer(name, width=plan.width, **MIXERS.get(name, {})))
    optimiser = torch.optim.Adam(model.parameters(), plan.learning_rate)
    task = adding(plan.length, seed=plan.seed)
    held_out, batches = task.batch("valid", 0, 512), task.batches(plan.batch, plan.seed)
    best, start = AddingResult(name, score(model, held_out), 0, 0.0), time.perf_counter()
    for step in range(1, plan.steps + 1):
        learn(model, optimiser, batches(step - 1), plan.clip)
        if step % plan.eval_every == 0:
            error = score(model, held_out)
            if error < best.error:
                best = AddingResult(name, error, step, time.perf_counter() - start)
            if best.solved:
                break
    return best, model


def score(model: nn.Module, rows: Batch) -> float:
    """The mean squared error."""
    with torch.no_grad():
        return F.mse_loss(model(rows.inputs), rows.targets).item()


def main() -> None:
    """Print a line for each mixer."""
    parser = argparse.ArgumentParser(
        prog="python -m threefold.lab.studies.adding", description=__doc__
    )
    parser.add_argument("mixers", nargs="*", default=list(MIXERS), metavar="mixer")
    for name in ("length", "width", "batch", "steps", "seed"):
        parser.add_argument(f"--{name}", type=int, default=getattr(AddingStudy, name))
    parser.add_argument("--learning-rate", type=float, default=AddingStudy.learning_rate)
    arguments = vars(parser.parse_args())
    names = arguments.pop("mixers")
    plan = AddingStudy(**arguments)
    for name in names:
        print(study(name, plan)[0], flush=True)


if __name__ == "__main__":
    main()
