"""cost ≈ c · n^p:  the table of costs by layer type: published order and measured exponent p.

Vaswani et al. 2017, "Attention Is All You Need", table 1; Gu et al. 2022, "Efficiently Modeling
Long Sequences with Structured State Spaces", table 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from threefold.lab.bench.bench import format_growth, layer_work, length_option
from threefold.lab.bench.measuring import Growth, growth, in_turns, peak_memory
from threefold.layers.mixer import Mixer
from threefold.layers.table import mixer

LENGTHS = (8192, 16_384, 32_768)
Inputs: TypeAlias = dict[int, Tensor]  # by length
STEPS = 64  # elements of one decode measurement


@dataclass(frozen=True)
class CostRow:
    """One row of the table; `shrink` divides the lengths for forms that are slow by nature."""

    layer: str
    mixer: str
    quantity: str  # pass, element or memory
    published: str
    order: float  # the published exponent
    sequential: str = ""
    path: str = ""
    form: str = "auto"
    shrink: int = 1


PASSES = (
    CostRow("self-attention", "attention", "pass", "n² d", 2, "1", "1"),
    CostRow("restricted attention", "local_attention", "pass", "r n d", 1, "1", "n/r"),
    CostRow("recurrent", "lstm", "pass", "n d²", 1, "n", "n"),
    CostRow("convolution", "long_conv", "pass", "n log n · d", 1, "1", "log n"),
    CostRow("state space (S4D)", "s4d", "pass", "n log n · d", 1, "1", "1"),
    CostRow("linear memory, in chunks", "gla", "pass", "n d²", 1, "n/C", "n"),
    CostRow("linear memory, in chunks", "mamba2", "pass", "n d²", 1, "n/C", "n"),
    CostRow("linear memory, in chunks", "gated_delta_net", "pass", "n d²", 1, "n/C", "n"),
    CostRow("selective scan", "mamba", "pass", "n d N", 1, "log n", "log n"),
    CostRow("linear memory, parallel", "gla", "pass", "n² d + n d²", 2, "1", "1", "parallel", 8),
    CostRow("linear memory, step by step", "gla", "pass", "n d²", 1, "n", "n", "step", 16),
)
ELEMENTS = (
    CostRow("self-attention", "attention", "element", "n d", 1),
    CostRow("recurrent", "lstm", "element", "d²", 0),
    CostRow("linear memory", "gla", "element", "d²", 0),
    CostRow("linear memory", "gated_delta_net", "element", "d²", 0),
    CostRow("selective scan", "mamba", "element", "d N", 0),
    CostRow("state space (S4D)", "s4d", "element", "d N", 0),
)
MEMORIES = (
    CostRow("self-attention", "attention", "memory", "n² + n d; in blocks n d", 1, shrink=4),
    CostRow("recurrent", "lstm", "memory", "n d", 1, shrink=4),
    CostRow("linear memory, in chunks", "gla", "memory", "n d", 1, shrink=4),
    CostRow("selective scan", "mamba", "memory", "n d", 1, shrink=4),
)
ROWS = (*PASSES, *ELEMENTS, *MEMORIES)
QUANTITIES = {
    "pass": "time of one pass over n elements",
    "element": "time per element after n elements",
    "memory": "peak memory of a training pass",
}


@dataclass(frozen=True)
class MeasuredRow:
    """A row with its measurements."""

    row: CostRow
    points: tuple[tuple[int, float], ...]
    growth: Growth

    def cells(self) -> list[str]:
        row, lengths = self.row, [n for n, _ in self.points]
        return [
            row.layer,
            row.mixer,
            QUANTITIES[row.quantity],
            row.published,
            row.sequential or "–",
            row.path or "–",
            format_growth(self.growth, len(self.points), "n"),
            f"{lengths[0]:,} to {lengths[-1]:,}",
        ]


HEADER = (
    "layer",
    "mixer",
    "cost",
    "published order",
    "sequential steps",
    "longest path",
    "measured growth",
    "lengths",
)


def measure_rows(
    rows: tuple[CostRow, ...] = ROWS,
    lengths: tuple[int, ...] = LENGTHS,
    width: int = 32,
    seconds: float = 0.15,
    progress: Callable[[str], None] = lambda _: None,
) -> Iterator[MeasuredRow]:
    """Measure every row, one after another."""
    for row in rows:
        progress(f"{row.mixer}: {QUANTITIES[row.quantity]}")
        torch.manual_seed(0)
        layer = mixer(row.mixer, width=width, **length_option(row.mixer, max(lengths))).eval()
        inputs = {n: torch.randn(1, n, width) for n in (n // row.shrink for n in lengths)}
        costs = _MEASURES[row.quantity](layer, inputs, row.form, seconds)
        points = tuple(sorted(costs.items()))
        yield MeasuredRow(row, points, growth(points))


def _pass(layer: Mixer, inputs: Inputs, form: str, seconds: float) -> dict[int, float]:
    works = {n: layer_work(layer, x, form, training=False) for n, x in inputs.items()}
    return in_turns(works, seconds, min)


def _element(layer: Mixer, inputs: Inputs, form: str, seconds: float) -> dict[int, float]:
    """Seconds per step after the sequence; a cache grows slightly during the measurement."""
    elements = torch.randn(STEPS, 1, layer.width)
    with torch.no_grad():
        states = {n: layer(x)[1] for n, x in inputs.items()}

    def decode(length: int) -> Callable[[], None]:
        def work() -> None:
            state = states[length]
            with torch.no_grad():
                for element in elements:
                    _, state = layer.step(element, state)

        return work

    taken = in_turns({n: decode(n) for n in inputs}, seconds, min)
    return {n: value / STEPS for n, value in taken.items()}


def _memory(layer: Mixer, inputs: Inputs, form: str, seconds: float) -> dict[int, float]:
    peaks = {}
    for length, x in inputs.items():
        work = layer_work(layer, x, form, training=True)
        work()
        peaks[length] = max(1.0, peak_memory(work))
    return peaks


_MEASURES: dict[str, Callable[[Mixer, Inputs, str, float], dict[int, float]]] = {
    "pass": _pass,
    "element": _element,
    "memory": _memory,
}
