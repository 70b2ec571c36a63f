"""|parameters(width, depth, hidden) − target| ≤ 3 % of the target, for every mixer of a race.

Models of one race should be equally large, and as alike in shape as that allows: the width and the
depth of the spec are kept where the channel mixer's inner width can make up for the difference.
Parameters are counted on torch's meta device, so that nothing is allocated.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

import torch

from threefold.errors import ThreefoldError
from threefold.models.spec import Spec
from threefold.models.table import build

TOLERANCE = 0.03
# Where a width is looked for: multiples of a grain, up to so many times wider or narrower.
SEARCHES = ((16, 1.3), (16, 2.0), (8, 2.0), (4, 2.0), (2, 2.0), (1, 2.0))
DEEPER = 2.0  # times, and shallower
HIDDEN_GRAIN = 8
HIDDEN_RANGE = (0.5, 12.0)  # times the width
# Squared logarithms of what changes are added up: a change of the stream counts most.
WIDTH_WEIGHT, DEPTH_WEIGHT, HIDDEN_WEIGHT, ERROR_WEIGHT = 4.0, 4.0, 1.0, 0.1


@dataclass(frozen=True)
class Sized:
    """A spec of the wanted size."""

    spec: Spec
    parameters: int
    error: float  # (parameters − target) / target


class Shape(NamedTuple):
    """The free sizes of a spec; `hidden` None: the channel mixer's own."""

    width: int
    depth: int
    hidden: int | None

    def of(self, spec: Spec) -> Spec:
        """The spec in this shape."""
        made = replace(spec, width=self.width, depth=self.depth)
        if self.hidden is None:
            return made
        name, options = spec.channel_entry
        return replace(made, channel=(name, {**options, "hidden": self.hidden}))


@lru_cache(maxsize=4096)
def count_parameters(spec: Spec) -> int:
    """How many numbers a model of this spec has to learn, without making it."""
    with torch.device("meta"), torch.random.fork_rng(devices=[]):
        return build(spec).parameter_count


def common_target(specs: Mapping[str, Spec]) -> int:
    """The size in the middle of the models as they are: what asks for the smallest changes."""
    return int(statistics.median_high(count_parameters(spec) for spec in specs.values()))


def match_parameters(
    specs: Mapping[str, Spec], target: int | None = None, tolerance: float = TOLERANCE
) -> dict[str, Sized]:
    """Every spec changed in width, depth and channel mixer until its size is the target's.

    Without a target it is the one in the middle of the specs as given.
    """
    wanted = common_target(specs) if target is None else target
    if wanted < 1:
        raise ThreefoldError(f"a target of {wanted} parameters; expected at least 1")
    return {name: solve(spec, wanted, tolerance) for name, spec in specs.items()}


def solve(spec: Spec, target: int, tolerance: float = TOLERANCE) -> Sized:
    """The spec of that size which is nearest in shape to the one given."""
    near = scaled(spec, target)
    for grain, reach in SEARCHES:
        widths = around(near.width, grain, reach)
        found = [item for item in candidates(near, target, widths) if item[1] <= tolerance]
        for shape, _ in sorted(found, key=lambda item: distance(near, *item)):
            made = shape.of(spec)
            try:
                parameters = count_parameters(made)
            except ThreefoldError:  # a width that the mixer's heads do not divide
                continue
            error = (parameters - target) / target
            if abs(error) <= tolerance:
                return Sized(made, parameters, error)
    raise ThreefoldError(
        f"no model of {names(spec)} has {target:,} parameters within {tolerance:.0%}: as given it "
        f"has {count_parameters(spec):,} at width {spec.width} and depth {spec.depth}; give "
        "another target, width or depth"
    )


def names(spec: Spec) -> str:
    """The mixers of a spec in one word."""
    return "+".join(name for name, _ in spec.entries)


def scaled(spec: Spec, target: int) -> Spec:
    """The spec with the width that brings it near the target, where it is far from it."""
    while True:
        ratio = target / count_parameters(spec)
        width = max(16, 16 * round(spec.width * ratio**0.5 / 16))
        if 0.4 < ratio < 2.5 or width == spec.width:
            return spec
        spec = replace(spec, width=width)


def candidates(spec: Spec, target: int, widths: Iterable[int]) -> Iterator[tuple[Shape, float]]:
    """Shapes around a spec, and how far from the target each is said to be.

    Parameters are affine in the depth and in the inner width of the channel mixer, so three
    counts for each width tell all the others.
    """
    for width in widths:
        try:
            plain, per_block, per_hidden, default = slopes(spec, width)
        except ThreefoldError:
            continue
        for depth in around(spec.depth, len(spec.entries), DEEPER):
            size = plain + depth * per_block
            yield Shape(width, depth, None), abs(size - target) / target
            if per_hidden:
                exact = default + (target - size) / (depth * per_hidden)
                hidden = max(HIDDEN_GRAIN, HIDDEN_GRAIN * round(exact / HIDDEN_GRAIN))
                if not HIDDEN_RANGE[0] <= hidden / width <= HIDDEN_RANGE[1]:
                    continue
                error = size + depth * per_hidden * (hidden - default) - target
                yield Shape(width, depth, hidden), abs(error) / target


def slopes(spec: Spec, width: int) -> tuple[int, int, int, int]:
    """(outside of the blocks, one block, one unit of the channel mixer, its own inner width)."""
    period = len(spec.entries)
    one, two = (
        count_parameters(replace(spec, width=width, depth=period * blocks)) for blocks in (1, 2)
    )
    per_block = (two - one) // period
    plain = one - period * per_block
    name, options = spec.channel_entry
    if name == "none" or "hidden" in options:
        return plain, per_block, 0, 0
    lean, fat = (
        count_parameters(Shape(width, period, hidden).of(spec)) for hidden in (width, width + 8)
    )
    per_hidden = (fat - lean) // (8 * period)
    default = width + round((one - lean) / (period * per_hidden)) if per_hidden else 0
    return plain, per_block, per_hidden, default


def around(value: int, grain: int, reach: float) -> list[int]:
    """Multiples of the grain up to `reach` times a value and down to that part of it."""
    low, high = math.ceil(value / reach), math.floor(value * reach)
    return sorted({*range(grain * math.ceil(low / grain), high + 1, grain), value})


def distance(spec: Spec, shape: Shape, error: float) -> float:
    """How much another shape it is."""
    hidden = 0.0
    if shape.hidden is not None:
        own = slopes(spec, shape.width)[3]
        hidden = math.log2(shape.hidden / own) ** 2
    return (
        WIDTH_WEIGHT * math.log2(shape.width / spec.width) ** 2
        + DEPTH_WEIGHT * math.log2(shape.depth / spec.depth) ** 2
        + HIDDEN_WEIGHT * hidden
        + ERROR_WEIGHT * (error / TOLERANCE) ** 2
    )
