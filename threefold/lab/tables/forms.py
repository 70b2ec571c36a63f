"""step = chunk = parallel:  how equal the forms of a linear memory are, and how long each takes.

The step in a loop is the definition; the other forms are compared with it in outputs, last states
and gradients.  Times are those of one forward pass.
Yang et al. 2024, "Gated Linear Attention Transformers with Hardware-Efficient Training", section 2.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

from threefold.drawing.axes import Axis
from threefold.drawing.charts import Figure, Line, line_chart
from threefold.lab.bench.bench import format_growth, layer_work
from threefold.lab.bench.measuring import crossing, growth, in_turns
from threefold.lab.tables.cost_rows import Published, likely_reason
from threefold.lab.tables.table import (
    Advance,
    RemadeTable,
    Results,
    TableCell,
    TableContent,
    TableSection,
    TextGrid,
    Values,
)
from threefold.layers.mixer import Mixer
from threefold.layers.table import MIXERS as ALL_MIXERS
from threefold.layers.table import mixer
from threefold.memory.forms import CHUNK_LENGTH, FORMS
from threefold.memory.state import leaves

MIXERS = ("linear_attention", "retnet", "gla", "mamba2", "delta_net", "gated_delta_net")
PUBLISHED = {
    "step": Published("n d²", lambda n, d: n * d * d),
    "chunk": Published("n C d + n d²", lambda n, d: n * CHUNK_LENGTH * d + n * d * d),
    "parallel": Published("n² d + n d²", lambda n, d: n * n * d + n * d * d),
}
SEQUENTIAL = {"step": "n", "chunk": "n/C", "parallel": "1"}
FITTED = 3  # the longest lengths, at which the highest power shows most
KINDS = ("outputs", "states", "gradients")
SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(frozen=True)
class FormSizes:
    """Sizes of a preset; `most` is the longest length of each form."""

    lengths: tuple[int, ...]
    most: Mapping[str, int]
    compared: int  # length at which the forms are compared
    mixers: tuple[str, ...] = MIXERS
    width: int = 64
    seconds: float = 0.2  # time limit of one measurement at one length

    def of(self, form: str) -> tuple[int, ...]:
        """The lengths at which a form is measured."""
        return tuple(n for n in self.lengths if n <= self.most[form])


PRESETS = {
    "seconds": FormSizes(
        (16, 32, 64), dict.fromkeys(FORMS, 64), 40, ("linear_attention", "gla"), 16, 0.001
    ),
    "minutes": FormSizes(
        (64, 256, 1024, 2048, 4096, 8192),
        {"step": 4096, "chunk": 8192, "parallel": 4096},
        500,
    ),
    "hours": FormSizes(
        (64, 256, 1024, 4096, 8192, 16_384, 32_768),
        {"step": 16_384, "chunk": 32_768, "parallel": 8192},
        2000,
        width=128,
        seconds=3.0,
    ),
}


class FormsTable(RemadeTable):
    """One memory, three ways to run it."""

    name = "forms"
    title = "Forms of a linear memory: step, chunk and parallel"
    presets: ClassVar[Mapping[str, FormSizes]] = PRESETS

    def cells(self, preset: str) -> list[TableCell]:
        sizes = self.presets[preset]
        return [
            cell
            for name in sizes.mixers
            for cell in (_equality_cell(sizes, name), *_time_cells(sizes, name))
        ]

    def content(self, preset: str, results: Results) -> TableContent:
        return FormsContent(self.presets[preset], results).content()


def _equality_cell(sizes: FormSizes, name: str) -> TableCell:
    settings = {"mixer": name, "width": sizes.width, "length": sizes.compared}
    return TableCell(
        f"{name}-equality", f"{name}: equality", settings, partial(measure_equality, sizes, name)
    )


def _time_cells(sizes: FormSizes, name: str) -> Iterator[TableCell]:
    for form in FORMS:
        settings = {
            "mixer": name,
            "form": form,
            "width": sizes.width,
            "lengths": list(sizes.of(form)),
            "seconds": sizes.seconds,
        }
        title, work = f"{name}: {form}", partial(measure_times, sizes, name, form)
        yield TableCell(f"{name}-{form}", title, settings, work)


def _layer(sizes: FormSizes, name: str) -> Mixer:
    torch.manual_seed(0)
    return mixer(name, width=sizes.width)


def measure_times(sizes: FormSizes, name: str, form: str, folder: Path, advance: Advance) -> Values:
    """CPU seconds of a forward pass in one form at all lengths, on one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        layer = _layer(sizes, name).eval()
        works = {
            n: layer_work(layer, torch.randn(1, n, sizes.width), form, training=False)
            for n in sizes.of(form)
        }
        taken = in_turns(works, sizes.seconds, min, time.process_time)
    finally:
        torch.set_num_threads(threads)
    return {"time": [[n, seconds] for n, seconds in sorted(taken.items())]}


def measure_equality(sizes: FormSizes, name: str, folder: Path, advance: Advance) -> Values:
    """The largest difference of each form to the step, by precision and kind of value."""
    values: Values = {}
    for dtype in (torch.float64, torch.float32):
        layer = _layer(sizes, name).to(dtype).eval()
        x = torch.randn(2, sizes.compared, sizes.width, dtype=dtype)
        expected = _everything(layer, x, "step")
        for form in ("chunk", "parallel"):
            given = _everything(layer, x, form)
            gaps = {
                kind: max(
                    _distance(one, other)
                    for one, other in zip(given[kind], expected[kind], strict=True)
                )
                for kind in KINDS
            }
            values[f"{form}-{str(dtype).removeprefix('torch.')}"] = gaps
    return values


def _everything(layer: Mixer, x: Tensor, form: str) -> dict[str, list[Tensor]]:
    """Outputs, the last state, and gradients of inputs and parameters in one form."""
    inputs = x.clone().requires_grad_()
    layer.zero_grad()
    outputs, state = layer(inputs, form=form)
    weights = torch.linspace(-1, 1, outputs.numel(), dtype=x.dtype).view_as(outputs)
    (outputs * weights).sum().backward()
    grads = [inputs.grad, *(parameter.grad for parameter in layer.parameters())]
    return {
        "outputs": [outputs.detach()],
        "states": [leaf.detach() for _, leaf in leaves(state) if leaf.is_floating_point()],
        "gradients": [grad for grad in grads if grad is not None],
    }


def _distance(given: Tensor, expected: Tensor) -> float:
    """The largest difference, relative to the largest value."""
    scale = float(expected.abs().max()) or 1.0
    return float((given - expected).abs().max()) / scale


@dataclass(frozen=True)
class FormsContent:
    """The table of all mixers and forms."""

    sizes: FormSizes
    results: Results

    def content(self) -> TableContent:
        largest = {kind: self.largest(kind) for kind in ("float64", "float32")}
        sentence = (
            f"The forms of {len(self.sizes.mixers)} linear memories are equal up to "
            f"{_power(largest['float64'])} in float64 and {_power(largest['float32'])} in float32"
        )
        return TableContent(
            sentence,
            list(self.summary()),
            [self.equality(), self.speed()],
            list(self.differences()),
            self.setup(),
            SOURCES,
            FORMS,
        )

    def points(self, name: str, form: str) -> list[tuple[int, float]]:
        return [(int(n), seconds) for n, seconds in self.results[f"{name}-{form}"]["time"]]

    def largest(self, dtype: str) -> float:
        """The largest difference of any form of any mixer."""
        gaps = [self.results[f"{name}-equality"] for name in self.sizes.mixers]
        return max(
            float(gap)
            for by_form in gaps
            for key, by_kind in by_form.items()
            if key.endswith(dtype)
            for gap in by_kind.values()
        )

    def summary(self) -> Iterator[str]:
        shared = max(set.intersection(*(set(self.sizes.of(form)) for form in FORMS)))
        for other in ("step", "parallel"):
            ratios = sorted(
                dict(self.points(name, other))[shared] / dict(self.points(name, "chunk"))[shared]
                for name in self.sizes.mixers
            )
            yield (
                f"At {shared:,} elements, the {other} form takes {ratios[0]:.0f} to "
                f"{ratios[-1]:.0f} times as long as chunks."
            )

    def equality(self) -> TableSection:
        header = (
            "mixer",
            "form",
            *(f"{kind}, {t}" for t in ("float64", "float32") for kind in KINDS),
        )
        rows = []
        for name in self.sizes.mixers:
            gaps = self.results[f"{name}-equality"]
            for form in ("chunk", "parallel"):
                cells = [
                    f"{gaps[f'{form}-{t}'][kind]:.1e}"
                    for t in ("float64", "float32")
                    for kind in KINDS
                ]
                rows.append((name, form, *cells))
        text = (
            f"The largest difference to the step, relative to the largest value, over "
            f"{self.sizes.compared:,} elements; gradients are those of the inputs and of all "
            "parameters. No unit."
        )
        grid = TextGrid("Difference to the step in a loop", text, header, tuple(rows))
        return TableSection(
            "equality",
            "Equality",
            "Rounding is all that may differ: float64 has 16 digits, float32 has 7.",
            (grid,),
        )

    def speed(self) -> TableSection:
        where = f"One layer of width {self.sizes.width}, batch size 1, one thread, no gradients."
        figures = tuple(map(self._figure, self.sizes.mixers))
        return TableSection("speed", "Time", where, (self._exponents(), self._times()), figures)

    def _exponents(self) -> TextGrid:
        header = (
            "mixer",
            "form",
            "published order",
            "sequential steps",
            "published exponent",
            "measured",
            "lengths",
        )
        rows = []
        for name in self.sizes.mixers:
            for form in FORMS:
                longest = self.points(name, form)[-FITTED:]
                rows.append(
                    (
                        name,
                        form,
                        PUBLISHED[form].text,
                        SEQUENTIAL[form],
                        f"n^{self._expected(name, form):.2f}",
                        format_growth(growth(longest), len(longest), "n"),
                        f"{longest[0][0]:,} to {longest[-1][0]:,}",
                    )
                )
        text = (
            f"Exponents are fitted at the {FITTED} longest lengths of each form; in brackets, the "
            f"largest deviation of a point. C is the chunk, {CHUNK_LENGTH} elements in plain torch."
        )
        return TextGrid("Growth of the time with the length", text, header, tuple(rows))

    def _times(self) -> TextGrid:
        rows = []
        for name in self.sizes.mixers:
            for form in FORMS:
                times = dict(self.points(name, form))
                known = (times.get(n, math.nan) for n in self.sizes.lengths)
                rows.append((name, form, *(Axis("", "seconds").label(value) for value in known)))
        header = ("mixer", "form", *(f"{n:,} elements" for n in self.sizes.lengths))
        text = "– : not measured at this length."
        return TextGrid("Time of one forward pass", text, header, tuple(rows))

    def _expected(self, name: str, form: str) -> float:
        lengths = [n for n, _ in self.points(name, form)[-FITTED:]]
        return PUBLISHED[form].exponent(lengths, self.sizes.width)

    def _figure(self, name: str) -> Figure:
        lines = [Line(form, i, self.points(name, form)) for i, form in enumerate(FORMS)]
        at = tuple(map(float, self.sizes.lengths))
        return line_chart(
            f"{ALL_MIXERS[name].title}: time by form",
            self._crossings(name),
            lines,
            Axis("length, elements", "count", True, at=at),
            Axis("time of a forward pass", "seconds", True, "low"),
        )

    def _crossings(self, name: str) -> str:
        """From which length on chunks are faster than the parallel form."""
        chunk, parallel = (dict(self.points(name, form)) for form in ("chunk", "parallel"))
        found = crossing(chunk, parallel)
        shared = set(chunk) & set(parallel)
        if found is not None:
            return f"Chunks are faster than the parallel form from {found[0]:,.0f} elements on."
        if all(chunk[n] <= parallel[n] for n in shared):
            return "Chunks are faster than the parallel form at every length."
        return "Chunks do not become faster than the parallel form within these lengths."

    def differences(self) -> Iterator[str]:
        yield (
            "The published orders are for hardware with many parallel units, where the number of "
            "sequential steps decides; on one thread the number of operations does."
        )
        for name in self.sizes.mixers:
            for form in FORMS:
                longest = self.points(name, form)[-FITTED:]
                gap = growth(longest).exponent - self._expected(name, form)
                if abs(gap) > 0.15:
                    yield (
                        f"{name}, {form}: n^{growth(longest).exponent:.2f} measured, "
                        f"n^{self._expected(name, form):.2f} published; probably because "
                        f"{likely_reason(gap)}."
                    )

    def setup(self) -> list[str]:
        return [
            f"Layers of width {self.sizes.width} with random weights and inputs.",
            "Times are CPU times of the process, the least of several rounds over all lengths in "
            "turns.",
            "The step form on n elements is n calls of the layer's step, as in a stream; most of "
            "its time is the cost of a call.",
            "The parallel form of the delta rule solves a triangular system of n equations for d "
            "columns, which has the order n² d as well.",
        ]


def _power(value: float) -> str:
    """A small number as a power of ten, e.g. 2 · 10⁻¹³."""
    if value == 0:
        return "0"
    digit, exponent = f"{value:.0e}".split("e")
    return f"{digit} · 10{str(int(exponent)).translate(SUPERSCRIPTS)}"


SOURCES = (
    'Yang et al. 2024, "Gated Linear Attention Transformers with Hardware-Efficient Training", '
    "section 2: orders of the parallel, recurrent and chunkwise form.",
    'Sun et al. 2023, "Retentive Network: A Successor to Transformer for Large Language Models": '
    "the three forms of one memory.",
)
