"""The rows of the table of costs: layer types with their published orders, and the presets.

Vaswani et al. 2017, "Attention Is All You Need", table 1; Gu et al. 2022, "Efficiently Modeling
Long Sequences with Structured State Spaces", table 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from threefold.lab.bench.measuring import growth

Order: TypeAlias = Callable[[float, float], float]  # (length n, width d) to a cost
WINDOW = 128  # r of restricted attention


@dataclass(frozen=True)
class Published:
    """A published order, as it is printed and as a function."""

    text: str
    order: Order

    def exponent(self, lengths: Sequence[int], width: int) -> float:
        """The exponent of n that fits the order best at these lengths."""
        return growth([(n, self.order(n, width)) for n in lengths]).exponent


def likely_reason(gap: float) -> str:
    """Why a measured exponent is below (a negative gap) or above that of the published order."""
    if gap < 0:
        return "terms of lower order, such as projections and the call itself, still weigh"
    return "longer sequences no longer fit into the caches of the processor"


SQUARE = Published("n² d", lambda n, d: n * n * d)
LINEAR = Published("n d²", lambda n, d: n * d * d)
FOURIER = Published("n log n · d", lambda n, d: n * math.log(n) * d)
STATES = Published("n d N", lambda n, d: n * d)
KERNEL = Published("k n d²", lambda n, d: n * d * d)
RESTRICTED = Published("r n d", lambda n, d: n * d)
SPACE = Published("n d", lambda n, d: n * d)
IN_BLOCKS = Published("n² + n d; in blocks n d", lambda n, d: n * d)
GROWING = Published("n d", lambda n, d: n * d)
CONSTANT = Published("d²", lambda n, d: d * d)
STATE = Published("d N", lambda n, d: d)


@dataclass(frozen=True)
class LayerType:
    """One row: published orders of a pass, a step and the memory; step None: it cannot stream."""

    layer: str
    mixer: str
    run: Published
    step: Published | None
    sequential: str
    path: str
    space: Published = SPACE
    options: tuple[tuple[str, Any], ...] = ()


ROWS = (
    LayerType("self-attention", "attention", SQUARE, GROWING, "1", "1", IN_BLOCKS),
    LayerType(
        "restricted attention",
        "local_attention",
        RESTRICTED,
        Published("r d", lambda n, d: d),
        "1",
        "n/r",
        options=(("window", WINDOW),),
    ),
    LayerType("recurrent", "lstm", LINEAR, CONSTANT, "n", "n"),
    LayerType("convolution", "tcn", KERNEL, Published("k d²", lambda n, d: d * d), "1", "log_k n"),
    LayerType("Fourier transform", "fnet", FOURIER, None, "1", "1"),
    LayerType("state space", "s4d", FOURIER, STATE, "1", "1"),
    LayerType("linear attention", "linear_attention", LINEAR, CONSTANT, "n/C", "n"),
    LayerType("gated linear memory", "gla", LINEAR, CONSTANT, "n/C", "n"),
    LayerType("delta rule", "gated_delta_net", LINEAR, CONSTANT, "n/C", "n"),
    LayerType("selective scan", "mamba", STATES, STATE, "n", "n"),
)


@dataclass(frozen=True)
class CostSizes:
    """Sizes of a preset."""

    lengths: tuple[int, ...]
    width: int = 64
    seconds: float = 0.3  # time limit of one measurement at one length
    rows: tuple[LayerType, ...] = ROWS


PRESETS = {
    "seconds": CostSizes((64, 128, 256), 16, 0.001, (ROWS[0], ROWS[2], ROWS[4])),
    "minutes": CostSizes((2048, 4096, 8192, 16_384)),
    "hours": CostSizes((4096, 8192, 16_384, 32_768, 65_536), 128, 5.0),
}
