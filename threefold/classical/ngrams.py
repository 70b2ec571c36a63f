"""p_k(w | c) = max(a(cw) − D(a), 0) / a(c·) + γ(c) p_{k−1}(w | c'),  p₀ = 1 / V

Interpolated n-grams with modified Kneser–Ney discounts: the longest n-grams count how often they
occur, shorter ones how many different tokens precede them.  c' is c without its first token.
Kneser & Ney 1995, "Improved backing-off for m-gram language modeling"; Chen & Goodman 1998, "An
empirical study of smoothing techniques for language modeling".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from threefold.errors import ThreefoldError

Numbers = NDArray[np.int64]
Array = NDArray[Any]
UNSEEN = -1


class _Order(NamedTuple):
    """The k-grams of one k: number i has the key `keys[i]` = prefix · V + token."""

    keys: Numbers  # sorted
    discounted: Array  # max(a − D(a), 0) / a(prefix), by k-gram
    rest: Array  # γ, by prefix; 1 where the prefix has no successor


@dataclass(frozen=True)
class NGrams:
    """A language model of counts; `fit` reads the tokens once."""

    vocabulary: int
    orders: tuple[_Order, ...]

    @classmethod
    def fit(cls, tokens: Array, vocabulary: int, order: int = 6) -> NGrams:
        """Count the n-grams of up to `order` tokens."""
        text = _check(tokens, vocabulary)
        if order < 1 or len(text) <= order:
            raise ThreefoldError(
                f"{len(text)} tokens cannot train n-grams of {order}; give more tokens, or a "
                "smaller order"
            )
        keys, counts, suffixes = _count(text, vocabulary, order)
        orders = []
        for k in range(order):
            longest = k == order - 1
            adjusted = counts[k] if longest else _preceded(suffixes[k + 1], len(keys[k]))
            prefixes = len(keys[k - 1]) if k else 1
            orders.append(_smooth(keys[k], adjusted, vocabulary, prefixes))
        return cls(vocabulary, tuple(orders))

    def log_probabilities(self, tokens: Array, wanted: Array | None = None) -> Array:
        """log p of each token after all tokens before it (at most the model's order).

        wanted: tokens that are asked for in place of those that came.
        """
        text = _check(tokens, self.vocabulary)
        asked = text if wanted is None else _check(wanted, self.vocabulary)
        probability = np.full(len(text), 1 / self.vocabulary)
        # The number of the (k−1)-gram before each token; that of no tokens is 0.
        prefix = np.zeros(len(text), np.int64)
        for order in self.orders:
            seen = prefix != UNSEEN
            gram = self._grams(order, prefix, text)
            scored = gram if wanted is None else self._grams(order, prefix, asked)
            probability[seen] *= order.rest[prefix[seen]]
            found = scored != UNSEEN
            probability[found] += order.discounted[scored[found]]
            prefix = np.concatenate([[UNSEEN], gram[:-1]])
        logarithms: Array = np.log(probability)
        return logarithms

    def _grams(self, order: _Order, prefix: Numbers, tokens: Numbers) -> Numbers:
        """The number of the k-gram that each token completes."""
        gram, seen = np.full(len(tokens), UNSEEN), prefix != UNSEEN
        gram[seen] = _find(order.keys, prefix[seen] * self.vocabulary + tokens[seen])
        return gram

    def distribution(self, context: Array) -> Array:
        """p of every token after a context."""
        past = _check(context, self.vocabulary)
        probability = np.full(self.vocabulary, 1 / self.vocabulary)
        every = np.arange(self.vocabulary)
        for k, order in enumerate(self.orders):
            prefix = self._number(past[len(past) - k :]) if k <= len(past) else UNSEEN
            if prefix == UNSEEN:
                break
            gram = _find(order.keys, prefix * self.vocabulary + every)
            found = gram != UNSEEN
            probability *= order.rest[prefix]
            probability[found] += order.discounted[gram[found]]
        return probability

    def _number(self, tokens: Numbers) -> int:
        """The number of a k-gram among those of its length."""
        number = 0
        for order, token in zip(self.orders, tokens.tolist(), strict=False):
            number = int(_find(order.keys, np.array([number * self.vocabulary + token]))[0])
            if number == UNSEEN:
                return UNSEEN
        return number


def _check(tokens: Array, vocabulary: int) -> Numbers:
    text = np.asarray(tokens).astype(np.int64)
    if text.ndim != 1 or (len(text) and not 0 <= text.min() <= text.max() < vocabulary):
        raise ThreefoldError(
            f"tokens of shape {text.shape}; expected one row of numbers from 0 to {vocabulary - 1}"
        )
    return text


def _count(
    text: Numbers, vocabulary: int, order: int
) -> tuple[list[Numbers], list[Numbers], list[Numbers]]:
    """For each k: the keys of the k-grams, their counts, and the numbers of their suffixes."""
    keys: list[Numbers] = []
    counts: list[Numbers] = []
    suffixes: list[Numbers] = []
    numbers = np.zeros(len(text) + 1, np.int64)  # of the (k−1)-gram that ends before each place
    for k in range(1, order + 1):
        positions = np.arange(k - 1, len(text))
        wanted = numbers[positions] * vocabulary + text[positions]
        found, first, inverse, count = np.unique(
            wanted, return_index=True, return_inverse=True, return_counts=True
        )
        keys.append(found)
        counts.append(count)
        suffixes.append(numbers[positions[first] + 1])  # the last k − 1 tokens of each k-gram
        numbers = numbers.copy()
        numbers[positions + 1] = inverse
    return keys, counts, suffixes


def _preceded(suffixes: Numbers, grams: int) -> Numbers:
    """How many different tokens precede each k-gram; 1 for one that only begins the text."""
    return np.maximum(np.bincount(suffixes, minlength=grams), 1)


def _smooth(keys: Numbers, adjusted: Numbers, vocabulary: int, prefixes: int) -> _Order:
    prefix = keys // vocabulary
    total = np.bincount(prefix, adjusted, prefixes)
    discount = discounts(adjusted)[np.minimum(adjusted, 3)]
    taken = np.bincount(prefix, discount, prefixes)
    divisor = np.where(total > 0, total, 1)
    rest = np.where(total > 0, taken / divisor, 1.0)
    return _Order(keys, (adjusted - discount) / divisor[prefix], rest)


def discounts(adjusted: Numbers) -> Array:
    """D(0) = 0, D(1), D(2), D(3 and more), from how many n-grams have the counts 1 to 4."""
    ones, twos, threes, fours = (int((adjusted == n).sum()) for n in (1, 2, 3, 4))
    if not (ones and twos and threes and fours):
        return np.array([0.0, 0.5, 0.75, 0.75])  # too few data for an estimate
    share = ones / (ones + 2 * twos)
    ratios = (twos / ones, threes / twos, fours / threes)
    estimated = [n - (n + 1) * share * ratio for n, ratio in enumerate(ratios, 1)]
    return np.array([0.0, *(min(max(d, 0.0), n) for n, d in enumerate(estimated, 1))])


def _find(keys: Numbers, wanted: Numbers) -> Numbers:
    """The place of each wanted key; UNSEEN where there is none."""
    places = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[places] == wanted, places, UNSEEN)
