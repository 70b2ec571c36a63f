"""Time and memory of mixers at growing lengths: where their lines cross, and how fast they grow."""

from __future__ import annotations

import inspect
import itertools
import math
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from threefold.data.atomic_files import write_json
from threefold.drawing.axes import Axis
from threefold.drawing.charts import Figure, Line, Mark, line_chart
from threefold.drawing.text import format_seconds, format_value
from threefold.errors import ThreefoldError, nearest
from threefold.lab.bench.measuring import (
    MAX_CALL_SECONDS,
    MIN_LENGTHS,
    Growth,
    crossing,
    growth,
    in_turns,
    peak_memory,
)
from threefold.layers.mixer import Mixer
from threefold.layers.table import MIXERS, mixer, mixer_entry
from threefold.memory.forms import FORMS

REFERENCE = "attention"  # the others are compared with it, if it is measured


@dataclass(frozen=True)
class Shapes:
    """What to measure: mixers, lengths, forms and sizes."""

    mixers: tuple[str, ...]
    lengths: tuple[int, ...] = (256, 1024, 4096, 16_384)
    forms: tuple[str, ...] = ("auto",)
    width: int = 128
    batch: int = 1
    training: bool = False
    seconds: float = 0.4  # time limit of one measurement

    def __post_init__(self) -> None:
        for name in self.mixers:
            mixer_entry(name)
        for form in self.forms:
            if form not in (*FORMS, "auto"):
                raise ThreefoldError(f"unknown form {form!r}; {nearest(form, (*FORMS, 'auto'))}")
        if not self.mixers or not self.lengths or min(self.lengths) < 1 or self.batch < 1:
            raise ThreefoldError(
                f"nothing to measure: mixers {self.mixers}, lengths {self.lengths}, batch "
                f"{self.batch}; expected at least one mixer, and lengths and a batch of at least 1"
            )


@dataclass
class Measured:
    """One line of the figures: a mixer in one form."""

    name: str
    time: list[tuple[int, float]] = field(default_factory=list)
    memory: list[tuple[int, float]] = field(default_factory=list)
    refused: str = ""


@dataclass(frozen=True)
class Crossing:
    """The length from which on `name` needs less time (or memory) than `other`."""

    name: str
    other: str
    length: float
    value: float


@dataclass(frozen=True)
class Bench:
    """All measurements."""

    shapes: Shapes
    lines: tuple[Measured, ...]
    refused: tuple[
        tuple[str, str], ...
    ] = ()  # (name, why it was not measured, or not at all lengths)

    def crossings(self, quantity: str = "time") -> list[Crossing]:
        """Where each line falls below that of the reference."""
        names = [line.name for line in self.lines]
        other = next((n for n in names if n.split()[0] == REFERENCE), names[0])
        reference = dict(getattr(self.lines[names.index(other)], quantity))
        points = {
            line.name: crossing(dict(getattr(line, quantity)), reference)
            for line in self.lines
            if line.name != other
        }
        return [Crossing(name, other, *point) for name, point in points.items() if point]

    @property
    def figures(self) -> list[Figure]:
        """Time and memory against length, with the crossing points."""
        passes = "forward and backward" if self.shapes.training else "forward"
        shape = f"width {self.shapes.width}, batch size {self.shapes.batch}, {passes} pass"
        return [
            self._figure("Time against length", f"One layer, {shape}.", "time", "seconds"),
            self._figure("Peak memory against length", f"One layer, {shape}.", "memory", "bytes"),
        ]

    def _figure(self, title: str, text: str, quantity: str, unit: str) -> Figure:
        lines = [
            Line(line.name, i, [p for p in getattr(line, quantity) if p[1] > 0])
            for i, line in enumerate(self.lines)
        ]
        crossings = self.crossings(quantity)
        marks = [Mark(c.length, c.value, f"{c.length:,.0f}") for c in crossings]
        texts = [f"{c.name} is below {c.other} from length {c.length:,.0f} on" for c in crossings]
        sentence = f"{'; '.join(texts)}." if texts else ""
        return line_chart(
            title,
            f"{text} {sentence}".strip(),
            lines,
            Axis("length", "count", True, at=tuple(map(float, self.shapes.lengths))),
            Axis(quantity, unit, True, "low"),
            marks,
        )

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Header and rows: time and memory at each length, and the growth exponents."""
        header = ["mixer", *(f"length {n:,}" for n in self.shapes.lengths)]
        header += ["time grows like", "memory grows like"]
        rows = []
        for line in self.lines:
            taken, needed = dict(line.time), dict(line.memory)
            cells = [
                f"{format_seconds(taken[n])}, {format_value(needed.get(n, math.nan), 'bytes')}"
                if n in taken
                else "–"
                for n in self.shapes.lengths
            ]
            rows.append([line.name, *cells, exponent(line.time), exponent(line.memory)])
        return header, rows

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain JSON values."""
        return {
            **asdict(self),
            "crossings": {q: [asdict(c) for c in self.crossings(q)] for q in ("time", "memory")},
        }

    def save(self, folder: Path) -> Path:
        """Write bench.html, bench.json and the figures; returns the page."""
        from threefold.drawing.page import standalone

        (folder / "figures").mkdir(parents=True, exist_ok=True)
        for figure in self.figures:
            path = folder / "figures" / f"{figure.slug}.svg"
            path.write_text(standalone(figure), encoding="utf-8")
        write_json(folder / "bench.json", self.to_dict())
        path = folder / "bench.html"
        path.write_text(self._page(), encoding="utf-8")
        return path

    def _page(self) -> str:
        from threefold.drawing.page import figure_block, plain_page, table

        header, rows = self.table()
        drawn = "".join(map(figure_block, self.figures))
        names = ", ".join(self.shapes.mixers)
        body = f'<div class="pair">{drawn}</div>{table(header, rows, "Time and memory")}'
        return plain_page("threefold bench", f"Costs of one layer: {names}", body)


def _make_layers(shapes: Shapes) -> tuple[dict[str, tuple[Mixer, str]], dict[str, Measured]]:
    """The layers to measure, each with its form, and an empty line for every mixer and form."""
    layers: dict[str, tuple[Mixer, str]] = {}
    lines: dict[str, Measured] = {}
    for name, form in itertools.product(shapes.mixers, shapes.forms):
        title = name if shapes.forms == ("auto",) else f"{name} {form}"
        torch.manual_seed(0)
        layer = mixer(name, width=shapes.width, **length_option(name, max(shapes.lengths)))
        lines[title] = Measured(title)
        if form != "auto" and form not in layer.forms:
            lines[title].refused = f"has no {form} form"
        else:
            layers[title] = layer.train(shapes.training), form
    return layers, lines


def measure(shapes: Shapes, progress: Callable[[str], None] = lambda _: None) -> Bench:
    """Time and memory of every mixer and form at every length, measured in turns."""
    layers, lines = _make_layers(shapes)
    for length in sorted(shapes.lengths):
        progress(f"{length:,} elements")
        _measure_length(shapes, length, layers, lines)
    for line in lines.values():
        line.memory = [point for point in line.memory if point[1] > 0]
    measured = tuple(line for line in lines.values() if line.time)
    refused = tuple((line.name, line.refused) for line in lines.values() if line.refused)
    if not measured:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in refused)
        raise ThreefoldError(f"nothing could be measured: {reasons}")
    return Bench(shapes, measured, refused)


def _measure_length(
    shapes: Shapes,
    length: int,
    layers: dict[str, tuple[Mixer, str]],
    lines: dict[str, Measured],
) -> None:
    """Add the points of one length; layers that refuse it or are too slow stop there."""
    x = torch.randn(shapes.batch, length, shapes.width)
    works = {
        title: layer_work(layer, x, form, shapes.training)
        for title, (layer, form) in layers.items()
        if not lines[title].refused
    }
    for title, work in list(works.items()):
        try:
            work()
        except ThreefoldError as error:
            lines[title].refused = str(error)
            del works[title]
    for title, taken in in_turns(works, shapes.seconds).items():
        lines[title].time.append((length, taken))
        lines[title].memory.append((length, peak_memory(works[title])))
        if taken > MAX_CALL_SECONDS:
            lines[
                title
            ].refused = (
                f"not measured beyond {length:,} elements, which took {format_seconds(taken)}"
            )


def length_option(name: str, length: int) -> dict[str, int]:
    """The option `max_length` for mixers that have one, else nothing."""
    option = inspect.signature(MIXERS[name].load()).parameters.get("max_length")
    limited = option is not None and isinstance(option.default, int)
    return {"max_length": length} if limited else {}


def layer_work(layer: Mixer, x: Tensor, form: str, training: bool) -> Callable[[], None]:
    """One call of a layer, with or without the backward pass."""

    def forward() -> None:
        with torch.no_grad():
            layer(x, form=form)

    def both() -> None:
        leaf = x.requires_grad_()
        layer(leaf, form=form)[0].sum().backward()
        for parameter in (leaf, *layer.parameters()):
            parameter.grad = None

    return both if training else forward


def exponent(points: Iterable[tuple[int, float]]) -> str:
    """The growth as a table cell, or – for fewer than two points."""
    listed = list(points)
    return format_growth(growth(listed), len(listed)) if len(listed) > 1 else "–"


def format_growth(fit: Growth, points: int, variable: str = "L") -> str:
    """The exponent and the largest deviation from the fit, e.g. L^1.02 (± 3 %).

    Two points always fit, so their deviation says nothing and is left out.
    """
    power = f"{variable}^{round(fit.exponent, 2) + 0.0:.2f}"  # never -0.00
    return power if points < MIN_LENGTHS else f"{power} (± {100 * fit.residual:.0f} %)"


def parse_lengths(text: str) -> tuple[int, ...]:
    """Parse lengths such as 256,1k,16k."""
    lengths: list[int] = []
    for part in filter(None, (piece.strip().lower() for piece in text.split(","))):
        factor = 1024 if part.endswith("k") else 1
        digits = part.removesuffix("k")
        if not digits.isdigit() or int(digits) < 1:
            raise ThreefoldError(f"length {part!r}: expected whole numbers such as 256,1k,16k")
        lengths.append(factor * int(digits))
    if not lengths:
        raise ThreefoldError(f"no length in {text!r}: expected whole numbers such as 256,1k,16k")
    return tuple(sorted(set(lengths)))


def parse_names(text: str) -> tuple[str, ...]:
    """Parse and check a list of mixers, separated by commas."""
    names = tuple(dict.fromkeys(split_names(text)))
    for name in names:
        mixer_entry(name)
    return names


def split_names(text: str) -> tuple[str, ...]:
    """The names in a list that is separated by commas; none may be empty."""
    names = tuple(part.strip() for part in text.split(","))
    if "" in names:
        raise ThreefoldError(
            f"{text!r}: a name is empty; expected mixers, separated by commas: gru,mamba (known: "
            f"{', '.join(MIXERS)})"
        )
    return names
