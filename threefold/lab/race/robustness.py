"""Quality against how much the inputs are damaged: noise, gaps and a lower sampling rate.

    noise     x + s σ ε          numbers: Gaussian, σ the standard deviation of each channel
    gaps      x_t ← x_{t'}       a share of the elements is missing, the last one before is repeated
    rate      every k-th element is kept, those between are interpolated; the newest one is kept
    replaced  x_t ← a random one tokens: a share is replaced by tokens of the same texts
    deleted   x_t is left out    tokens: a share is missing, the rest moves together

Targets are never changed.  All strengths use the same examples, so that the points of a curve are
comparable; the damage depends on the strength and the batch alone, and is the same for all models.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from threefold.data.loaders import IGNORE, Batch
from threefold.tasks.pairs import Pairs
from threefold.tasks.task import Task

Rows = Any  # a Batch, or Pairs of which only the sources are damaged
Score = Callable[[Sequence[Rows]], float]  # the task's metric on batches
Damage = Callable[[Rows, float, torch.Generator], Rows]

NOISE = (0.1, 0.25, 0.5, 1.0)  # in standard deviations of the input
GAPS = (0.1, 0.25, 0.5)  # share of the elements
RATES = (2.0, 4.0)  # the sampling rate is divided by
TOKENS = (0.02, 0.05, 0.1, 0.2)  # share of the elements
SEED = 7_919_000  # far from the seeds of data and weights
PASSES = 10  # over the examples, at most: every strength, and once undamaged


@dataclass(frozen=True)
class DamageKind:
    """A way to damage inputs; `none` is the strength at which nothing is changed."""

    name: str
    strengths: tuple[float, ...]
    apply: Damage
    none: float = 0.0


def damage_kinds(task: Task[Any], rows: Sequence[Rows]) -> list[DamageKind]:
    """The ways that suit the inputs of a task."""
    first = rows[0]
    if isinstance(first, Pairs):
        is_text = first.source_lengths is not None  # else images or vectors
        return [DamageKind("replaced", TOKENS, _replace_source)] if is_text else []
    if first.inputs.is_floating_point():
        kinds = [DamageKind("noise", NOISE, _noise(channel_deviations(rows)))]
        if first.inputs.dim() == 3:  # [B, L, features]; an image has no order in time
            kinds += [DamageKind("gaps", GAPS, _gaps), DamageKind("rate", RATES, _rate, none=1.0)]
        return kinds
    if first.inputs.dim() != 2:  # pairs of sequences
        return []
    if task.kind == "masked":
        return [DamageKind("replaced", TOKENS, _replace_unmasked)]
    return [DamageKind("replaced", TOKENS, _replace), DamageKind("deleted", TOKENS, _delete)]


def robustness(
    score: Score, rows: Sequence[Rows], kinds: Sequence[DamageKind]
) -> dict[str, list[list[float]]]:
    """The curve [strength, score] of each kind of damage, from the undamaged inputs on."""
    if not kinds:
        return {}
    undamaged = score(rows)
    curves = {}
    for kind in kinds:
        points = [[kind.none, undamaged]]
        for number, strength in enumerate(kind.strengths):
            damaged = [
                kind.apply(batch, strength, torch.Generator().manual_seed(SEED + 1000 * number + i))
                for i, batch in enumerate(rows)
            ]
            points.append([strength, score(damaged)])
        curves[kind.name] = points
    return curves


def channel_deviations(rows: Sequence[Batch]) -> Tensor:
    """The standard deviation of each channel of the inputs, padding and NaN excluded."""
    parts = []
    for batch in rows:
        inputs = batch.inputs if batch.inputs.dim() == 3 else batch.inputs.movedim(1, -1)
        parts.append(inputs[batch.mask] if batch.mask is not None else inputs.flatten(0, -2))
    values = torch.cat(parts).double()
    known = ~values.isnan()
    count = known.sum(0).clamp(min=1)
    mean = values.nan_to_num().sum(0) / count
    squares = torch.where(known, (values - mean) ** 2, 0.0).sum(0)
    return (squares / count).sqrt().float()


def _noise(deviations: Tensor) -> Damage:
    def apply(batch: Batch, strength: float, generator: torch.Generator) -> Batch:
        noise = torch.randn(batch.inputs.shape, generator=generator)
        shape = (-1,) if batch.inputs.dim() == 3 else (-1, 1, 1)  # of an image: channels first
        return batch._replace(inputs=batch.inputs + strength * deviations.view(shape) * noise)

    return apply


def _gaps(batch: Batch, share: float, generator: torch.Generator) -> Batch:
    inputs = batch.inputs
    missing = torch.rand(inputs.shape[:2], generator=generator) < share
    missing[:, 0] = False
    places = torch.arange(inputs.shape[1]).expand(inputs.shape[:2])
    before = torch.where(missing, 0, places).cummax(1).values
    return batch._replace(inputs=_take(inputs, before))


def _rate(batch: Batch, factor: float, generator: torch.Generator) -> Batch:
    """Keep every `factor`-th element, counted back from the newest; interpolate the others."""
    inputs, step = batch.inputs, int(factor)
    count = inputs.shape[1]
    lengths = torch.full((len(inputs),), count) if batch.lengths is None else batch.lengths
    first = ((lengths - 1) % step)[:, None]  # the first element that is kept
    places = torch.arange(count).expand(inputs.shape[:2])
    before = (first + (places - first).div(step, rounding_mode="floor") * step).clamp(min=first)
    after = torch.minimum(before + step, (lengths - 1).clamp(min=0)[:, None])
    share = ((places - before) / step).clamp(0, 1)[..., None]
    between = (1 - share) * _take(inputs, before) + share * _take(inputs, after)
    inside = (places < lengths[:, None])[..., None]
    return batch._replace(inputs=torch.where(inside, between.to(inputs.dtype), inputs))


def _take(inputs: Tensor, places: Tensor) -> Tensor:
    """The elements [B, L, features] at places [B, L] of their rows."""
    return inputs.gather(1, places[..., None].expand(-1, -1, inputs.shape[2]))


def _replace(batch: Batch, share: float, generator: torch.Generator) -> Batch:
    """Replace tokens by tokens of the same batch."""
    inputs = batch.inputs
    real = torch.ones_like(inputs, dtype=torch.bool) if batch.mask is None else batch.mask
    chosen = (torch.rand(inputs.shape, generator=generator) < share) & real
    pool = inputs[real]
    drawn = pool[torch.randint(len(pool), inputs.shape, generator=generator)]
    return batch._replace(inputs=torch.where(chosen, drawn, inputs))


def _replace_unmasked(batch: Batch, share: float, generator: torch.Generator) -> Batch:
    """Replace tokens around those that a masked model has to fill in."""
    damaged = _replace(batch, share, generator)
    asked = batch.targets != IGNORE
    return batch._replace(inputs=torch.where(asked, batch.inputs, damaged.inputs))


def _delete(batch: Batch, share: float, generator: torch.Generator) -> Batch:
    """Leave out tokens; the rest moves together, and keeps its targets if each token has one."""
    inputs = batch.inputs
    count = inputs.shape[1]
    lengths = torch.full((len(inputs),), count) if batch.lengths is None else batch.lengths
    kept = (lengths - (share * lengths).round().long()).clamp(min=1)
    order = torch.rand(inputs.shape, generator=generator)
    order = order.masked_fill(torch.arange(count) >= lengths[:, None], 2.0)  # padding comes last
    ranks = order.argsort(1).argsort(1)
    places = torch.where(ranks < kept[:, None], torch.arange(count), count)
    chosen = places.sort(1).values[:, : int(kept.max())]
    padded = chosen == count
    chosen = chosen.clamp(max=count - 1)
    targets = batch.targets
    if targets.shape == inputs.shape:
        targets = targets.gather(1, chosen).masked_fill(padded, IGNORE)
    inputs = inputs.gather(1, chosen).masked_fill(padded, 0)
    return Batch(inputs, targets, batch.starts, None if batch.lengths is None else kept)


def _replace_source(rows: Pairs, share: float, generator: torch.Generator) -> Pairs:
    """Replace tokens of the sources; BEGIN and END stay."""
    assert rows.source_lengths is not None
    source, places = rows.source, torch.arange(rows.source.shape[1])
    inner = (places > 0) & (places < rows.source_lengths[:, None] - 1)
    if not bool(inner.any()):
        return rows
    pool = source[inner]
    drawn = pool[torch.randint(len(pool), source.shape, generator=generator)]
    chosen = (torch.rand(source.shape, generator=generator) < share) & inner
    return replace(rows, source=torch.where(chosen, drawn, source))
