"""Number to words: a number as English words.

    source   ⟨ 4 0 0 7 2 1 3 ⟩
    target   ⟨ four million seven thousand two hundred thirteen ⟩

A word depends on a digit, on its position in its group of three, on its neighbours (thirteen) and
on how many digits follow (million), which is known only at the end.  Solved: 98 % exact.
"""

from __future__ import annotations

from collections.abc import Sequence

from threefold.data.random_by_address import integers_by_row
from threefold.tasks.pairs import FIRST_TOKEN, Pairs, check_lengths, pairs, sources_of
from threefold.tasks.task import Numbers, Task, address, declare

_SMALL = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen "
    "fifteen sixteen seventeen eighteen nineteen"
)
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety"
_SCALES = (
    "thousand million billion trillion quadrillion quintillion sextillion septillion octillion "
    "nonillion decillion"
)
SMALL, TENS, SCALES = (names.split() for names in (_SMALL, _TENS, _SCALES))
WORDS = ("⟨", "⟩", *SMALL, *TENS, "hundred", *SCALES)
DIGITS = ("⟨", "⟩", *"0123456789")
MOST_DIGITS = 3 * (len(SCALES) + 1)
_INDEX = {word: token for token, word in enumerate(WORDS)}


def number_to_words(lengths: tuple[int, int] = (1, 18), *, seed: int = 0) -> Task[Pairs]:
    """Numbers of `lengths` digits, all lengths equally likely, without leading zeros."""
    check_lengths("number_to_words", lengths, MOST_DIGITS)

    def draw(split: str, numbers: Numbers) -> Pairs:
        def make(attempt: int, rows: Numbers) -> list[list[int]]:
            return _draw_digits(address(seed, split, attempt), rows, lengths)

        sources = sources_of("number_to_words", split, numbers, make)
        targets = [[_INDEX[word] for word in words(number_of(row))] for row in sources]
        return pairs("number_to_words", sources, targets, len(DIGITS), len(WORDS))

    return declare("number_to_words", draw, length=lengths[1] + 2)


def _draw_digits(key: tuple[int, ...], rows: Numbers, lengths: tuple[int, int]) -> list[list[int]]:
    """One number per row as tokens of its digits, the first of them from 1 to 9."""
    low, high = lengths
    sizes, first, rest = (
        integers_by_row((*key, stream), rows, below, shape)
        for stream, (below, shape) in enumerate(((high - low + 1, 1), (9, 1), (10, high)))
    )
    rest[:, :1] = first + 1
    return [(FIRST_TOKEN + row[: low + n]).tolist() for row, (n,) in zip(rest, sizes, strict=True)]


def number_of(source: Sequence[int]) -> int:
    """The number that tokens represent."""
    return int("".join(DIGITS[token] for token in source))


def words(number: int) -> list[str]:
    """A number below 10^36 in English words, without hyphens and without "and"."""
    if number == 0:
        return [SMALL[0]]
    groups = []
    while number:
        number, group = divmod(number, 1000)
        groups.append(group)
    spoken: list[str] = []
    for index in reversed(range(len(groups))):
        if groups[index]:
            spoken += _below_thousand(groups[index])
            spoken += [SCALES[index - 1]] if index else []
    return spoken


def _below_thousand(number: int) -> list[str]:
    hundreds, rest = divmod(number, 100)
    spoken = [SMALL[hundreds], "hundred"] if hundreds else []
    if rest >= 20:
        spoken.append(TENS[rest // 10 - 2])
        rest %= 10
    return [*spoken, SMALL[rest]] if rest else spoken
