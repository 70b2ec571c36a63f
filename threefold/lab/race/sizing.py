"""|parameters(width, depth, hidden) − target| ≤ 3 % of the target, for every mixer of a race.

The models of a race should have the same size and, as far as that allows, the same shape: width and
depth of the spec are kept if the hidden width of the channel mixer can make up for the difference.
Parameters are counted on torch's meta device, so nothing is allocated.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

import torch

from threefold.drawing.text import format_bytes
from threefold.errors import ThreefoldError, option_name
from threefold.models.spec import Spec
from threefold.models.table import build
from threefold.training.devices import memory_of

TOLERANCE = 0.03
# Widths that are tried, in this order: (multiples of, up to this many times wider or narrower).
WIDTH_SEARCHES = ((16, 1.3), (16, 2.0), (8, 2.0), (4, 2.0), (2, 2.0), (1, 2.0))
MAX_DEPTH_CHANGE = 2.0  # times deeper or shallower
HIDDEN_MULTIPLE = 8
BYTES_TO_TRAIN = 16  # of a parameter: weight, gradient and two moments in float32
HIDDEN_RANGE = (0.5, 12.0)  # times the width
# Weights of the squared logarithms of all changes: changes of width and depth count most.
WIDTH_WEIGHT, DEPTH_WEIGHT, HIDDEN_WEIGHT, ERROR_WEIGHT = 4.0, 4.0, 1.0, 0.1


@dataclass(frozen=True)
class Sized:
    """A spec of the target size."""

    spec: Spec
    parameters: int
    error: float  # (parameters − target) / target


class Shape(NamedTuple):
    """The sizes of a spec that may change; `hidden` None: the default of the channel mixer."""

    width: int
    depth: int
    hidden: int | None

    def apply(self, spec: Spec) -> Spec:
        """The spec with this shape."""
        resized = replace(spec, width=self.width, depth=self.depth)
        if self.hidden is None:
            return resized
        name, options = spec.channel_entry
        return replace(resized, channel=(name, {**options, "hidden": self.hidden}))


@lru_cache(maxsize=4096)
def count_parameters(spec: Spec) -> int:
    """The number of trainable parameters of a model of this spec, without allocating it."""
    with torch.device("meta"), torch.random.fork_rng(devices=[]):
        return build(spec).parameter_count


def common_target(specs: Mapping[str, Spec]) -> int:
    """The median size of the models as they are, which needs the smallest changes."""
    return int(statistics.median_high(count_parameters(spec) for spec in specs.values()))


def match_parameters(
    specs: Mapping[str, Spec], target: int | None = None, tolerance: float = TOLERANCE
) -> dict[str, Sized]:
    """Change width, depth and channel mixer of every spec until it has the target size.

    The default target is the median size of the given specs.
    """
    size = common_target(specs) if target is None else target
    if size < 1:
        raise ThreefoldError(f"a target of {size} parameters: expected at least 1")
    memory = memory_of(torch.device("cpu"))
    if memory is not None and size * BYTES_TO_TRAIN > memory:
        raise ThreefoldError(
            f"a target of {size:,} parameters: training them needs "
            f"{format_bytes(size * BYTES_TO_TRAIN)}, this machine has {format_bytes(memory)}; "
            f"choose a smaller {option_name('parameters')}"
        )
    return {name: solve(spec, size, tolerance) for name, spec in specs.items()}


def solve(spec: Spec, target: int, tolerance: float = TOLERANCE) -> Sized:
    """The spec of the target size whose shape is closest to the given one."""
    near = scaled(spec, target)
    for multiple, reach in WIDTH_SEARCHES:
        widths = around(near.width, multiple, reach)
        shapes = [item for item in candidates(near, target, widths) if item[1] <= tolerance]
        for shape, _ in sorted(shapes, key=lambda item: distance(near, *item)):
            resized = shape.apply(spec)
            try:
                parameters = count_parameters(resized)
            except ThreefoldError:  # the width is not divisible by the number of heads
                continue
            error = (parameters - target) / target
            if abs(error) <= tolerance:
                return Sized(resized, parameters, error)
    raise ThreefoldError(
        f"no model of {names(spec)} has {target:,} parameters within {100 * tolerance:.0f} %: "
        f"it has {count_parameters(spec):,} at width {spec.width} and depth {spec.depth}; choose "
        "another target, width or depth"
    )


def names(spec: Spec) -> str:
    """The mixers of a spec, joined by +."""
    return "+".join(name for name, _ in spec.entries)


def scaled(spec: Spec, target: int) -> Spec:
    """The spec with a width that brings it near the target, if it is far away."""
    while True:
        ratio = target / count_parameters(spec)
        width = max(16, 16 * round(spec.width * ratio**0.5 / 16))
        if 0.4 < ratio < 2.5 or width == spec.width:
            return spec
        spec = replace(spec, width=width)


def candidates(spec: Spec, target: int, widths: Iterable[int]) -> Iterator[tuple[Shape, float]]:
    """Shapes around a spec, each with its predicted relative error.

    The number of parameters is affine in the depth and in the hidden width of the channel mixer,
    so a few counts per width predict all others.
    """
    for width in widths:
        try:
            plain, per_block, per_hidden, default = slopes(spec, width)
        except ThreefoldError:
            continue
        for depth in around(spec.depth, len(spec.entries), MAX_DEPTH_CHANGE):
            size = plain + depth * per_block
            yield Shape(width, depth, None), abs(size - target) / target
            if per_hidden:
                exact = default + (target - size) / (depth * per_hidden)
                hidden = max(HIDDEN_MULTIPLE, HIDDEN_MULTIPLE * round(exact / HIDDEN_MULTIPLE))
                if HIDDEN_RANGE[0] <= hidden / width <= HIDDEN_RANGE[1]:
                    error = size + depth * per_hidden * (hidden - default) - target
                    yield Shape(width, depth, hidden), abs(error) / target


def slopes(spec: Spec, width: int) -> tuple[int, int, int, int]:
    """(outside of the blocks, per block, per hidden unit, default hidden width)."""
    period = len(spec.entries)
    one, two = (
        count_parameters(replace(spec, width=width, depth=period * blocks)) for blocks in (1, 2)
    )
    per_block = (two - one) // period
    plain = one - period * per_block
    name, options = spec.channel_entry
    if name == "none" or "hidden" in options:
        return plain, per_block, 0, 0
    narrow, wide = (
        count_parameters(Shape(width, period, hidden).apply(spec)) for hidden in (width, width + 8)
    )
    per_hidden = (wide - narrow) // (8 * period)
    default = width + round((one - narrow) / (period * per_hidden)) if per_hidden else 0
    return plain, per_block, per_hidden, default


def around(value: int, multiple: int, reach: float) -> list[int]:
    """The value, and the multiples from value / reach to value · reach."""
    low, high = math.ceil(value / reach), math.floor(value * reach)
    return sorted({*range(multiple * math.ceil(low / multiple), high + 1, multiple), value})


def distance(spec: Spec, shape: Shape, error: float) -> float:
    """How far a shape is from that of the spec."""
    hidden = 0.0
    if shape.hidden is not None:
        default = slopes(spec, shape.width)[3]
        hidden = math.log2(shape.hidden / default) ** 2
    return (
        WIDTH_WEIGHT * math.log2(shape.width / spec.width) ** 2
        + DEPTH_WEIGHT * math.log2(shape.depth / spec.depth) ** 2
        + HIDDEN_WEIGHT * hidden
        + ERROR_WEIGHT * (error / TOLERANCE) ** 2
    )
