"""feature = share of t at which (w ∗ x)_t > b:  MiniRocket's random convolutions.

84 fixed kernels of nine weights (2 three times, −1 six times) at several dilations; the biases are
quantiles of the responses to training examples.  A linear model on the features is one of the
strongest classifiers of series, and takes seconds.
Dempster, Schmidt & Webb 2021, "MiniRocket: A Very Fast (Almost) Deterministic Transform for Time
Series Classification".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from threefold.errors import ThreefoldError
from threefold.kernels import ops
from threefold.kernels.classical import KERNELS, TAPS, ConvolutionPlan, shifts

FEATURES = 10_000
MOST_DILATIONS = 32  # of a kernel
MOST_CHANNELS = 9  # of a kernel
# 2 at the three places of a kernel, −1 at the others.
WEIGHTS = torch.tensor([[2.0 if g in kernel else -1.0 for g in range(TAPS)] for kernel in KERNELS])


@dataclass(frozen=True)
class RandomConvolutions:
    """The features of series: which kernels at which dilations, and their biases."""

    plan: ConvolutionPlan
    length: int  # of the training series
    channels: int

    @classmethod
    def fit(
        cls,
        series: Tensor,
        lengths: Tensor | None = None,
        *,
        weights: Tensor | None = None,
        features: int = FEATURES,
        seed: int = 0,
    ) -> RandomConvolutions:
        """Choose dilations, channels and biases for series [N, L, D].

        weights [N]: how likely each series is drawn; None: all alike.
        """
        if series.dim() != 3 or 0 in series.shape:
            raise ThreefoldError(
                f"series are {tuple(series.shape)}, expected [examples, length, channels]"
            )
        _, length, channels = series.shape
        dilations, counts = choose_dilations(max(length, TAPS), features)
        random = np.random.default_rng((seed, 21))
        channel_counts, chosen = _choose_channels(random, len(dilations), channels)
        plan = ConvolutionPlan(
            torch.from_numpy(dilations),
            torch.from_numpy(counts),
            torch.from_numpy(channel_counts),
            torch.from_numpy(chosen),
            torch.zeros(int(counts.sum()) * len(KERNELS)),
        )
        shape = channel_counts.shape
        if weights is None:
            examples = torch.from_numpy(random.integers(len(series), size=shape))
        else:
            ends = weights.double().cumsum(0)
            drawn = torch.from_numpy(random.random(shape)) * ends[-1]
            examples = torch.searchsorted(ends, drawn, right=True).clamp(max=len(series) - 1)
        plan = plan._replace(biases=_fit_biases(series, lengths, plan, examples))
        return cls(plan, length, channels)

    def transform(self, series: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Features [N, F] of series [N, L, D], each a share from 0 to 1."""
        if series.dim() != 3 or series.shape[2] != self.channels:
            raise ThreefoldError(
                f"series are {tuple(series.shape)}, expected [examples, length, {self.channels}]"
            )
        widest = int(self.plan.dilations.max())
        if series.shape[1] < widest:  # the kernels reach beyond both ends, where there are zeros
            missing = widest - series.shape[1]
            if lengths is None:
                lengths = torch.full((len(series),), series.shape[1])
            series = torch.nn.functional.pad(series, (0, 0, 0, missing))
        return ops.random_convolutions(series, self.plan, lengths)


def choose_dilations(length: int, features: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Dilations, exponentially spaced, and how many biases each kernel has at each of them."""
    per_kernel = max(1, features // len(KERNELS))
    most = min(per_kernel, MOST_DILATIONS)
    widest = np.log2((length - 1) / (TAPS - 1))
    spaced = np.logspace(0, widest, most, base=2).astype(np.int32)
    dilations, repeats = np.unique(spaced, return_counts=True)
    counts = (repeats * (per_kernel / most)).astype(np.int64)
    for i in range(per_kernel - int(counts.sum())):
        counts[i % len(counts)] += 1
    return dilations.astype(np.int64), counts


def quantile_levels(count: int) -> NDArray[Any]:
    """A low-discrepancy sequence of levels: multiples of the golden ratio, modulo 1."""
    golden = (np.sqrt(5) + 1) / 2
    levels: NDArray[Any] = (np.arange(1, count + 1) * golden % 1).astype(np.float32)
    return levels


def _choose_channels(
    random: np.random.Generator, dilations: int, channels: int
) -> tuple[NDArray[Any], NDArray[Any]]:
    """The channels of each kernel at each dilation: few are likelier than many."""
    most = np.log2(min(channels, MOST_CHANNELS) + 1)
    shape = (dilations, len(KERNELS))
    counts = (2 ** random.uniform(0, most, shape)).astype(np.int64)
    chosen = [random.choice(channels, count, replace=False) for count in counts.ravel()]
    return counts, np.concatenate(chosen).astype(np.int64)


def _fit_biases(
    series: Tensor, lengths: Tensor | None, plan: ConvolutionPlan, examples: Tensor
) -> Tensor:
    """Quantiles of each kernel's response to a training example drawn for it."""
    levels = torch.from_numpy(quantile_levels(len(plan.biases)))
    last = None if lengths is None else lengths[examples]
    parts, first = [], 0
    channels = torch.split(plan.channels, plan.channel_counts.flatten().tolist())
    for i, dilation in enumerate(plan.dilations.tolist()):
        used = torch.zeros(len(KERNELS), series.shape[2], dtype=series.dtype)
        for number, chosen in enumerate(channels[i * len(KERNELS) : (i + 1) * len(KERNELS)]):
            used[number, chosen] = 1
        rows = (series[examples[i]] * used.unsqueeze(1)).sum(2)  # [84, L]
        if last is not None:
            outside = torch.arange(rows.shape[1]) >= last[i].unsqueeze(1)
            rows = rows.masked_fill(outside, 0)
        response = torch.einsum("kg,glk->kl", WEIGHTS.to(rows.dtype), shifts(rows.T, dilation))
        if last is not None:
            response = response.masked_fill(outside, torch.inf)  # behind all others when sorted
        count = int(plan.counts[i]) * len(KERNELS)
        wanted = levels[first : first + count].reshape(len(KERNELS), -1)
        parts.append(_quantiles(response, wanted, None if last is None else last[i]))
        first += count
    return torch.cat(parts).float()


def _quantiles(values: Tensor, levels: Tensor, lengths: Tensor | None) -> Tensor:
    """Quantiles of rows [K, L] at levels [K, N], interpolated linearly, one row after another."""
    ordered = torch.from_numpy(np.sort(values.numpy(), axis=1))  # much faster than torch's
    count = torch.full((len(values),), values.shape[1]) if lengths is None else lengths
    places = levels * (count.unsqueeze(1) - 1)
    below = places.long()
    above = torch.minimum(below + 1, count.unsqueeze(1) - 1)
    low, high = ordered.gather(1, below), ordered.gather(1, above)
    return (low + (high - low) * (places - below)).flatten()
