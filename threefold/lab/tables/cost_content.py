"""What the measured costs say: exponents beside the published ones, and where they differ."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from threefold.drawing.axes import Axis
from threefold.drawing.charts import Figure, Line, line_chart
from threefold.lab.bench.bench import format_growth
from threefold.lab.bench.measuring import growth
from threefold.lab.tables.cost_rows import CostSizes, LayerType, Published, likely_reason
from threefold.lab.tables.table import TableContent, TableSection, TextGrid, Values

AGREE = 0.15  # the largest difference of two exponents that count as equal
QUANTITIES = {
    "forward": "forward pass",
    "training": "forward and backward pass",
    "step": "one step after n elements",
    "memory": "peak memory of a training pass",
}


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

    def content(self) -> TableContent:
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
        return TableContent(
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
            f"Forward passes that grow faster than n^1.5: {self._growing('forward', 1.5)}. Steps "
            "that get slower with the elements before them, more than n^0.1: "
            f"{self._growing('step', 0.1)}.",
        ]

    def _growing(self, quantity: str, least: float) -> str:
        """The mixers whose cost grows faster than n to a power."""
        names = [
            line.row.mixer
            for line in self.lines
            if len(points := line.points(quantity)) > 1 and growth(points).exponent > least
        ]
        return ", ".join(names) or "none"

    def passes(self) -> TableSection:
        header = (
            "layer",
            "mixer",
            "published order",
            "sequential steps",
            "longest path",
            "published exponent",
            "forward",
            "forward and backward",
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
            )
            for line in self.lines
        )
        grid = TextGrid(
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
        grids = (grid, self._times())
        return TableSection("passes", "One pass", self._where(), grids, figures)

    def _times(self) -> TextGrid:
        rows = tuple(
            (line.row.mixer, *(Axis("", "seconds").label(t) for _, t in line.points("forward")))
            for line in self.lines
        )
        header = ("mixer", *(f"{n:,} elements" for n in self.sizes.lengths))
        return TextGrid("Measured time of a forward pass", "", header, rows)

    def steps(self) -> TableSection:
        after = f"after {max(self.sizes.lengths):,}"
        header = (
            "layer",
            "mixer",
            "published order",
            "published exponent",
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
        grid = TextGrid("Time of one step after n elements", text, header, rows)
        figures = (
            self._figure("One step", "step", "seconds"),
            self._figure("State of one stream", "state", "bytes"),
        )
        return TableSection("steps", "One step", self._where(), (grid,), figures)

    def memories(self) -> TableSection:
        header = ("layer", "mixer", "published order", "published exponent", "measured", "peak")
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
        grid = TextGrid("Peak memory of a training pass", text, header, rows)
        figure = self._figure("Peak memory of a training pass", "memory", "bytes")
        return TableSection("memory", "Memory", self._where(), (grid,), (figure,))

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
                yield (
                    f"{line.row.mixer}, {QUANTITIES[quantity]}: {line.measured(quantity)} "
                    f"measured, n^{line.expected(quantity):.2f} published; probably because "
                    f"{likely_reason(gap)}."
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
