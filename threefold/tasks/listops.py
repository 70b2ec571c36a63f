"""ListOps: the value of nested operations on lists of digits.

    [MAX 2 9 [MIN 4 7 ] 0 ]             answer 9
    [SM [MED 1 5 8 ] 7 [MAX 3 6 ] ]     answer 8        5 + 7 + 6 = 18, its last digit

MAX, MIN, MED (the median, rounded down for an even list) and SM (the sum modulo 10).  An element is
an operation with probability 1/4, of 2 to 10 elements, down to a depth of 10.  Expressions longer
than 500 and shorter than 2,000 are used; brackets count, the parentheses of the paper do not.
Chance: the most frequent answer.  No model is known to solve it; here 60 % counts as solved.
Nangia & Bowman 2018, "ListOps: A Diagnostic Dataset for Latent Tree Learning"; the probabilities,
lengths and sizes are those of the Long Range Arena (Tay et al. 2020).  The expressions are
generated here, so the published results are comparable, but for other examples.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from threefold.data.loaders import Batch
from threefold.data.random_by_address import hashed
from threefold.errors import ThreefoldError
from threefold.tasks.task import Numbers, Task, address, declare, make_batch

OPERATIONS = ("[MAX", "[MIN", "[MED", "[SM")
WORDS = (*"0123456789", *OPERATIONS, "]")
NESTED_PROBABILITY = 0.25  # the probability of an operation in place of a digit
TREES_PER_ATTEMPT, ATTEMPTS = 32, 200  # trees tried at once for a row, and how often


class Level(NamedTuple):
    """The nodes of one depth, tree by tree; children of one parent are adjacent."""

    owner: Numbers  # its tree
    parent: Numbers  # its parent in the level above
    address: Numbers  # the address of its random numbers
    children: Numbers  # 0: a digit
    sizes: Numbers  # tokens of each tree up to the next level


def listops(
    lengths: tuple[int, int] = (500, 2000), depth: int = 10, arguments: int = 10, *, seed: int = 0
) -> Task[Batch]:
    """Expressions longer than the first and shorter than the second of `lengths`."""
    low, high = lengths
    if not 0 <= low < high - 1 or depth < 2 or arguments < 2:
        raise ThreefoldError(
            f"listops: lengths between {low} and {high}, depth {depth}, {arguments} arguments; "
            "expected lengths that differ by at least 2, a depth and arguments of at least 2"
        )

    def draw(split: str, numbers: Numbers) -> Batch:
        forest = Forest(address(seed, split), high, depth, arguments)
        levels = list(forest.levels(forest.choose(numbers, low)))
        tokens, sizes = write(levels, forest, len(numbers))
        return make_batch(tokens, evaluate(levels, forest), sizes)

    name = "listops" if high > 200 else "listops-mini"
    return declare(name, draw, length=high - 1)


class Forest:
    """Numbered trees: each can be generated again, alone or with others."""

    def __init__(self, where: tuple[int, ...], high: int, depth: int, arguments: int) -> None:
        self.where, self.high, self.depth, self.arguments = where, high, depth, arguments

    def choose(self, rows: Numbers, low: int) -> Numbers:
        """The first tree of each row that has a length between `low` and `high`."""
        chosen = np.full(len(rows), -1, dtype=np.int64)
        for block in range(ATTEMPTS):
            left = np.flatnonzero(chosen < 0)
            if len(left) == 0:
                return chosen
            trees = (rows[left, None] * ATTEMPTS + block) * TREES_PER_ATTEMPT + np.arange(
                TREES_PER_ATTEMPT
            )
            *_, last = self.levels(trees.ravel())
            fits = ((last.sizes > low) & (last.sizes < self.high)).reshape(trees.shape)
            first = np.take_along_axis(trees, fits.argmax(1)[:, None], 1)[:, 0]
            chosen[left] = np.where(fits.any(1), first, -1)
        raise ThreefoldError(
            f"listops: no expression between {low} and {self.high} long in "
            f"{TREES_PER_ATTEMPT * ATTEMPTS} attempts; expected lengths that this depth and this "
            "number of arguments can reach"
        )

    def levels(self, trees: Numbers) -> Iterator[Level]:
        """Level after level; a tree that has reached `high` tokens stops growing."""
        owner, parent = np.arange(len(trees)), np.zeros(len(trees), dtype=np.int64)
        sizes = np.ones_like(parent)
        for depth in range(self.depth):
            starts = np.searchsorted(owner, owner)
            node_address = trees[owner] * self.high + np.arange(len(owner)) - starts
            nested = hashed((*self.where, depth, 0), node_address) < NESTED_PROBABILITY
            if depth == self.depth - 1:
                nested[:] = False
            counts = 2 + hashed((*self.where, depth, 1), node_address) * (self.arguments - 1)
            children = np.where(nested, counts.astype(np.int64), 0)
            # The operator replaces a digit, so an operation adds a bracket and its list.
            sizes = sizes + np.bincount(owner, children + nested, len(trees)).astype(np.int64)
            yield Level(owner, parent, node_address, children, sizes)
            children = np.where(sizes[owner] < self.high, children, 0)
            if not children.any():
                return
            owner, parent = np.repeat(owner, children), np.repeat(np.arange(len(owner)), children)

    def symbols(self, level: Level, depth: int, below: int) -> Numbers:
        """The digits (below 10) or operations (below 4) of a level's nodes."""
        return (hashed((*self.where, depth, below), level.address) * below).astype(np.int64)


def write(levels: list[Level], forest: Forest, rows: int) -> tuple[Numbers, Numbers]:
    """The expressions as tokens [rows, longest], padded with 0, and their lengths."""
    sizes = [1 + (level.children > 0) for level in levels]
    for depth in reversed(range(1, len(levels))):
        below = np.bincount(levels[depth].parent, sizes[depth], len(sizes[depth - 1]))
        sizes[depth - 1] = sizes[depth - 1] + below.astype(np.int64)
    tokens = np.zeros((rows, int(sizes[0].max())), dtype=np.int64)
    starts = np.zeros(rows, dtype=np.int64)
    for depth, (level, size) in enumerate(zip(levels, sizes, strict=True)):
        if depth:
            # After the parent's operator and the siblings before.
            before = np.cumsum(size) - size
            first_sibling = np.searchsorted(level.parent, level.parent)
            starts = starts[level.parent] + 1 + before - before[first_sibling]
        nested = level.children > 0
        digits, names = forest.symbols(level, depth, 10), forest.symbols(level, depth, 4)
        tokens[level.owner, starts] = np.where(nested, 10 + names, digits)
        tokens[level.owner[nested], (starts + size - 1)[nested]] = len(WORDS) - 1
    return tokens, sizes[0]


def evaluate(levels: list[Level], forest: Forest) -> Numbers:
    """The values of the expressions, computed from the deepest level up."""
    below: Numbers = np.zeros(0, dtype=np.int64)
    for depth in reversed(range(len(levels))):
        level = levels[depth]
        values, nested = forest.symbols(level, depth, 10), np.flatnonzero(level.children)
        if len(nested):
            counts = level.children[nested]
            starts = np.cumsum(counts) - counts
            ordered = below[np.lexsort((below, np.repeat(np.arange(len(counts)), counts)))]
            results = (
                ordered[starts + counts - 1],
                ordered[starts],
                (ordered[starts + (counts - 1) // 2] + ordered[starts + counts // 2]) // 2,
                np.add.reduceat(below, starts) % 10,
            )
            values[nested] = np.choose(forest.symbols(level, depth, 4)[nested], results)
        below = values
    return below


def text(tokens: Sequence[int]) -> str:
    """An expression as text."""
    return " ".join(WORDS[token] for token in tokens)
