"""Time warping and random convolutions: the two classical methods whose loops run natively.

Nothing here has gradients; the plain versions are the definitions.
"""

from __future__ import annotations

from itertools import combinations
from typing import NamedTuple

import torch
from torch import Tensor

from threefold.kernels import library
from threefold.kernels.dispatch import register_kernel

TAPS = 9
KERNELS: tuple[tuple[int, ...], ...] = tuple(combinations(range(TAPS), 3))  # where a weight is 2


class ConvolutionPlan(NamedTuple):
    """Which random convolutions are computed; all int64 but for the biases."""

    dilations: Tensor  # [J]
    counts: Tensor  # [J]: biases of every kernel at a dilation
    channel_counts: Tensor  # [J, 84]
    channels: Tensor  # those of each kernel at each dilation, one after another
    biases: Tensor  # [F]


def native_time_warping(
    x: Tensor, y: Tensor, x_lengths: Tensor | None, y_lengths: Tensor | None, window: float
) -> Tensor:
    """Distances [N, M] by the native kernel."""
    (queries, x_length, channels), (references, y_length, _) = x.shape, y.shape
    sizes = [y_length, min(x_length, y_length), channels]
    workspace = library.workspace("time_warping_workspace", x, sizes)
    distances = x.new_empty(queries, references)
    sizes = [queries, references, x_length, y_length, channels]
    inputs = [x, y, x_lengths, y_lengths]
    library.call("time_warping", [distances, workspace], inputs, sizes, [window])
    return distances


def plain_time_warping(
    x: Tensor, y: Tensor, x_lengths: Tensor | None, y_lengths: Tensor | None, window: float
) -> Tensor:
    """Distances [N, M], one pair after another."""
    distances = x.new_empty(len(x), len(y))
    for i, query in enumerate(x):
        query = query if x_lengths is None else query[: int(x_lengths[i])]
        for j, reference in enumerate(y):
            other = reference if y_lengths is None else reference[: int(y_lengths[j])]
            distances[i, j] = _warped_distance(query, other, window)
    return distances


def _warped_distance(x: Tensor, y: Tensor, window: float) -> float:
    """d(r, c) = |x_r − y_c|² + min(d(r−1, c−1), d(r−1, c), d(r, c−1)), rows of the longer one."""
    rows, columns = (x, y) if len(x) >= len(y) else (y, x)
    costs = torch.cdist(rows, columns, compute_mode="donot_use_mm_for_euclid_dist").square()
    table, band = costs.tolist(), int(window * len(columns))
    infinite = float("inf")
    before = [0.0, *[infinite] * len(columns)]
    for row, cost in enumerate(table):
        centre = (row + 1) * len(columns) // (len(rows) + 1)
        here = [infinite] * (len(columns) + 1)
        for c in range(max(0, centre - band), min(len(columns), centre + band + 1)):
            here[c + 1] = cost[c] + min(before[c], before[c + 1], here[c])
        before = here
    return before[-1]


def native_random_convolutions(
    series: Tensor, plan: ConvolutionPlan, lengths: Tensor | None
) -> Tensor:
    """Features [B, F] of series [B, L, D] by the native kernel."""
    batch, length, depth = series.shape
    workspace = library.workspace(
        "random_convolutions_workspace", series, [depth, length, int(plan.dilations.max())]
    )
    features = series.new_empty(batch, len(plan.biases))
    library.call(
        "random_convolutions",
        [features, workspace],
        [
            *(series.transpose(1, 2), plan.biases.to(series.dtype), lengths),
            *(plan.dilations, plan.counts, plan.channel_counts, plan.channels),
        ],
        [batch, depth, length, len(plan.dilations), len(plan.biases)],
    )
    return features


def plain_random_convolutions(
    series: Tensor, plan: ConvolutionPlan, lengths: Tensor | None
) -> Tensor:
    """Features [B, F] of series [B, L, D], one series and kernel after another."""
    biases = plan.biases.to(series.dtype)
    rows = []
    for number, row in enumerate(series):
        row = row if lengths is None else row[: int(lengths[number])]
        features = []
        for kernel in responses(row, plan):
            bias = biases[kernel.first_bias : kernel.first_bias + kernel.biases]
            counted = (kernel.counted > bias.unsqueeze(1)).to(row.dtype)
            features.append(counted.sum(1) / max(1, counted.shape[1]))
        rows.append(torch.cat(features))
    return torch.stack(rows)


class Response(NamedTuple):
    """What a kernel answers along a series."""

    values: Tensor  # [L]
    counted: Tensor  # the part of them that its features count
    first_bias: int
    biases: int


def responses(row: Tensor, plan: ConvolutionPlan) -> list[Response]:
    """The responses of all kernels at all dilations to a series [L, D]."""
    found, first_bias, first_channel = [], 0, 0
    for i, dilation in enumerate(plan.dilations.tolist()):
        shifted = shifts(row, dilation)
        total = -shifted.sum(0)
        for number, kernel in enumerate(KERNELS):
            count = int(plan.channel_counts[i, number])
            channels = plan.channels[first_channel : first_channel + count]
            values = (total + 3 * shifted[list(kernel)].sum(0))[:, channels].sum(1)
            edge = TAPS // 2 * dilation if (i + number) % 2 else 0
            counted = values[edge : max(edge, len(values) - edge)]
            found.append(Response(values, counted, first_bias, int(plan.counts[i])))
            first_bias += int(plan.counts[i])
            first_channel += count
    return found


def shifts(row: Tensor, dilation: int) -> Tensor:
    """x_{t+(g−4)δ} [9, L, D] for g = 0 … 8, with zeros outside the series."""
    reach = TAPS // 2 * dilation
    padded = torch.nn.functional.pad(row, (0, 0, reach, reach))
    return torch.stack([padded[g * dilation : g * dilation + len(row)] for g in range(TAPS)])


register_kernel("time_warping", "cpu", native_time_warping)
register_kernel("random_convolutions", "cpu", native_random_convolutions)
