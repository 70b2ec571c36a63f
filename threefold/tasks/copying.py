"""Copying: a few symbols, a long silence, a signal, and then the symbols again.

    inputs   3 1 4 · · · · · · ▸ · · ·       · is 0, ▸ the last token of the vocabulary
    targets                      3 1 4       nothing else counts

The symbols have to be remembered through the silence.  A memory that decays by a factor a per
element keeps a^silence of them; without memory a symbol of the alphabet is guessed, 1/8.
Solved: 99 % of the symbols.
Hochreiter & Schmidhuber 1997; as in Arjovsky et al. 2016, "Unitary Evolution Recurrent Neural
Networks" (ten symbols out of eight; a vanilla LSTM stays at chance for silences of 500).
"""

from __future__ import annotations

import numpy as np

from threefold.data.loaders import IGNORE, Batch
from threefold.data.random_by_address import integers_by_row
from threefold.errors import ThreefoldError
from threefold.tasks.task import Numbers, Task, address, declare, make_batch


def copying(
    silence: int = 100, symbols: int = 10, alphabet: int = 8, *, seed: int = 0
) -> Task[Batch]:
    """Rows of silence + 2·symbols elements; the signal is the last element of the silence."""
    if silence < 1 or symbols < 1 or alphabet < 2:
        raise ThreefoldError(
            f"copying: a silence of {silence}, {symbols} symbols, an alphabet of {alphabet}; "
            "expected at least 1, 1 and 2"
        )
    length, signal = silence + 2 * symbols, alphabet + 1

    def draw(split: str, numbers: Numbers) -> Batch:
        drawn = 1 + integers_by_row(address(seed, split), numbers, alphabet, symbols)
        inputs = np.zeros((len(numbers), length), dtype=np.int64)
        inputs[:, :symbols], inputs[:, -symbols - 1] = drawn, signal
        targets = np.full_like(inputs, IGNORE)
        targets[:, -symbols:] = drawn
        return make_batch(inputs, targets)

    sizes = {"vocabulary": alphabet + 2, "classes": alphabet + 2}
    return declare("copying", draw, length=length, chance=1 / alphabet, **sizes)
