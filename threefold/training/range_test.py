"""A learning-rate range test: the loss while the learning rate rises from step to step.

    rate_i = lowest · (highest / lowest)^(i / (steps − 1))     loss_i of the same held-out examples

The loss falls while steps of this size help, and rises when they are too large.  The peak of a
schedule is a fixed fraction of the rate at which the smoothed loss is lowest.  Weights, buffers and
random numbers are as before when the test ends, and nothing in it depends on the clock.
Smith 2017, "Cyclical Learning Rates for Training Neural Networks".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from threefold.training.devices import computing, move, place
from threefold.training.objectives import Objective
from threefold.training.optimizer import make_optimizer, scale_learning_rate
from threefold.training.seeding import preserve_random_state, seed_step
from threefold.training.settings import TrainingSettings

LOWEST, HIGHEST = 1e-4, 1e-1  # rates of the first and of the last step
STEPS = 40
SMOOTHING = 0.7  # share of the earlier losses in each smoothed loss
DIVERGED = 4.0  # the test ends when the loss is higher by this times what it has fallen
FRACTION = 0.25  # of the rate of the lowest loss that is the peak of a schedule
RANGE = (1e-3, 1e-2)  # of the peaks that are chosen


@dataclass(frozen=True)
class RangeTest:
    """The rates of the steps, and the held-out loss after each of them."""

    rates: tuple[float, ...]
    losses: tuple[float, ...]

    @property
    def rate_of_lowest(self) -> float:
        """The rate at which the smoothed loss is lowest."""
        smoothed = _smoothed(self.losses)
        return self.rates[smoothed.index(min(smoothed))]

    @property
    def peak(self) -> float:
        """The peak learning rate of a schedule, with one digit."""
        rate = min(max(FRACTION * self.rate_of_lowest, RANGE[0]), RANGE[1])
        return float(f"{rate:.0e}")


def range_test(
    model: nn.Module,
    batches: Callable[[int], Any],
    held_out: Iterable[Any],
    objective: Objective,
    settings: TrainingSettings,
    steps: int = STEPS,
) -> RangeTest:
    """Train for a few steps with a rising learning rate, then restore the model."""
    rates, losses = [], []
    with preserve_random_state(), restored(model):
        place(model, settings)
        top = settings.model_copy(update={"learning_rate": HIGHEST})
        optimizer = make_optimizer(model, top)
        parameters = [p for p in model.parameters() if p.requires_grad]
        before = _loss(model, held_out, objective, settings)
        for step in range(steps):
            rate = LOWEST * (HIGHEST / LOWEST) ** (step / max(steps - 1, 1))
            seed_step(settings.seed, step)
            scale_learning_rate(optimizer, rate / HIGHEST)
            optimizer.zero_grad()
            _backward(model, batches(step), objective, settings)
            nn.utils.clip_grad_norm_(parameters, settings.grad_clip or math.inf)
            optimizer.step()
            loss = _loss(model, held_out, objective, settings)
            rates.append(rate)
            losses.append(loss if math.isfinite(loss) else math.inf)
            if _has_diverged(losses, before):
                break
    return RangeTest(tuple(rates), tuple(losses))


@contextmanager
def restored(model: nn.Module) -> Iterator[None]:
    """Put weights, buffers, gradients and mode back to what they were."""
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    before = {name: tensor.detach().clone() for name, tensor in tensors.items()}
    was_training = model.training
    model.train()
    try:
        yield
    finally:
        with torch.no_grad():
            for name, tensor in tensors.items():
                tensor.copy_(before[name])
        model.zero_grad(set_to_none=True)
        model.train(was_training)


def _backward(
    model: nn.Module, batch: Any, objective: Objective, settings: TrainingSettings
) -> None:
    """Gradients of the mean loss of a batch."""
    device = place(model, settings)
    rows = move(batch, device, settings.precision)
    with computing(device, settings.precision):
        loss = objective(model, rows, None, carry=settings.carry_state, progress=0.0).loss
    mean = loss / max(objective.count(rows), 1)
    mean.backward()  # type: ignore[no-untyped-call]


def _loss(
    model: nn.Module, batches: Iterable[Any], objective: Objective, settings: TrainingSettings
) -> float:
    """The mean loss over batches, without a metric: that of translators decodes texts."""
    total, count, device = 0.0, 0, place(model, settings)
    model.eval()
    with torch.no_grad(), computing(device, settings.precision):
        for batch in batches:
            rows = move(batch, device, settings.precision)
            total += float(objective(model, rows, None, carry=False, progress=1.0).loss)
            count += objective.count(rows)
    model.train()
    return total / max(count, 1)


def _smoothed(losses: Sequence[float]) -> list[float]:
    """Exponential means of the losses, with the weights of the first corrected."""
    smoothed, mean = [], 0.0
    for step, loss in enumerate(losses):
        mean = SMOOTHING * mean + (1 - SMOOTHING) * loss
        smoothed.append(mean / (1 - SMOOTHING ** (step + 1)))
    return smoothed


def _has_diverged(losses: Sequence[float], before: float) -> bool:
    """Whether the newest loss is not finite, or far above all that was gained."""
    lowest, newest = min(losses), losses[-1]
    if not math.isfinite(newest):
        return True
    gained = max(before - lowest, 0.05 * abs(before))
    return newest > lowest + DIVERGED * gained
