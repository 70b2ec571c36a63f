"""−log σ(h·o_t) − Σ_n log σ(−h·o_n), one step of gradient descent for every word and its window

The inner loop of word vectors by negative sampling. The plain version is the definition; the native
one makes the same draws, so both give the same vectors with one thread.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from threefold.kernels import library
from threefold.kernels.dispatch import register_kernel

LANES = 16  # rows are whole vectors of the widest instruction set
_GOLDEN_GAMMA, _WORD = 0x9E3779B97F4A7C15, (1 << 64) - 1


class Noise(NamedTuple):
    """A table of aliases (Walker 1977): a cell drawn evenly, then itself or its alias."""

    thresholds: Tensor  # [V] int64: the share of a cell that is its own, in units of 2⁻³²
    aliases: Tensor  # [V] int64


class WordPass(NamedTuple):
    """What one pass over sentences does."""

    window: int
    negatives: int
    cbow: bool
    key: int  # of the draws, 63 bits
    first_rate: float
    last_rate: float


def native_word_vectors(
    inputs: Tensor, outputs: Tensor, words: Tensor, sentences: Tensor, noise: Noise, what: WordPass
) -> None:
    """Update inputs and outputs [V, W] in place by the native kernel."""
    vocabulary, width = inputs.shape
    workspace = library.workspace("word_vectors_workspace", inputs, [width, what.negatives])
    sizes = [len(sentences) - 1, vocabulary, width, what.window, what.negatives]
    library.call(
        "word_vectors",
        [inputs, outputs, workspace],
        [words, sentences, noise.thresholds, noise.aliases],
        [*sizes, int(what.cbow), what.key],
        [what.first_rate, what.last_rate],
    )


def plain_word_vectors(
    inputs: Tensor, outputs: Tensor, words: Tensor, sentences: Tensor, noise: Noise, what: WordPass
) -> None:
    """Update inputs and outputs [V, W] in place, one pair after another."""
    text, borders = words.tolist(), sentences.tolist()
    draws = 1 + 2 * what.window * what.negatives
    for begin, end in pairwise(borders):
        for place in range(begin, end):
            first = place * draws
            reach = 1 + ((_draw(what.key, first) >> 32) * what.window >> 32)
            window = range(max(begin, place - reach), min(end, place + reach + 1))
            around = [text[other] for other in window if other != place]
            rate = what.first_rate + (what.last_rate - what.first_rate) * place / borders[-1]
            for number, group in enumerate([around] if what.cbow else [[word] for word in around]):
                start = first + 1 + number * what.negatives
                chosen = [
                    text[place],
                    *_negatives(noise, what.key, start, what.negatives, text[place]),
                ]
                _descend(inputs, outputs, group, chosen, rate)


def _descend(
    inputs: Tensor, outputs: Tensor, group: list[int], targets: list[int], rate: float
) -> None:
    """A step for the mean of a group of words and its targets, the true one first."""
    if not group:
        return
    h = inputs[group].mean(0)
    labels = torch.zeros(len(targets), dtype=h.dtype)
    labels[0] = 1
    slopes = rate * (labels - torch.sigmoid(outputs[targets] @ h))
    gradient = torch.zeros_like(h)
    for target, slope in zip(targets, slopes, strict=True):
        gradient += slope * outputs[target]
        outputs[target] += slope * h
    for word in group:
        inputs[word] += gradient / len(group)


def _negatives(noise: Noise, key: int, start: int, count: int, word: int) -> list[int]:
    """The words drawn from `start` on, without the true one."""
    drawn = []
    for number in range(start, start + count):
        bits = _draw(key, number)
        cell = (bits >> 32) * len(noise.aliases) >> 32
        own = (bits & 0xFFFFFFFF) < int(noise.thresholds[cell])
        drawn.append(cell if own else int(noise.aliases[cell]))
    return [other for other in drawn if other != word]


def _draw(key: int, number: int) -> int:
    """The draw of this number from the SplitMix64 sequence that starts at `key`."""
    bits = (key + (number + 1) * _GOLDEN_GAMMA) & _WORD
    bits = ((bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
    bits = ((bits ^ (bits >> 27)) * 0x94D049BB133111EB) & _WORD
    return bits ^ (bits >> 31)


def noise_table(shares: np.ndarray[tuple[int], np.dtype[np.float64]]) -> Noise:
    """The table of aliases of these shares, which need not sum to one."""
    scaled = shares / shares.sum() * len(shares)
    own, aliases = np.ones(len(shares)), np.arange(len(shares))
    small, large = list(np.flatnonzero(scaled < 1)), list(np.flatnonzero(scaled >= 1))
    while small and large:
        low, high = small.pop(), large[-1]
        own[low], aliases[low] = scaled[low], high
        scaled[high] -= 1 - scaled[low]
        if scaled[high] < 1:
            small.append(large.pop())
    thresholds = np.rint(own * 2.0**32).astype(np.int64)
    return Noise(torch.from_numpy(thresholds), torch.from_numpy(aliases.astype(np.int64)))


register_kernel("word_vectors", "cpu", native_word_vectors)
