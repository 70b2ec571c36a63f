"""Selective copying: repeat, in order, the symbols that are scattered among noise.

    inputs   · 3 · · 1 · · · 4 · ▸ ▸ ▸       · is 0, the noise; ▸ is the mark, the last token
    targets                      3 1 4       nothing else counts

The positions of the symbols are random, so what is remembered must depend on the input: a fixed
filter fails, a selective memory does not.  Chance: one symbol of the alphabet.  Solved: 95 % of the
symbols.
Jing et al. 2019 (denoising); Gu & Dao 2023, "Mamba: Linear-Time Sequence Modeling with Selective
State Spaces", table 1: length 4,096, 16 symbols, a vocabulary of 16 with noise and mark.
"""

from __future__ import annotations

import numpy as np

from threefold.data.loaders import IGNORE, Batch
from threefold.data.random_by_address import by_row, choose, integers_by_row
from threefold.errors import ThreefoldError
from threefold.tasks.task import Numbers, Task, address, declare, make_batch


def selective_copying(
    length: int = 4096, symbols: int = 16, vocabulary: int = 16, *, seed: int = 0
) -> Task[Batch]:
    """Rows of `length` elements, the last `symbols` of them marks; positions are uniform."""
    if symbols < 1 or length < 2 * symbols or vocabulary < 4:
        raise ThreefoldError(
            f"selective_copying: length {length}, {symbols} symbols, a vocabulary of {vocabulary}; "
            "expected at least 1 symbol, two elements per symbol, and 4 tokens"
        )
    room, alphabet = length - symbols, vocabulary - 2

    def draw(split: str, numbers: Numbers) -> Batch:
        drawn = 1 + integers_by_row(address(seed, split, 0), numbers, alphabet, symbols)
        positions = choose(by_row(address(seed, split, 1), numbers, room), np.ones(room), symbols)
        inputs = np.zeros((len(numbers), length), dtype=np.int64)
        np.put_along_axis(inputs, np.sort(positions, 1), drawn, 1)
        inputs[:, room:] = vocabulary - 1
        targets = np.full_like(inputs, IGNORE)
        targets[:, room:] = drawn
        return make_batch(inputs, targets)

    name = "selective_copying" if length > 256 else "selective_copying-mini"
    sizes = {"vocabulary": vocabulary, "classes": vocabulary}
    return declare(name, draw, length=length, chance=1 / alphabet, **sizes)
