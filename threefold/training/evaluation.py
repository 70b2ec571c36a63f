"""Mean loss and metric over batches, without gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch import nn

from threefold.errors import ThreefoldError
from threefold.memory.state import State
from threefold.tasks.task import Metric, accuracy
from threefold.training.devices import computing, device_of, move, precision_of
from threefold.training.objectives import (
    BatchLoss,
    Objective,
    ObjectiveOptions,
    Tally,
    objective_of,
)

# Called after each batch, with its rows, their loss and outputs, and the metric so far.
OnBatch = Callable[[Any, BatchLoss, Tally], None]


class Scores(NamedTuple):
    """Mean loss in nats and mean metric over all targets that are not ignored."""

    loss: float
    metric: float


def evaluate(
    model: nn.Module,
    batches: Iterable[Any],
    metric: Metric = accuracy,
    *,
    carry: bool = False,
    objective: Objective | None = None,
    on_batch: OnBatch | None = None,
    precision: str | None = None,
) -> Scores:
    """Mean loss and metric over batches, in eval mode on the model's device.

    `objective` defaults to the model's kind, `precision` (as in the training settings) to that of
    its weights.  An error that `on_batch` raises ends the evaluation.
    """
    precision = precision or precision_of(model)
    objective, device = objective or objective_of(model, ObjectiveOptions(metric)), device_of(model)
    was_training = model.training
    model.eval()
    loss, count, tally = 0.0, 0, objective.tally()
    state: State | None = None
    try:
        with torch.no_grad(), computing(device, precision):
            for batch in batches:
                rows = move(batch, device, precision)
                batch_loss = objective(model, rows, state, carry=carry, progress=1.0)
                state = batch_loss.state
                loss += float(batch_loss.loss)
                count += objective.count(rows)
                tally.add(model, rows, batch_loss.outputs)
                if on_batch is not None:
                    on_batch(rows, batch_loss, tally)
    finally:
        model.train(was_training)
    if count == 0:
        raise ThreefoldError("nothing to evaluate: no batch has a target that is not ignored")
    return Scores(loss / count, tally.value)
