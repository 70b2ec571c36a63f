"""Reversal: the source backwards.

    source   7 2 5 5 9
    target   ⟨ 9 5 5 2 7 ⟩

What came last is wanted first, what came first is wanted after all the rest: a state of fixed size
fills up as sources grow, while attention walks back along a diagonal.  Solved: 98 % exact.
"""

from __future__ import annotations

from threefold.data.draws import integers
from threefold.errors import ThreefoldError
from threefold.tasks.pairs import FIRST, Pairs, check_lengths, pairs

LONGEST = 4096


def reversal(
    lengths: tuple[int, int] = (1, 30), symbols: int = 16, *, seed: int = 0, count: int = 1000
) -> Pairs:
    """`count` rows of lengths from and up to `lengths`, each as likely, of `symbols` symbols."""
    check_lengths("reversal", lengths, count, LONGEST)
    if symbols < 2:
        raise ThreefoldError(f"reversal: {symbols} symbols; expected at least 2")
    low, high = lengths
    sizes = low + integers((seed, 0), high - low + 1, count)
    drawn = FIRST + integers((seed, 1), symbols, count, high)
    sources = [row[:n].tolist() for row, n in zip(drawn, sizes, strict=True)]
    size = FIRST + symbols
    return pairs("reversal", sources, [row[::-1] for row in sources], size, size)
