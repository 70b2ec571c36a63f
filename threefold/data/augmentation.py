"""Augmentation: training batches, changed a little at random and differently at every step.

    noise           x + 0.1 σ ε                       numbers; σ: the deviation of the batch
    scale           x · (1 + 0.1 ε), one ε per row    numbers (jitter of the amplitude)
    crop            a random stretch of 80 to 100 %   any sequence
    warp            x(t + a L sin(π t / L) / π)       numbers, |a| ≤ 0.3: time runs faster or slower
    dropout         10 % of the elements are left out any sequence; of texts, token dropout
    mixup           λ x_i + (1 − λ) x_j               numbers; each of both targets counts its share

Batches depend on the seed and the step only, so a run resumes to the same bits; validation and test
are never changed.
Um et al. 2017, "Data Augmentation of Wearable Sensor Data"; Zhang et al. 2018, "mixup".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from threefold.data.loaders import Batch, Batches

STRENGTH = 0.1  # of noise and scale, in deviations and as a share; share of elements left out
SHORTEST_CROP = 0.8
WARP = 0.3
MIXUP = 0.2  # both parameters of the Beta distribution of λ


def augmented(batches: Batches, names: Sequence[str], seed: int) -> Batches:
    """Batches with augmentations, one after another."""

    def batch(step: int) -> Batch:
        random = torch.Generator().manual_seed(seed * 1_000_003 + step)
        rows = batches(step)
        for name in names:
            rows = AUGMENTATIONS[name](rows, random)
        return rows

    return batch


def _noise(rows: Batch, random: torch.Generator) -> Batch:
    noise = torch.randn(rows.inputs.shape, generator=random, dtype=rows.inputs.dtype)
    return rows._replace(inputs=rows.inputs + STRENGTH * rows.inputs.std() * noise)


def _scale(rows: Batch, random: torch.Generator) -> Batch:
    shape = (len(rows.inputs), *[1] * (rows.inputs.dim() - 1))
    factor = 1 + STRENGTH * torch.randn(shape, generator=random, dtype=rows.inputs.dtype)
    return rows._replace(inputs=rows.inputs * factor)


def _crop(rows: Batch, random: torch.Generator) -> Batch:
    lengths = _lengths(rows)
    share = SHORTEST_CROP + (1 - SHORTEST_CROP) * torch.rand(len(lengths), generator=random)
    kept = (share * lengths).ceil().long().clamp(min=1)
    first = (torch.rand(len(lengths), generator=random) * (lengths - kept + 1)).long()
    places = first.unsqueeze(1) + torch.arange(int(kept.max()))
    return _picked(rows, places, kept)


def _dropout(rows: Batch, random: torch.Generator) -> Batch:
    lengths, length = _lengths(rows), rows.inputs.shape[1]
    real = torch.arange(length) < lengths.unsqueeze(1)
    kept = (torch.rand(real.shape, generator=random) >= STRENGTH) & real
    kept[:, 0] |= ~kept.any(1)  # a row never becomes empty
    places = torch.argsort((~kept).int(), dim=1, stable=True)
    counts = kept.sum(1)
    return _picked(rows, places[:, : int(counts.max())], counts)


def _picked(rows: Batch, places: Tensor, lengths: Tensor) -> Batch:
    """The elements at some places of each row; what lies behind the lengths is padding."""
    places = places.clamp(max=rows.inputs.shape[1] - 1)
    each = torch.arange(len(places)).unsqueeze(1)
    return rows._replace(inputs=rows.inputs[each, places], lengths=lengths)


def _warp(rows: Batch, random: torch.Generator) -> Batch:
    lengths = _lengths(rows).to(rows.inputs.dtype).unsqueeze(1)
    strength = WARP * (2 * torch.rand(len(rows.inputs), 1, generator=random) - 1)
    time = torch.arange(rows.inputs.shape[1], dtype=rows.inputs.dtype)
    last = (lengths - 1).clamp(min=1)
    warped = time + strength * last * torch.sin(math.pi * time / last) / math.pi
    warped = torch.minimum(warped.clamp(min=0), last)
    before = warped.floor().long().clamp(max=rows.inputs.shape[1] - 1)
    after = (before + 1).clamp(max=rows.inputs.shape[1] - 1)
    after = torch.minimum(after, last.long())
    each = torch.arange(len(before)).unsqueeze(1)
    share = (warped - before).unsqueeze(2)
    return rows._replace(
        inputs=rows.inputs[each, before] * (1 - share) + rows.inputs[each, after] * share
    )


def _mixup(rows: Batch, random: torch.Generator) -> Batch:
    """Every row mixed with another one, once for each of their targets, weighted by the shares."""
    count = len(rows.inputs)
    other = torch.randperm(count, generator=random)
    # λ ~ Beta(a, a) from two Gamma draws, by Johnk's method: powers of uniform numbers.
    powers = torch.rand(2, count, 64, generator=random).double() ** (1 / MIXUP)
    sums = powers.sum(0)
    first = torch.where(sums <= 1, powers[0] / sums.clamp(min=1e-300), torch.nan)
    accepted = (~first.isnan()).int().argmax(1)
    share = first[torch.arange(count), accepted].nan_to_num(0.5).to(rows.inputs.dtype)
    wide = share.view(-1, *[1] * (rows.inputs.dim() - 1))
    mixed = wide * rows.inputs + (1 - wide) * rows.inputs[other]
    lengths = _lengths(rows)
    lengths = torch.maximum(lengths, lengths[other])
    weights = torch.ones(count) if rows.weights is None else rows.weights
    # Twice, because as many rows more count in the mean.
    both = torch.cat([2 * share * weights, 2 * (1 - share) * weights[other]])
    return Batch(
        torch.cat([mixed, mixed]),
        torch.cat([rows.targets, rows.targets[other]]),
        torch.cat([rows.starts, rows.starts]),
        torch.cat([lengths, lengths]),
        both,
    )


def _lengths(rows: Batch) -> Tensor:
    if rows.lengths is not None:
        return rows.lengths
    return torch.full((len(rows.inputs),), rows.inputs.shape[1])


AUGMENTATIONS: dict[str, Callable[[Batch, torch.Generator], Batch]] = {
    "noise": _noise,
    "scale": _scale,
    "crop": _crop,
    "warp": _warp,
    "dropout": _dropout,
    "mixup": _mixup,
}
FOR_TOKENS = ("crop", "dropout")  # those that leave numbers as they are
