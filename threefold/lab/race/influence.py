"""How far back a model looks: the change of its answer when one element of the past is replaced.

    influence(d) = median |f(x with x_{−d} replaced) − f(x)| / median |f(x') − f(x)|

d = 1 is the newest element.  x_{−d} is replaced by the element x'_{−d} of another example x', and
f is the answer after the last element: probabilities of classes, numbers, a forecast, or the bits
that the true next token takes.  Medians are over examples in which the two elements differ.  So 1
means as much as replacing the whole input, and 0 that the element does not matter at all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from threefold.data.loaders import Batch
from threefold.tasks.task import Task

Outputs = Callable[[Batch], Tensor]  # answers after the last element, one row per example
DISTANCES = 12  # at most
PASSES = DISTANCES + 2  # and the examples as they are, and with everything replaced


def has_past(task: Task[Any], rows: Any) -> bool:
    """Whether the inputs are one sequence each, whose last element has an answer."""
    if not isinstance(rows, Batch) or task.kind == "masked":
        return False
    return bool(rows.inputs.dim() == (3 if rows.inputs.is_floating_point() else 2))


def distances(length: int, most: int = DISTANCES) -> list[int]:
    """Whole numbers from 1 to `length`, about equally spaced as logarithms."""
    if length <= most:
        return list(range(1, length + 1))
    steps = [length ** (i / (most - 1)) for i in range(most)]
    return sorted({min(length, max(1, round(step))) for step in steps})


def influence(outputs: Outputs, rows: Sequence[Batch]) -> list[list[float]]:
    """[distance, influence] at growing distances, over all examples of the batches."""
    pairs = [(batch, _others(batch)) for batch in rows if len(batch.inputs) > 1]
    if not pairs:
        return []
    lengths = torch.cat([_lengths(batch) for batch, _ in pairs])
    before = [outputs(batch) for batch, _ in pairs]
    whole = _median(
        [_change(outputs(other), b) for (_, other), b in zip(pairs, before, strict=True)]
    )
    curve = []
    for distance in distances(int(lengths.median())):  # half of the examples are that long
        changes = []
        for (batch, other), answer in zip(pairs, before, strict=True):
            replaced, differs = _replace_at(batch, other, distance)
            changes.append(_change(outputs(replaced), answer)[differs])
        if sum(map(len, changes)):  # else all examples are equal there
            curve.append([distance, _median(changes) / whole if whole > 0 else 0.0])
    return curve


def _others(batch: Batch) -> Batch:
    """For each example the next one as x', cut or repeated to the same length; same targets."""
    count, lengths = batch.inputs.shape[1], _lengths(batch)
    theirs = lengths.roll(-1)
    back = lengths[:, None] - torch.arange(count)  # distance from the end of the row
    places = (theirs[:, None] - back) % theirs[:, None]
    inside = back > 0
    moved = _take(batch.inputs.roll(-1, 0), torch.where(inside, places, 0))
    keep = inside if moved.dim() == 2 else inside[..., None]
    return batch._replace(inputs=torch.where(keep, moved, batch.inputs))


def _replace_at(batch: Batch, other: Batch, distance: int) -> tuple[Batch, Tensor]:
    """The batch with x_{−distance} of the other, and in which rows that is another element."""
    rows, lengths = torch.arange(len(batch.inputs)), _lengths(batch)
    places = (lengths - distance).clamp(min=0)
    inputs = batch.inputs.clone()
    new, old = other.inputs[rows, places], inputs[rows, places]
    inputs[rows, places] = new
    differs = (new != old).reshape(len(rows), -1).any(1) & (lengths >= distance)
    return batch._replace(inputs=inputs), differs


def _take(inputs: Tensor, places: Tensor) -> Tensor:
    if inputs.dim() == 2:
        return inputs.gather(1, places)
    return inputs.gather(1, places[..., None].expand(-1, -1, inputs.shape[2]))


def _lengths(batch: Batch) -> Tensor:
    if batch.lengths is None:
        return torch.full((len(batch.inputs),), batch.inputs.shape[1])
    return batch.lengths


def _change(after: Tensor, before: Tensor) -> Tensor:
    """Σ |after − before| of each example."""
    return (after.double() - before.double()).abs().flatten(1).sum(1)


def _median(parts: Sequence[Tensor]) -> float:
    """The median of all examples."""
    return float(torch.cat(list(parts)).quantile(0.5))
