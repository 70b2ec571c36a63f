"""cost ≈ c · n^p:  time and memory of one layer against the length n, beside the published order.

A published order such as n log n · d has no exponent of its own: the same line is fitted to it at
the measured lengths, and the two exponents are compared.
Vaswani et al. 2017, "Attention Is All You Need", table 1; Gu et al. 2022, "Efficiently Modeling
Long Sequences with Structured State Spaces", table 1.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

import torch
from torch import Tensor

from threefold.drawing.axes import Axis
from threefold.drawing.charts import Figure, Line, line_chart
from threefold.lab.bench.bench import format_growth, layer_work, length_option
from threefold.lab.bench.measuring import growth, in_turns, peak_memory
from threefold.lab.tables.table import (
    Advance,
    Cell,
    Content,
    Grid,
    RemadeTable,
    Results,
    Section,
    Values,
)
from threefold.layers.mixer import Mixer
from threefold.layers.table import mixer

Order: TypeAlias = Callable[[float, float], float]  # (length n, width d) to a cost
STEPS = 64  # elements of one measurement of a step
AGREE = 0.15  # of two exponents
WINDOW = 128  # r of restricted attention
QUANTITIES = {
    "forward": "forward pass",
    "training": "forward and backward pass",
    "step": "one step after n elements",
    "memory": "peak memory of a training pass",
}


@dataclass(frozen=True)
class Published:
    """A published order, as it is printed and as a function."""

    text: str
    order: Order

    def exponent(self, lengths: Sequence[int], width: int) -> float:
        """The exponent of n that fits the order best at these lengths."""
        return growth([(n, self.order(n, width)) for n in lengths]).exponent


SQUARE = Published("n² d", lambda n, d: n * n * d)
LINEAR = Published("n d²", lambda n, d: n * d * d)
FOURIER = Published("n log n · d", lambda n, d: n * math.log(n) * d)
STATES = Published("n d N", lambda n, d: n * d)
KERNEL = Published("k n d²", lambda n, d: n * d * d)
RESTRICTED = Published("r n d", lambda n, d: n * d)
SPACE = Published("n d", lambda n, d: n * d)
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
    LayerType("self-attention", "attention", SQUARE, GROWING, "1", "1"),
    LayerType(
        "restricted self-attention",
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


class CostTable(RemadeTable):
    """Whether layers cost what their papers say."""

    name = "cost"
    title = "Cost by layer type"
    presets: ClassVar[Mapping[str, CostSizes]] = PRESETS

    def cells(self, preset: str) -> list[Cell]:
        sizes = self.presets[preset]
        return [_cell(sizes, row) for row in sizes.rows]

    def content(self, preset: str, results: Results) -> Content:
        sizes = self.presets[preset]
        lines = [CostLine(row, results[row.mixer], sizes) for row in sizes.rows]
        return CostContent(sizes, lines).content()


def _cell(sizes: CostSizes, row: LayerType) -> Cell:
    settings = {
        "mixer": row.mixer,
        "options": dict(row.options),
        "lengths": list(sizes.lengths),
        "width": sizes.width,
        "seconds": sizes.seconds,
    }
    return Cell(row.mixer, f"{row.layer} ({row.mixer})", settings, partial(measure, sizes, row))


def measure(sizes: CostSizes, row: LayerType, folder: Path, advance: Advance) -> Values:
    """All costs of one layer at all lengths, on one thread: (length, cost) by quantity."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return LayerMeter(sizes, row).values(advance)
    finally:
        torch.set_num_threads(threads)


class LayerMeter:
    """Measures one layer; times are CPU times, the least of several rounds over all lengths."""

    def __init__(self, sizes: CostSizes, row: LayerType) -> None:
        self.sizes, self.row = sizes, row
        torch.manual_seed(0)
        options = {**length_option(row.mixer, max(sizes.lengths)), **dict(row.options)}
        self.layer: Mixer = mixer(row.mixer, width=sizes.width, **options)
        self.inputs: dict[int, Tensor] = {n: torch.randn(1, n, sizes.width) for n in sizes.lengths}

    def values(self, advance: Advance) -> Values:
        measures: dict[str, Callable[[], dict[int, float]]] = {
            "forward": partial(self._pass, False),
            "training": partial(self._pass, True),
            "step": self._step,
            "memory": self._memory,
            "state": self._state,
        }
        values: Values = {}
        for i, (name, function) in enumerate(measures.items()):
            advance(i / len(measures))
            if name not in ("step", "state") or self.row.step is not None:
                values[name] = [[n, cost] for n, cost in sorted(function().items())]
        return values

    def _time(self, works: Mapping[int, Callable[[], object]]) -> dict[int, float]:
        return in_turns(works, self.sizes.seconds, min, time.process_time)

    def _pass(self, training: bool) -> dict[int, float]:
        self.layer.train(training)
        works = {n: layer_work(self.layer, x, "auto", training) for n, x in self.inputs.items()}
        return self._time(works)

    def _step(self) -> dict[int, float]:
        """Seconds of one step; a history grows slightly during the measurement."""
        self.layer.eval()
        elements = torch.randn(STEPS, 1, self.sizes.width)
        with torch.no_grad():
            states = {n: self.layer(x.detach())[1] for n, x in self.inputs.items()}

        def decode(length: int) -> None:
            state = states[length]
            with torch.no_grad():
                for element in elements:
                    _, state = self.layer.step(element, state)

        taken = self._time({n: partial(decode, n) for n in self.inputs})
        return {n: seconds / STEPS for n, seconds in taken.items()}

    def _memory(self) -> dict[int, float]:
        self.layer.train()
        peaks = {}
        for n, x in self.inputs.items():
            work = layer_work(self.layer, x, "auto", training=True)
            work()
            peaks[n] = peak_memory(work)
        # Zero: all of it was free memory of the process; unknown: not Linux.
        return {n: peak for n, peak in peaks.items() if peak > 0}

    def _state(self) -> dict[int, float]:
        return {n: float(self.layer.state_size(n)) for n in self.inputs}


@dataclass(frozen=True)
class CostLine:
    """One row with its measurements."""

    row: LayerType
    values: Values
    sizes: CostSizes

    def points(self, quantity: str) -> list[tuple[int, float]]:
        return [(int(n), cost) for n, cost in self.values.get(quantity, ())]

    def published(self, quantity: str) -> Published | None:
        row = self.row
        return {"step": row.step, "memory": row.space}.get(quantity, row.run)

    def expected(self, quantity: str) -> float | None:
        """The exponent of the published order at the measured lengths."""
        published, lengths = self.published(quantity), [n for n, _ in self.points(quantity)]
        if published is None or len(lengths) < 2:
            return None
        return published.exponent(lengths, self.sizes.width)

    def measured(self, quantity: str) -> str:
        """The exponent of the measured costs, as a cell."""
        points = self.points(quantity)
        return format_growth(growth(points), len(points), "n") if len(points) > 1 else "–"

    def gap(self, quantity: str) -> float | None:
        """The measured exponent minus that of the published order."""
        expected = self.expected(quantity)
        return None if expected is None else growth(self.points(quantity)).exponent - expected


@dataclass(frozen=True)
class CostContent:
    """The table of all layers."""

    sizes: CostSizes
    lines: list[CostLine]

    def content(self) -> Content:
        gaps = [
            (line, quantity, gap)
            for line in self.lines
            for quantity in QUANTITIES
            if (gap := line.gap(quantity)) is not None
        ]
        agree = sum(abs(gap) <= AGREE for _, _, gap in gaps)
        sentence = (
            f"{agree} of {len(gaps)} measured exponents are within {AGREE:g} of the published order"
        )
        sections = [self.passes(), self.steps(), self.memories()]
        legend = [line.row.mixer for line in self.lines]
        return Content(
            sentence,
            self.summary(),
            sections,
            list(self.differences(gaps)),
            self.setup(),
            SOURCES,
            legend,
        )

    def summary(self) -> list[str]:
        longest = max(self.sizes.lengths)
        forward = {line.row.mixer: dict(line.points("forward"))[longest] for line in self.lines}
        order = sorted(forward, key=lambda name: forward[name])
        axis = Axis("", "seconds")
        return [
            f"At {longest:,} elements and width {self.sizes.width}, one forward pass takes "
            f"{axis.label(forward[order[0]])} ({order[0]}) to "
            f"{axis.label(forward[order[-1]])} ({order[-1]}).",
            f"Faster than n^1.5 grows the forward pass of {self._growing('forward', 1.5)}; one "
            f"step gets slower with the elements before it (more than n^0.5) for "
            f"{self._growing('step', 0.5)}.",
        ]

    def _growing(self, quantity: str, least: float) -> str:
        """The mixers whose cost grows faster than n to a power."""
        names = [
            line.row.mixer
            for line in self.lines
            if len(points := line.points(quantity)) > 1 and growth(points).exponent > least
        ]
        return ", ".join(names) or "none"

    def passes(self) -> Section:
        header = (
            "layer",
            "mixer",
            "published order",
            "sequential steps",
            "longest path",
            "its exponent here",
            "forward",
            "forward and backward",
            f"forward at {max(self.sizes.lengths):,}",
        )
        rows = tuple(
            (
                line.row.layer,
                line.row.mixer,
                line.row.run.text,
                line.row.sequential,
                line.row.path,
                _number(line.expected("forward")),
                line.measured("forward"),
                line.measured("training"),
                Axis("", "seconds").label(line.points("forward")[-1][1]),
            )
            for line in self.lines
        )
        grid = Grid(
            "Time of one pass over n elements",
            "The measured exponent, and in brackets the largest deviation of a point from the "
            "fitted line. r: window, k: taps, N: state size, C: chunk.",
            header,
            rows,
        )
        figures = (
            self._figure("Forward pass", "forward", "seconds"),
            self._figure("Forward and backward pass", "training", "seconds"),
        )
        return Section("passes", "One pass", self._where(), (grid,), figures)

    def steps(self) -> Section:
        after = f"after {max(self.sizes.lengths):,}"
        header = (
            "layer",
            "mixer",
            "published order",
            "its exponent here",
            "measured",
            f"one step {after}",
            f"state {after}",
        )
        rows = tuple(
            (
                line.row.layer,
                line.row.mixer,
                line.row.step.text,
                _number(line.expected("step")),
                line.measured("step"),
                Axis("", "seconds").label(line.points("step")[-1][1]),
                Axis("", "bytes").label(line.points("state")[-1][1]),
            )
            for line in self.lines
            if line.row.step is not None
        )
        text = "The time of one more element; the state is what one stream has to remember."
        grid = Grid("Time of one step after n elements", text, header, rows)
        figures = (
            self._figure("One step", "step", "seconds"),
            self._figure("State of one stream", "state", "bytes"),
        )
        return Section("steps", "One step", self._where(), (grid,), figures)

    def memories(self) -> Section:
        header = ("layer", "mixer", "published order", "its exponent here", "measured", "peak")
        rows = tuple(
            (
                line.row.layer,
                line.row.mixer,
                line.row.space.text,
                _number(line.expected("memory")),
                line.measured("memory"),
                Axis("", "bytes").label(line.points("memory")[-1][1]),
            )
            for line in self.lines
            if line.points("memory")
        )
        text = (
            f"The peak is at {max(self.sizes.lengths):,} elements. Attention is computed in "
            "blocks, so its n² scores never exist together: the published order n² + n d becomes "
            "n d."
        )
        grid = Grid("Peak memory of a training pass", text, header, rows)
        figure = self._figure("Peak memory of a training pass", "memory", "bytes")
        return Section("memory", "Memory", self._where(), (grid,), (figure,))

    def _where(self) -> str:
        return f"One layer of width {self.sizes.width}, batch size 1, one thread."

    def _figure(self, title: str, quantity: str, unit: str) -> Figure:
        lines = [
            Line(line.row.mixer, series, line.points(quantity))
            for series, line in enumerate(self.lines)
        ]
        at = tuple(map(float, self.sizes.lengths))
        return line_chart(
            title,
            "Both axes are logarithmic: the slope of a line is its exponent.",
            lines,
            Axis("length, elements", "count", True, at=at),
            Axis("time" if unit == "seconds" else "memory", unit, True, "low"),
        )

    def differences(self, gaps: Sequence[tuple[CostLine, str, float]]) -> Iterator[str]:
        yield (
            "A published order is the limit for long sequences and says nothing about constants; "
            f"here n is {min(self.sizes.lengths):,} to {max(self.sizes.lengths):,}."
        )
        for line, quantity, gap in gaps:
            if abs(gap) > AGREE:
                reason = (
                    "costs that do not depend on the length still weigh"
                    if gap < 0
                    else "longer sequences no longer fit into the caches of the processor"
                )
                yield (
                    f"{line.row.mixer}, {QUANTITIES[quantity]}: {line.measured(quantity)} "
                    f"measured, n^{line.expected(quantity):.2f} published; probably because "
                    f"{reason}."
                )

    def setup(self) -> list[str]:
        return [
            f"{self._where()} Random inputs, float32.",
            "Times are CPU times of the process, which other programs on the machine hardly "
            "change; lengths are measured in turns, and the least of several rounds counts.",
            "Memory is the peak of the resident size during a forward and backward pass, beyond "
            "what was in use before.",
            "An exponent is the slope of a line through the logarithms, by least squares.",
        ]


def _number(value: float | None) -> str:
    return "–" if value is None else f"n^{value:.2f}"


SOURCES = (
    'Vaswani et al. 2017, "Attention Is All You Need", table 1: self-attention, restricted '
    "attention, recurrent and convolutional layers.",
    'Gu et al. 2022, "Efficiently Modeling Long Sequences with Structured State Spaces", table 1: '
    "training, space and inference of convolution, recurrence, attention and S4.",
    'Lee-Thorp et al. 2022, "FNet"; Katharopoulos et al. 2020, "Transformers are RNNs"; Gu & Dao '
    '2023, "Mamba"; Yang et al. 2024, "Gated Linear Attention Transformers with '
    'Hardware-Efficient Training": the orders of the others.',
)
