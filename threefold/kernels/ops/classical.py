"""Time warping, random convolutions and word vectors, which classical models are made of."""

from __future__ import annotations

from torch import Tensor

from threefold.kernels import classical as _classical
from threefold.kernels.checks import check_lengths, refuse
from threefold.kernels.classical import ConvolutionPlan
from threefold.kernels.dispatch import kernel_for
from threefold.kernels.word_vectors import LANES, Noise, WordPass, plain_word_vectors


def time_warping(
    x: Tensor,
    y: Tensor,
    x_lengths: Tensor | None = None,
    y_lengths: Tensor | None = None,
    *,
    window: float = 1.0,
) -> Tensor:
    """Distances [N, M] by dynamic time warping of queries [N, L, D] and references [M, L', D].

    Squared differences are summed along the best path.  window: how far a path may be from the
    diagonal, as a share of the shorter series; 1 allows every path.
    """
    if x.dim() != 3 or y.dim() != 3 or x.shape[2] != y.shape[2] or x.dtype != y.dtype:
        refuse("time_warping", "x [N, L, D] and y [M, L', D] of one dtype", {"x": x, "y": y})
    for lengths, series in ((x_lengths, x), (y_lengths, y)):
        check_lengths(lengths, series.shape[1])
    run = kernel_for("time_warping", x) or _classical.plain_time_warping
    distances: Tensor = run(x, y, x_lengths, y_lengths, window)
    return distances


def random_convolutions(
    series: Tensor, plan: ConvolutionPlan, lengths: Tensor | None = None
) -> Tensor:
    """MiniRocket's features [B, F] of series [B, L, D]: shares of elements above the biases."""
    if series.dim() != 3:
        refuse("random_convolutions", "series [B, L, D]", {"series": series})
    check_lengths(lengths, series.shape[1])
    run = kernel_for("random_convolutions", series) or _classical.plain_random_convolutions
    features: Tensor = run(series, plan, lengths)
    return features


def word_vectors(
    inputs: Tensor, outputs: Tensor, words: Tensor, sentences: Tensor, noise: Noise, what: WordPass
) -> None:
    """Train word vectors on sentences, in place: inputs and outputs [V, W], W a multiple of 16.

    words [N] are numbers of rows, sentences [S + 1] where each sentence begins, and N.
    """
    if inputs.dim() != 2 or inputs.shape != outputs.shape or inputs.shape[1] % LANES:
        refuse("word_vectors", "[V, W], W in 16s", {"inputs": inputs, "outputs": outputs})
    run = kernel_for("word_vectors", inputs) or plain_word_vectors
    run(inputs, outputs, words, sentences, noise, what)
