"""cost ≈ c · L^p:  the table of costs by layer type, with p measured beside the published order.

Vaswani et al. 2017, "Attention Is All You Need", table 1; Gu et al. 2022, "Efficiently Modeling
Long Sequences with Structured State Spaces", table 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from threefold.lab.bench import layer_work, longest, shown
from threefold.lab.measuring import Growth, growth, in_turns, peak_memory
from threefold.layers.mixer import Mixer
from threefold.layers.table import mixer

LENGTHS = (8192, 16_384, 32_768)
STEPS = 64  # elements of one measurement of decoding


@dataclass(frozen=True)
class Row:
    """One line of the table; `shrink` divides the lengths where a form is slow by its nature."""

    layer: str
    mixer: str
    quantity: str  # pass, element or memory
    published: str
    order: float  # the exponent that it says
    sequential: str = ""
    path: str = ""
    form: str = "auto"
    shrink: int = 1


PASSES = (
    Row("self-attention", "attention", "pass", "n² d", 2, "1", "1"),
    Row("restricted attention", "local_attention", "pass", "r n d", 1, "1", "n/r"),
    Row("recurrent", "lstm", "pass", "n d²", 1, "n", "n"),
    Row("convolution", "long_conv", "pass", "n log n · d", 1, "1", "log n"),
    Row("state space (S4D)", "s4d", "pass", "n log n · d", 1, "1", "1"),
    Row("linear memory, in chunks", "gla", "pass", "n d²", 1, "n/C", "n"),
    Row("linear memory, in chunks", "mamba2", "pass", "n d²", 1, "n/C", "n"),
    Row("linear memory, in chunks", "gated_delta_net", "pass", "n d²", 1, "n/C", "n"),
    Row("selective scan", "mamba", "pass", "n d N", 1, "log n", "log n"),
    Row("linear memory, parallel", "gla", "pass", "n² d + n d²", 2, "1", "1", "parallel", 8),
    Row("linear memory, step by step", "gla", "pass", "n d²", 1, "n", "n", "step", 16),
)
ELEMENTS = (
    Row("self-attention", "attention", "element", "n d", 1),
    Row("recurrent", "lstm", "element", "d²", 0),
    Row("linear memory", "gla", "element", "d²", 0),
    Row("linear memory", "gated_delta_net", "element", "d²", 0),
    Row("selective scan", "mamba", "element", "d N", 0),
    Row("state space (S4D)", "s4d", "element", "d N", 0),
)
MEMORIES = (
    Row("self-attention", "attention", "memory", "n² + n d; in blocks n d", 1),
    Row("recurrent", "lstm", "memory", "n d", 1),
    Row("linear memory, in chunks", "gla", "memory", "n d", 1),
    Row("selective scan", "mamba", "memory", "n d", 1),
)
ROWS = (*PASSES, *ELEMENTS, *MEMORIES)
QUANTITIES = {
    "pass": "time of a pass over n elements",
    "element": "time of one more element after n",
    "memory": "peak memory of a training pass",
}


@dataclass(frozen=True)
class Filled:
    """A row with what was measured."""

    row: Row
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
            shown(self.growth),
            f"{lengths[0]:,} to {lengths[-1]:,}",
        ]


HEADER = (
    "layer",
    "mixer",
    "cost",
    "published",
    "in sequence",
    "longest path",
    "measured n^p",
    "lengths",
)


def fill(
    rows: tuple[Row, ...] = ROWS,
    lengths: tuple[int, ...] = LENGTHS,
    width: int = 64,
    seconds: float = 0.3,
    progress: Callable[[str], None] = lambda _: None,
) -> Iterator[Filled]:
    """Measure every row, one after another."""
    for row in rows:
        progress(f"{row.mixer}: {QUANTITIES[row.quantity]}")
        torch.manual_seed(0)
        layer = mixer(row.mixer, width=width, **longest(row.mixer, max(lengths))).eval()
        points = []
        for length in (n // row.shrink for n in lengths):
            x = torch.randn(1, length, width)
            points.append((length, _MEASURES[row.quantity](layer, x, row.form, seconds)))
        yield Filled(row, tuple(points), growth(points))


def _pass(layer: Mixer, x: torch.Tensor, form: str, seconds: float) -> float:
    return in_turns({"it": layer_work(layer, x, form, training=False)}, seconds)["it"]


def _element(layer: Mixer, x: torch.Tensor, form: str, seconds: float) -> float:
    """Seconds of one step after the sequence; the cache may grow while it is measured."""
    with torch.no_grad():
        _, state = layer(x)
        elements = torch.randn(STEPS, 1, x.shape[-1])

        def write() -> None:
            now = state
            for element in elements:
                _, now = layer.step(element, now)

        with torch.no_grad():
            return in_turns({"it": write}, seconds)["it"] / STEPS


def _memory(layer: Mixer, x: torch.Tensor, form: str, seconds: float) -> float:
    work = layer_work(layer, x, form, training=True)
    work()
    return max(1.0, peak_memory(work))


_MEASURES: dict[str, Callable[[Mixer, torch.Tensor, str, float], float]] = {
    "pass": _pass,
    "element": _element,
    "memory": _memory,
}
