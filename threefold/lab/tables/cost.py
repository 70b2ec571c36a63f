"""cost ≈ c · n^p:  time and memory of one layer against the length n, beside the published order.

A published order such as n log n · d has no exponent of its own: the same line is fitted to it at
the measured lengths, and the two exponents are compared.
Vaswani et al. 2017, "Attention Is All You Need", table 1; Gu et al. 2022, "Efficiently Modeling
Long Sequences with Structured State Spaces", table 1.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

from threefold.lab.bench.bench import layer_work, length_option
from threefold.lab.bench.measuring import in_turns, peak_memory
from threefold.lab.tables.cost_content import CostContent, CostLine
from threefold.lab.tables.cost_rows import PRESETS, CostSizes, LayerType
from threefold.lab.tables.table import (
    Advance,
    RemadeTable,
    Results,
    TableCell,
    TableContent,
    Values,
)
from threefold.layers.mixer import Mixer
from threefold.layers.table import mixer

STEPS = 64  # elements of one measurement of a step


class CostTable(RemadeTable):
    """Whether layers cost what their papers say."""

    name = "cost"
    title = "Cost by layer type"
    presets: ClassVar[Mapping[str, CostSizes]] = PRESETS

    def cells(self, preset: str) -> list[TableCell]:
        sizes = self.presets[preset]
        return [_cell(sizes, row) for row in sizes.rows]

    def content(self, preset: str, results: Results) -> TableContent:
        sizes = self.presets[preset]
        lines = [CostLine(row, results[row.mixer], sizes) for row in sizes.rows]
        return CostContent(sizes, lines).content()


def _cell(sizes: CostSizes, row: LayerType) -> TableCell:
    settings = {
        "mixer": row.mixer,
        "options": dict(row.options),
        "lengths": list(sizes.lengths),
        "width": sizes.width,
        "seconds": sizes.seconds,
    }
    return TableCell(
        row.mixer, f"{row.layer} ({row.mixer})", settings, partial(measure, sizes, row)
    )


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
