"""Pathfinder: are the two dots joined by a dashed curve?

    ● ╌ ╌ ╮   ╌ ╌        two long dashed curves, short ones as distractors, and two dots:
      ╭ ╌ ╯  ╌           at both ends of one curve (answer 1), or at ends of different ones (0)
      ╰ ╌ ╌ ●   ╌ ╌

An image is read pixel by pixel, row after row, as brightness from 0 to 1; of every two consecutive
examples one has answer 1 and one has 0.  Chance: 1/2.  Solved: 90 %.
Linsley et al. 2018, "Learning long-range spatial dependencies with horizontal gated recurrent
units"; Tay et al. 2020, "Long Range Arena" (32 × 32, and 128 × 128 as Path-X).  The images are
generated here, so published results are comparable, but for other examples: curves turn by at most
39° from dash to dash and keep a distance from all others and from themselves, all dashes have the
same brightness, smaller images have shorter curves, and the distance between the dots is the same
for both answers, so that it reveals nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from threefold.data.loaders import Batch
from threefold.data.random_by_address import by_row
from threefold.errors import ThreefoldError
from threefold.tasks.task import Numbers, Task, address, declare, make_batch

SUBPIXELS = 4  # per pixel and direction
DIRECTIONS, MAX_BEND = (
    64,
    7,
)  # directions of a circle, and the most that a curve turns from dash to dash
DRAWS_PER_ATTEMPT, ATTEMPTS = 6144, 50  # random numbers per attempt at an image, and attempts
# Multiples of 1/1024, so that all positions are exact, and the same on every machine.
UNIT_VECTORS = [
    (round(1024 * math.cos(2 * math.pi * turn / DIRECTIONS)) / 1024,
     round(1024 * math.sin(2 * math.pi * turn / DIRECTIONS)) / 1024)
    for turn in range(DIRECTIONS)
]  # fmt: skip


Step = tuple[float, float]
Dash = tuple[float, float, int]  # centre x and y, and direction


class Grid:
    """A grid of bits in one integer: a mask is drawn by one shift.

    A cell is bit (row + pad)·width + column + pad, so that masks may extend over the edges.
    """

    def __init__(self, side: int, pad: int) -> None:
        self.side, self.pad, self.width = side, pad, side + 2 * pad

    def mask(self, inside: NDArray[np.bool_]) -> int:
        """The mask to shift by row·width + column, which sets the cells around that one."""
        shift = self.pad - len(inside) // 2
        rows, columns = np.nonzero(inside)
        bits = (rows + shift) * self.width + columns + shift
        return sum(1 << bit for bit in bits.tolist())

    def cells(self, number: int) -> NDArray[np.uint8]:
        """0 or 1 for each cell, [side, side]."""
        count = self.width**2
        packed = np.frombuffer(number.to_bytes(-(-count // 8), "little"), np.uint8)
        bits = np.unpackbits(packed, count=count, bitorder="little")
        inner = slice(self.pad, self.pad + self.side)
        return bits.reshape(self.width, self.width)[inner, inner]


@dataclass(frozen=True)
class Look:
    """The geometry of an image, in pixels."""

    size: int
    dashes: int  # of a long curve
    distractors: int  # number of short curves, with a third as many dashes
    dash: float
    gap: float
    thickness: float
    dot: float  # radius
    clear: float  # distance between the centre lines of two curves
    cell: float  # of the occupancy grid

    @classmethod
    def of(cls, size: int) -> Look:
        """The geometry for an image of `size` × `size` pixels."""
        dashes, dash = min(14, max(4, size * 9 // 32)), max(2.0, size // 5 / 4)
        thickness, dot = max(1.0, size / 64), max(1.5, size / 32)
        clear, cell = max(2.5, size / 20), max(0.5, size / 128)
        distractors = size * dashes // 40
        return cls(size, dashes, distractors, dash, dash / 2, thickness, dot, clear, cell)

    @cached_property
    def margin(self) -> float:
        """Distance between the edge and a curve: room for a dot."""
        return self.dot + 0.5

    @cached_property
    def near(self) -> float:
        """The square of the smallest distance of a curve from itself."""
        return (self.clear + self.dash / 2) ** 2

    @cached_property
    def alike(self) -> float:
        """How much the distances between dots may differ for the two answers."""
        return self.size / 40

    @cached_property
    def wide(self) -> float:
        """Distance from the centre of a dot to that of another curve."""
        return self.clear + self.dot - self.thickness / 2

    @cached_property
    def steps(self) -> tuple[list[tuple[Step, Step]], ...]:
        """By direction: the step to the centre of a dash, and from there to its end; for the
        first dash of a curve, and for one after a gap."""
        half = self.dash / 2
        return tuple(
            [((dx * far, dy * far), (dx * half, dy * half)) for dx, dy in UNIT_VECTORS]
            for far in (half, self.gap + half)
        )

    @cached_property
    def occupancy(self) -> Grid:
        """The occupancy grid."""
        return Grid(math.ceil(self.size / self.cell), math.ceil(self.wide / self.cell + 1))

    @cached_property
    def around(self) -> dict[float, int]:
        """Masks of what is occupied around a curve and around a dot."""
        # A point may be anywhere in its cell.
        return {
            far: self.occupancy.mask(_disc(far / self.cell + 1)) for far in (self.clear, self.wide)
        }

    @cached_property
    def fine(self) -> Grid:
        """The subpixel grid for drawing."""
        reach = max((self.dash + self.thickness) / 2, self.dot)
        return Grid(self.size * SUBPIXELS, math.ceil(SUBPIXELS * reach))

    @cached_property
    def dash_masks(self) -> list[int]:
        """Dashes by direction, on the subpixel grid."""
        return [self.fine.mask(_bar(self, turn)) for turn in range(DIRECTIONS)]

    @cached_property
    def dot_mask(self) -> int:
        return self.fine.mask(_disc(SUBPIXELS * self.dot))


def pathfinder(size: int = 32, *, seed: int = 0) -> Task[Batch]:
    """Images of size × size pixels."""
    if not 16 <= size <= 512:
        raise ThreefoldError(f"pathfinder: size is {size} pixels; expected from 16 to 512")
    look = Look.of(size)

    def draw(split: str, numbers: Numbers) -> Batch:
        images = np.zeros((len(numbers), size, size), dtype=np.float32)
        flips = by_row(address(seed, split, 0), numbers // 2, 1)[:, 0] < 0.5
        labels = (numbers + flips) % 2
        left = np.arange(len(numbers))
        for attempt in range(ATTEMPTS):
            drawn = by_row(address(seed, split, 1, attempt), numbers[left], DRAWS_PER_ATTEMPT)
            curves = [_curves(look, iter(row.tolist())) for row in drawn]
            for index, image_curves in zip(left, curves, strict=True):
                if image_curves is not None:
                    images[index] = _render(look, image_curves, bool(labels[index]))
            left = left[[image_curves is None for image_curves in curves]]
            if not len(left):
                return make_batch(images.reshape(len(numbers), -1, 1), labels)
        raise ThreefoldError(f"pathfinder: no room for two curves in {size} × {size} pixels")

    names = {32: "pathfinder", 128: "pathfinder128"}
    return declare(names.get(size, "pathfinder16"), draw, length=size * size)


def _curves(look: Look, draws: Iterator[float]) -> list[list[Dash]] | None:
    """Two long curves first, then short ones while there is room; None if the long ones failed."""
    taken = 0
    curves: list[list[Dash]] = []
    try:
        for _ in range(2):
            dashes = look.dashes - int(next(draws) * (look.dashes // 3 + 1))
            curve = _place(look, draws, dashes, taken, 60, curves)
            if not curve:
                return None
            curves.append(curve)
            # Either end of the second may get a dot, so it keeps a larger distance from the first.
            taken |= _around(look, curve, look.wide)
        taken = 0
        for curve in curves:
            taken |= _around(look, curve, look.clear)
            taken |= _around(look, [curve[0], curve[-1]], look.wide)
        for _ in range(look.distractors):
            curve = _place(look, draws, max(2, look.dashes // 3), taken, 8, [])
            taken |= _around(look, curve, look.clear)
            curves += [curve] if curve else []
    except StopIteration:
        pass
    return curves if len(curves) >= 2 else None


def _place(
    look: Look,
    draws: Iterator[float],
    dashes: int,
    taken: int,
    attempts: int,
    before: list[list[Dash]],
) -> list[Dash]:
    """A curve where there is room that forms a pair with those before; empty if none was found."""
    occupied = look.occupancy.cells(taken).tobytes()
    for _ in range(attempts):
        curve = _grow(look, draws, dashes, occupied)
        if curve and all(_crossing(look, other, curve) for other in before):
            return curve
    return []


def _crossing(look: Look, first: list[Dash], second: list[Dash]) -> list[tuple[float, float]]:
    """An end of each curve, as far apart as the ends of the first; empty if there is no such pair.

    All ends must be far enough apart for dots.
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


def _grow(look: Look, draws: Iterator[float], dashes: int, taken: bytes) -> list[Dash]:
    """A curve that avoids occupied cells and itself; empty if it got stuck."""
    room = look.size - 2 * look.margin
    x, y = [look.margin + int(next(draws) * room * SUBPIXELS) / SUBPIXELS for _ in range(2)]
    turn, (steps, later) = int(next(draws) * DIRECTIONS), look.steps
    curve: list[Dash] = []
    for number in range(dashes):
        for _ in range(6):
            bent = (turn + int(next(draws) * (2 * MAX_BEND + 1)) - MAX_BEND) % DIRECTIONS
            (across, down), half = steps[bent]
            dash = x + across, y + down, bent
            if _free(look, dash, half, taken) and _clear(look, dash, half, curve[: number - 2]):
                break
        else:
            return []
        curve.append(dash)
        x, y = dash[0] + half[0], dash[1] + half[1]
        turn, steps = bent, later
    return curve


def _free(look: Look, dash: Dash, half: Step, taken: bytes) -> bool:
    """Whether a dash lies inside, with room for a dot, and on no occupied cell."""
    (x, y, _), (dx, dy) = dash, half
    low, high, cell, side = look.margin, look.size - look.margin, look.cell, look.occupancy.side
    if not (low <= x - dx <= high and low <= x + dx <= high):
        return False
    if not (low <= y - dy <= high and low <= y + dy <= high):
        return False
    return not (
        taken[int(y / cell) * side + int(x / cell)]
        or taken[int((y - dy) / cell) * side + int((x - dx) / cell)]
        or taken[int((y + dy) / cell) * side + int((x + dx) / cell)]
    )


def _clear(look: Look, dash: Dash, half: Step, own: list[Dash]) -> bool:
    """Whether a dash is far enough from the dashes of its own curve except the newest two."""
    (x, y, _), (dx, dy), near = dash, half, look.near
    for ox, oy, _ in own:
        across, down = x - ox, y - oy
        for px, py in ((across, down), (across - dx, down - dy), (across + dx, down + dy)):
            if px * px + py * py < near:
                return False
    return True


def _around(look: Look, curve: list[Dash], far: float) -> int:
    """The cells nearer than `far` pixels to a curve, on the occupancy grid."""
    mask, width, cell, taken = look.around[far], look.occupancy.width, look.cell, 0
    for dash in curve:
        for side in (-1.0, -0.5, 0.0, 0.5, 1.0):
            x, y = _end(look, dash, side)
            taken |= mask << int(y / cell) * width + int(x / cell)
    return taken


def _render(look: Look, curves: list[list[Dash]], joined: bool) -> NDArray[np.float32]:
    """Draw dashes and dots on the subpixel grid; a pixel is as bright as the part covered."""
    drawn, width = 0, look.fine.width
    for curve in curves:
        for x, y, turn in curve:
            drawn |= look.dash_masks[turn] << int(y * SUBPIXELS) * width + int(x * SUBPIXELS)
    first, second = curves[:2]
    for x, y in _tips(look, first) if joined else _crossing(look, first, second):
        drawn |= look.dot_mask << int(y * SUBPIXELS) * width + int(x * SUBPIXELS)
    blocks = look.fine.cells(drawn).reshape(look.size, SUBPIXELS, look.size, SUBPIXELS)
    covered: NDArray[np.float32] = blocks.mean((1, 3), dtype=np.float32)
    return covered


def _end(look: Look, dash: Dash, side: float) -> tuple[float, float]:
    """A point on a dash: −1 is its beginning, 1 its end."""
    x, y, turn = dash
    dx, dy = UNIT_VECTORS[turn]
    return x + side * dx * look.dash / 2, y + side * dy * look.dash / 2


def _bar(look: Look, turn: int) -> NDArray[np.bool_]:
    (dx, dy), reach = UNIT_VECTORS[turn], math.ceil(SUBPIXELS * (look.dash + look.thickness) / 2)
    down, across = np.mgrid[-reach : reach + 1, -reach : reach + 1]
    along, aside = across * dx + down * dy, across * dy - down * dx
    inside = (abs(along) <= SUBPIXELS * look.dash / 2) & (
        abs(aside) <= SUBPIXELS * look.thickness / 2
    )
    return np.asarray(inside)


def _disc(radius: float) -> NDArray[np.bool_]:
    reach = math.ceil(radius)
    down, across = np.mgrid[-reach : reach + 1, -reach : reach + 1]
    return np.asarray(across**2 + down**2 <= radius**2)
