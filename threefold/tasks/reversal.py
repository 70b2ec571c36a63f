"""Reversal: write the source backwards.

    source   ⟨ 7 2 5 5 9 ⟩
    target   ⟨ 9 5 5 2 7 ⟩

The last symbol comes first, and the first one after all others: a state of fixed size fills up as
sources get longer, while attention walks back along a diagonal.  Solved: 98 % exact at length 30.
"""

from __future__ import annotations

from threefold.data.random_by_address import integers_by_row
from threefold.errors import ThreefoldError
from threefold.tasks.pairs import FIRST_TOKEN, Pairs, check_lengths, pairs, sources_of
from threefold.tasks.task import Numbers, Task, address, declare

LONGEST_SOURCE = 4096
MOST_SYMBOLS = 250  # symbols


def reversal(
    lengths: tuple[int, int] = (1, 30), symbols: int = 16, *, seed: int = 0
) -> Task[Pairs]:
    """Sources of `lengths` elements, all lengths equally likely, out of `symbols` symbols."""
    check_lengths("reversal", lengths, LONGEST_SOURCE)
    if not 2 <= symbols <= MOST_SYMBOLS:
        raise ThreefoldError(f"reversal: {symbols} symbols; expected from 2 to {MOST_SYMBOLS}")
    (low, high), size = lengths, FIRST_TOKEN + symbols

    def draw(split: str, numbers: Numbers) -> Pairs:
        def make(attempt: int, rows: Numbers) -> list[list[int]]:
            for_sizes, for_symbols = (address(seed, split, attempt, i) for i in range(2))
            sizes = low + integers_by_row(for_sizes, rows, high - low + 1, 1)
            drawn = FIRST_TOKEN + integers_by_row(for_symbols, rows, symbols, high)
            return [row[:n].tolist() for row, (n,) in zip(drawn, sizes, strict=True)]

        sources = sources_of("reversal", split, numbers, make)
        return pairs("reversal", sources, [row[::-1] for row in sources], size, size)

    return declare("reversal", draw, length=high + 2, vocabulary=size, classes=size)
