"""Modular arithmetic: an expression without brackets, its value modulo 5.

    inputs   2 × 3 + 4 − 1 × 2      answer 3        6 + 4 − 2 = 8, and 8 mod 5 = 3

Products bind more strongly than sums, so two numbers have to be remembered: the sum so far and the
current product.
Tokens: the digits 0 to 4, then +, −, ×.  `train` and `valid` have 1 to 39 elements, `test` 41 to
499, always an odd number.  Chance: 1/5.  Solved: 99 %.
As in Delétang et al. 2023, "Neural Networks and the Chomsky Hierarchy" (modular arithmetic,
simple).
"""

from __future__ import annotations

import numpy as np

from threefold.data.loaders import Batch
from threefold.data.random_by_address import integers_by_row
from threefold.tasks.lengths import check_ranges, cut, lengths_of
from threefold.tasks.task import Numbers, Task, address, declare, make_batch

MODULUS = 5
PLUS, MINUS, TIMES = MODULUS, MODULUS + 1, MODULUS + 2
SIGNS = "01234+−×"


def modular_arithmetic(
    trained: tuple[int, int] = (1, 40), tested: tuple[int, int] = (41, 500), *, seed: int = 0
) -> Task[Batch]:
    """Expressions of lengths in the range `trained` or `tested`; even lengths lose one element."""
    check_ranges("modular_arithmetic", trained, tested)

    def draw(split: str, numbers: Numbers) -> Batch:
        drawn, longest = lengths_of(seed, split, numbers, trained, tested)
        lengths = drawn - (drawn + 1) % 2
        tokens = integers_by_row(address(seed, split, 1), numbers, MODULUS, longest)
        signs = integers_by_row(address(seed, split, 2), numbers, 3, longest)
        tokens[:, 1::2] = MODULUS + signs[:, 1::2]
        return make_batch(cut(tokens, lengths), evaluate(tokens, lengths), lengths)

    return declare("modular_arithmetic", draw, length=max(trained[1], tested[1]))


def evaluate(tokens: Numbers, lengths: Numbers) -> Numbers:
    """The values of expressions [N, L] of odd lengths [N], read from left to right."""
    total, product = np.zeros_like(lengths), tokens[:, 0].copy()
    for position in range(1, tokens.shape[1] - 1, 2):
        sign, digit, inside = tokens[:, position], tokens[:, position + 1], position < lengths
        times = sign == TIMES
        after = np.where(times, product * digit, np.where(sign == MINUS, -digit, digit))
        total = np.where(inside & ~times, total + product, total) % MODULUS
        product = np.where(inside, after, product) % MODULUS
    value: Numbers = (total + product) % MODULUS
    return value
