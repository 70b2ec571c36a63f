"""Pathfinder: are the two dots joined by a dashed curve?

    ● ╌ ╌ ╮   ╌ ╌        two long dashed curves, short ones that distract, and two dots:
      ╭ ╌ ╯  ╌           at both ends of one curve (answer 1), or each at an end of another (0)
      ╰ ╌ ╌ ●   ╌ ╌

An image is read pixel by pixel, row after row, as brightness from 0 to 1; both answers are exactly
as frequent, in every two examples that follow each other.  Chance: 1/2.  Solved: 90 %.
Linsley et al. 2018, "Learning long-range spatial dependencies with horizontal gated recurrent
units"; Tay et al. 2020, "Long Range Arena" (32 × 32, and 128 × 128 as Path-X).  The images are our
own: curves turn by at most 39° from dash to dash and keep clear of all others and of themselves,
dashes have one brightness, smaller images have shorter curves, and the dots are as far apart for
one answer as for the other, so that their distance tells nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from threefold.data.draws import by_row
from threefold.data.stream import Batch
from threefold.errors import ThreefoldError
from threefold.tasks.task import Numbers, Task, address, declare, rows_of

FINE = 4  # places of a pixel in each direction where something can be
TURNS, BEND = 64, 7  # directions, and the most that a curve turns from dash to dash
DRAWS, ATTEMPTS = 6144, 50  # random numbers of one attempt at an image, and how often
# Multiples of 1/1024, so that all places are exact, and the same on every machine.
AHEAD = [
    (round(1024 * math.cos(2 * math.pi * turn / TURNS)) / 1024,
     round(1024 * math.sin(2 * math.pi * turn / TURNS)) / 1024)
    for turn in range(TURNS)
]  # fmt: skip


@dataclass(frozen=True)
class Look:
    """Sizes in pixels."""

    size: int
    dashes: int  # of a long curve
    distractors: int  # short curves of a third as many dashes
    dash: float
    gap: float
    thickness: float
    dot: float  # radius
    clear: float  # from the middle of a curve to that of another
    cell: float  # of the grid that says what is taken

    @classmethod
    def of(cls, size: int) -> Look:
        """What suits an image of that many pixels in each direction."""
        dashes, dash = min(14, max(4, size * 9 // 32)), max(2.0, size // 5 / 4)
        thickness, dot = max(1.0, size / 64), max(1.5, size / 32)
        clear, cell = max(2.5, size / 20), max(0.5, size / 128)
        distractors = size * dashes // 40
        return cls(size, dashes, distractors, dash, dash / 2, thickness, dot, clear, cell)

    @property
    def cells(self) -> int:
        return math.ceil(self.size / self.cell)

    @property
    def margin(self) -> float:
        """Between the edge and what is drawn: there is room for a dot."""
        return self.dot + 0.5

    @property
    def alike(self) -> float:
        """How much the distances between dots may differ."""
        return self.size / 40

    @property
    def wide(self) -> float:
        """From the middle of a dot to that of another curve."""
        return self.clear + self.dot - self.thickness / 2


def pathfinder(size: int = 32, *, seed: int = 0) -> Task[Batch]:
    """Images of size × size pixels."""
    if not 16 <= size <= 512:
        raise ThreefoldError(f"pathfinder: {size} pixels; expected from 16 to 512 in a direction")
    look = Look.of(size)

    def draw(split: str, numbers: Numbers) -> Batch:
        images = np.zeros((len(numbers), size, size), dtype=np.float32)
        flips = by_row(address(seed, split, 0), numbers // 2, 1)[:, 0] < 0.5
        labels = (numbers + flips) % 2
        left = np.arange(len(numbers))
        for attempt in range(ATTEMPTS):
            drawn = by_row(address(seed, split, 1, attempt), numbers[left], DRAWS)
            curves = [_curves(look, iter(row.tolist())) for row in drawn]
            for place, found in zip(left, curves, strict=True):
                if found is not None:
                    images[place] = _render(look, found, bool(labels[place]))
            left = left[[found is None for found in curves]]
            if not len(left):
                return rows_of(images.reshape(len(numbers), -1, 1), labels)
        raise ThreefoldError(f"pathfinder: no room for two curves in {size} × {size} pixels")

    names = {32: "pathfinder", 128: "pathfinder128"}
    return declare(names.get(size, "pathfinder16"), draw, length=size * size)


Dash = tuple[float, float, int]  # the middle, and the direction
Grid = NDArray[np.bool_]


def _curves(look: Look, draws: Iterator[float]) -> list[list[Dash]] | None:
    """Two long curves first, then short ones while there is room; None if there was none."""
    taken = np.zeros((look.cells, look.cells), dtype=bool)
    found: list[list[Dash]] = []
    try:
        for _ in range(2):
            dashes = look.dashes - int(next(draws) * (look.dashes // 3 + 1))
            curve = _place(look, draws, dashes, taken, 60, found)
            if not curve:
                return None
            found.append(curve)
            # A dot may come to either end of the second, so it keeps wider of the first.
            _take(look, taken, curve, look.wide)
        taken[:] = False
        for curve in found:
            _take(look, taken, curve, look.clear)
            _take(look, taken, [curve[0], curve[-1]], look.wide)
        for _ in range(look.distractors):
            curve = _place(look, draws, max(2, look.dashes // 3), taken, 8, [])
            _take(look, taken, curve, look.clear)
            found += [curve] if curve else []
    except StopIteration:
        pass
    return found if len(found) >= 2 else None


def _place(
    look: Look,
    draws: Iterator[float],
    dashes: int,
    taken: Grid,
    attempts: int,
    before: list[list[Dash]],
) -> list[Dash]:
    """A curve where there is room, a pair with those before; empty if none was found."""
    for _ in range(attempts):
        curve = _grow(look, draws, dashes, taken)
        if curve and all(_crossing(look, other, curve) for other in before):
            return curve
    return []


def _crossing(look: Look, first: list[Dash], second: list[Dash]) -> list[tuple[float, float]]:
    """An end of each curve, as far apart as the ends of the first; empty if there is no such pair.

    All ends have to be far enough from each other for dots.
    """
    near, apart = look.wide + look.dot - look.thickness / 2, math.dist(*_tips(look, first))
    pairs = [[one, other] for one in _tips(look, first) for other in _tips(look, second)]
    if min(math.dist(*pair) for pair in pairs) < near:
        return []
    best = min(pairs, key=lambda pair: abs(math.dist(*pair) - apart))
    return best if abs(math.dist(*best) - apart) <= look.alike else []


def _tips(look: Look, curve: list[Dash]) -> list[tuple[float, float]]:
    """Both ends of a curve."""
    return [_end(look, curve[0], -1), _end(look, curve[-1], 1)]


def _grow(look: Look, draws: Iterator[float], dashes: int, taken: Grid) -> list[Dash]:
    """A curve that keeps clear of what is taken and of itself; empty if it ran into something."""
    room = look.size - 2 * look.margin
    x, y = [look.margin + int(next(draws) * room * FINE) / FINE for _ in range(2)]
    turn, gap = int(next(draws) * TURNS), 0.0
    curve: list[Dash] = []
    for _ in range(dashes):
        for _ in range(6):
            bent = (turn + int(next(draws) * (2 * BEND + 1)) - BEND) % TURNS
            dx, dy = AHEAD[bent]
            dash = x + dx * (gap + look.dash / 2), y + dy * (gap + look.dash / 2), bent
            if _free(look, dash, curve[:-2], taken):
                break
        else:
            return []
        curve.append(dash)
        x, y = _end(look, dash, 1)
        turn, gap = bent, look.gap
    return curve


def _free(look: Look, dash: Dash, own: list[Dash], taken: Grid) -> bool:
    """Whether a dash lies inside, with room for a dot, and near to nothing."""
    low, high, near = look.margin, look.size - look.margin, (look.clear + look.dash / 2) ** 2
    for x, y in (_end(look, dash, -1), dash[:2], _end(look, dash, 1)):
        if not (low <= x <= high and low <= y <= high):
            return False
        if taken[int(y / look.cell), int(x / look.cell)]:
            return False
        if any((x - px) ** 2 + (y - py) ** 2 < near for px, py, _ in own):
            return False
    return True


def _take(look: Look, taken: Grid, curve: list[Dash], around: float) -> None:
    """Mark what is nearer than `around` pixels to a curve."""
    mask = _disc(around / look.cell + 1)  # a place may be anywhere in its cell
    for dash in curve:
        for side in (-1.0, -0.5, 0.0, 0.5, 1.0):
            x, y = _end(look, dash, side)
            _stamp(taken, mask, int(y / look.cell), int(x / look.cell))


def _render(look: Look, curves: list[list[Dash]], joined: bool) -> NDArray[np.float32]:
    """Dashes and dots on a finer grid, then the part of each pixel that is covered."""
    side = look.size * FINE
    grid = np.zeros((side, side), dtype=bool)
    for curve in curves:
        for x, y, turn in curve:
            _stamp(grid, _dash(look, turn), int(y * FINE), int(x * FINE))
    first, second = curves[:2]
    for x, y in _tips(look, first) if joined else _crossing(look, first, second):
        _stamp(grid, _disc(FINE * look.dot), int(y * FINE), int(x * FINE))
    blocks = grid.reshape(look.size, FINE, look.size, FINE)
    covered: NDArray[np.float32] = blocks.mean((1, 3), dtype=np.float32)
    return covered


def _end(look: Look, dash: Dash, side: float) -> tuple[float, float]:
    """A place on a dash: −1 is its beginning, 1 its end."""
    x, y, turn = dash
    dx, dy = AHEAD[turn]
    return x + side * dx * look.dash / 2, y + side * dy * look.dash / 2


def _stamp(grid: Grid, mask: Grid, row: int, column: int) -> None:
    """Set what a mask covers, its middle at a place; what is outside is cut off."""
    top, left = row - len(mask) // 2, column - len(mask) // 2
    above, before = max(0, -top), max(0, -left)
    part = grid[top + above : top + len(mask), left + before : left + len(mask)]
    part |= mask[above : above + part.shape[0], before : before + part.shape[1]]


@cache
def _dash(look: Look, turn: int) -> Grid:
    (dx, dy), reach = AHEAD[turn], math.ceil(FINE * (look.dash + look.thickness) / 2)
    down, across = np.mgrid[-reach : reach + 1, -reach : reach + 1]
    along, beside = across * dx + down * dy, across * dy - down * dx
    inside = (abs(along) <= FINE * look.dash / 2) & (abs(beside) <= FINE * look.thickness / 2)
    return np.asarray(inside)


@cache
def _disc(radius: float) -> Grid:
    reach = math.ceil(radius)
    down, across = np.mgrid[-reach : reach + 1, -reach : reach + 1]
    return np.asarray(across**2 + down**2 <= radius**2)
