"""x(t) = Σ_s e^(−(t−s)/τ) over the spikes s of each neuron,  y = W_o x + b_o:  only W_o is learned.

A random network of spiking neurons turns its inputs into a state that a linear read-out can use.
Maass, Natschläger & Markram 2002, "Real-time computing without stable states".
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from threefold.data.atomic_files import write_text
from threefold.drawing.axes import Axis
from threefold.drawing.charts import Figure
from threefold.drawing.page import standalone
from threefold.drawing.raster import raster_chart
from threefold.errors import ThreefoldError, nearest
from threefold.estimators.inputs import Array, ArrayLike, Series, match_array_type, read_series
from threefold.estimators.liquid_wiring import LiquidPlan, draw_input_amplitudes, draw_wiring
from threefold.estimators.reservoir_estimator import (
    ReservoirEstimator,
    ReservoirPiece,
    piece_ends,
)
from threefold.estimators.ridge_estimator import row_major_copy
from threefold.kernels import ops
from threefold.kernels.spiking_reservoir import SpikingConstants, SpikingWiring, state_shapes
from threefold.memory.state import State

INPUT_KINDS = ("current", "spikes")
LABEL_STATES = ("mean", "last")
CURRENT = 18.0  # nA: the largest weight of a current for an input_scale of 1
SATURATED = 0.5  # mean share of the refractory limit


@dataclass(kw_only=True, eq=False)
class LiquidStateMachine(ReservoirEstimator):
    """Map series [L, I] to series [L, O], or with `classify` series to labels, by spiking neurons.

    An element is a step of `time_step` ms.  Leaky integrate-and-fire neurons on a `grid`, a share
    `inhibitory` of them inhibitory, are connected with probability C exp(−(d/λ)²), λ the `reach`.
    With `delays` a spike takes 1.5 ms between excitatory neurons and 0.8 ms elsewhere; with
    `dynamics` synapses are depressed and facilitated by their spikes (U, D, F).  C, U, D, F and
    the mean amplitudes, which `weight_scale` multiplies, are the paper's, and so are the defaults
    of all times (ms), potentials (mV) and currents (nA).  Pairs are excitatory, inhibitory.

    Inputs reach a share `input_density` of the neurons: as currents, with weights of at most
    18 nA · `input_scale`, or as spike trains (`input_kind="spikes"`, spikes per step) through
    synapses of 18 nA (inhibitory: 9 nA) · `input_scale` on average.  The state that the read-out
    sees is the spikes filtered with `trace_time`.  Labels are read from its mean, or with
    `label_state="last"` from the last one, as in the paper.

    Deviations from the paper: potentials are exact for currents that are constant within a step,
    spikes happen at its end, and delays and refractory periods are whole steps, at least one; U is
    at most 1; no neuron is connected to itself; input synapses have neither delays nor dynamics;
    without `dynamics` a synapse keeps its efficacy at rest, U times its amplitude, and the liquid
    needs a `weight_scale` of about 0.2, because no depression limits its activity.

    >>> import numpy as np
    >>> inputs = np.random.default_rng(0).random((1000, 1))
    >>> smooth = np.convolve(inputs[:, 0], np.exp(-np.arange(60) / 20))[:1000]
    >>> machine = LiquidStateMachine(grid=(5, 3, 3), wash_out=100).fit(inputs, smooth)
    >>> machine.score(inputs, smooth) > 0.5
    True
    """

    grid: Sequence[int] = (15, 3, 3)
    inhibitory: float = 0.2
    reach: float = 2.0
    weight_scale: float = 1.0
    delays: bool = True
    dynamics: bool = True
    input_kind: str = "current"
    input_scale: float = 1.0
    input_density: float = 0.3
    time_step: float = 1.0
    membrane_time: float = 30.0
    threshold: float = 15.0
    reset: float = 13.5
    background: float = 13.5
    refractory: Sequence[float] = (3.0, 2.0)
    synapse_times: Sequence[float] = (3.0, 6.0)
    trace_time: float = 30.0
    label_state: str = "mean"
    wash_out: int = 0
    # Mean spikes per second and neuron while it was fitted.
    firing_rate: float | None = field(default=None, init=False, repr=False)
    _counts: Tensor | None = field(default=None, init=False, repr=False)

    drawn = (*SpikingWiring._fields, "weight_in", "start")

    def __post_init__(self) -> None:
        super().__post_init__()
        grid = _members(self.grid)
        if len(grid) != 3 or not all(isinstance(n, int) and n >= 1 for n in grid):
            raise self._bad("grid", "three whole numbers of at least 1")
        for setting in ("inhibitory", "input_density"):
            if not 0 <= getattr(self, setting) <= 1:
                raise self._bad(setting, "a share from 0 to 1")
        for setting in ("weight_scale", "input_scale"):
            if not 0 <= getattr(self, setting) < math.inf:
                raise self._bad(setting, "0 or more")
        for setting in ("reach", "time_step", "membrane_time", "trace_time"):
            if not 0 < getattr(self, setting) < math.inf:
                raise self._bad(setting, "a number above 0")
        for setting in ("refractory", "synapse_times"):
            pair = _members(getattr(self, setting))
            if len(pair) != 2 or not all(0 < time < math.inf for time in pair):
                raise self._bad(setting, "two times above 0, of excitatory and inhibitory neurons")
        if not self.reset < self.threshold:
            raise self._bad("reset", f"a potential below the threshold of {self.threshold}")
        for setting, known in (("input_kind", INPUT_KINDS), ("label_state", LABEL_STATES)):
            if getattr(self, setting) not in known:
                value = str(getattr(self, setting))
                raise ThreefoldError(
                    f"{self.name}: unknown {setting} {value!r}; {nearest(value, known)}"
                )

    @property
    def units(self) -> int:
        """The number of neurons."""
        return math.prod(self.grid)

    @property
    def wiring(self) -> SpikingWiring:
        """Neurons and synapses."""
        return SpikingWiring(*(self._learned(name) for name in SpikingWiring._fields))

    @property
    def _constants(self) -> SpikingConstants:
        times = (self.membrane_time, *self.synapse_times, self.trace_time)
        leak, excitatory, inhibitory, trace = (math.exp(-self.time_step / time) for time in times)
        # A resistance of 1 MΩ: 1 nA for a long time is 1 mV.
        potentials = (self.background, self.threshold, self.reset)
        return SpikingConstants(leak, 1 - leak, *potentials, excitatory, inhibitory, trace)

    def draw(self, inputs: int) -> None:
        """Draw a liquid for inputs of this size; the same seed gives the same liquid."""
        generator = torch.Generator().manual_seed(self.seed)
        plan = LiquidPlan(**{each.name: getattr(self, each.name) for each in fields(LiquidPlan)})
        wiring = draw_wiring(plan, generator)
        uniform = torch.rand(self.units, 1 + 2 * inputs, dtype=torch.float64, generator=generator)
        start, present, weight_in = torch.split(uniform, [1, inputs, inputs], 1)
        if self.input_kind == "spikes":
            weight_in = draw_input_amplitudes(wiring.inhibitory, inputs, generator)
        else:
            weight_in = CURRENT * (2 * weight_in - 1)
        weight_in = self.input_scale * weight_in * (present < self.input_density)
        self.tensors = {
            **wiring._asdict(),
            "weight_in": row_major_copy(weight_in),
            # Between reset and threshold, so that not all neurons spike together.
            "start": row_major_copy(self.reset + (self.threshold - self.reset) * start[:, 0]),
        }

    def _prepare(self, inputs: int, outputs: int) -> None:
        if not self._fixed:
            self.draw(inputs)
        self._check_size(inputs)

    def _empty_state(self, outputs: int) -> State:
        return {**super()._empty_state(outputs), "potential": self._learned("start").unsqueeze(0)}

    def _state_shapes(self, outputs: int) -> dict[str, tuple[int, ...]]:
        delays = self._learned("delays")
        slots = int(delays.max()) if len(delays) else 1
        return state_shapes(self.units, slots, len(delays) if self.dynamics else 0)

    def _drive(self, series: Series, first: int, last: int) -> Tensor:
        """W_in u of elements first … last − 1, [1, last − first, units]."""
        inputs = series.read(first, last)
        if self.input_kind == "spikes" and bool((inputs < 0).any()):
            index = first + int((inputs < 0).any(1).int().argmax())
            raise ThreefoldError(
                f"{series.name}: element {index} is negative, expected numbers of spikes; for "
                'other numbers choose input_kind="current"'
            )
        return (inputs @ self.tensors["weight_in"].T).unsqueeze(0)

    def _steps(self, series: Series, state: State) -> Iterator[tuple[int, Tensor, Tensor, State]]:
        """First element, traces, spikes and the state after each piece of a series."""
        self._check_size(series.size)
        options = {"synaptic": self.input_kind == "spikes", "dynamic": self.dynamics}
        wiring, constants = self.wiring, self._constants
        for first, last in piece_ends(series.length):
            drive = self._drive(series, first, last)
            traces, spikes, state = ops.spiking_reservoir(
                drive, wiring, state, constants, **options
            )
            if self._counts is not None:
                self._counts += torch.cat([spikes[0].sum(0), torch.tensor([last - first])])
            yield first, traces[0], spikes[0], state

    @torch.no_grad()
    def _pieces(
        self,
        inputs: Series | None,
        teacher: Series | None,
        state: State,
        noise: torch.Generator | None = None,
    ) -> Iterator[ReservoirPiece]:
        assert inputs is not None
        for first, traces, _, after in self._steps(inputs, state):
            yield ReservoirPiece(first, traces, after)

    def _pairs(
        self, inputs: ArrayLike | None, targets: ArrayLike
    ) -> list[tuple[Series | None, Series]]:
        if inputs is None:
            raise ThreefoldError(f"{self.name}: no inputs were given; nothing drives the liquid")
        return super()._pairs(inputs, targets)

    def _label_features(self, series: Series) -> Tensor:
        if self.label_state == "mean":
            return super()._label_features(series)
        *_, last = self._pieces(series, None, self._empty_state(0))
        return last.features[-1:]

    # ------------------------------------------------------------------- what the liquid does

    def states(self, inputs: Array) -> Any:
        """All states [L, units] of one series: its filtered spikes."""
        return match_array_type(inputs, self._run(inputs)[0])

    def spikes(self, inputs: Array) -> Any:
        """The spikes [L, units] of one series, 1 where a neuron spikes."""
        return match_array_type(inputs, self._run(inputs)[1])

    def raster(self, inputs: Array, path: str | PathLike[str] | None = None) -> Figure:
        """A raster of the spikes of one series; `path` is an SVG file to write it to."""
        file = None if path is None else Path(path)
        if file is not None and file.suffix.lower() != ".svg":
            raise ThreefoldError(f"{file}: unknown format; expected a name that ends in .svg")
        with self._watched():
            spikes = self._run(inputs)[1]
        inhibitory = self._learned("inhibitory") > 0
        groups = [
            (name, [(self.time_step * t.nonzero()[:, 0]).tolist() for t in spikes[:, kind].T])
            for name, kind in (("excitatory", ~inhibitory), ("inhibitory", inhibitory))
        ]
        end = self.time_step * len(spikes)
        rate = f"{float(spikes.sum()) / self.units / end * 1000:.1f} Hz"
        description = f"Spikes of {self.units:,} neurons in {end:g} ms, {rate} on average."
        figure = raster_chart("Spikes", description, groups, Axis("time, ms", "number"), end)
        if file is not None:
            write_text(file, standalone(figure))
        return figure

    @torch.no_grad()
    def _run(self, inputs: Array) -> tuple[Tensor, Tensor]:
        """Traces and spikes [L, units] of one series from the empty state."""
        (series,) = read_series("inputs", inputs)
        if not self.tensors:
            self._prepare(series.size, 0)
        pieces = list(self._steps(series, self._empty_state(0)))
        return torch.cat([piece[1] for piece in pieces]), torch.cat([piece[2] for piece in pieces])

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """Count spikes inside `with`; afterwards warn if the liquid is silent or saturated."""
        self._counts = torch.zeros(self.units + 1, dtype=torch.float64)
        try:
            yield
            counts, steps = self._counts[:-1], float(self._counts[-1])
        finally:
            self._counts = None
        per_second = 1000 / self.time_step
        limits = per_second / (self._learned("periods") + 1)
        rates = counts / steps * per_second
        self.firing_rate = float(rates.mean())
        share = float((rates / limits).mean())
        if self.firing_rate == 0:
            self._warn(
                f"is silent: no neuron spiked in {steps:,.0f} steps (0 Hz), so all states are 0",
                f"raise input_scale ({self.input_scale:g}) or background ({self.background:g} nA)",
            )
        elif share > SATURATED:
            self._warn(
                f"is saturated: {self.firing_rate:.0f} Hz, {share:.0%} of the limit that the "
                "refractory periods set, so the states say little about the inputs",
                f"lower input_scale ({self.input_scale:g}), weight_scale ({self.weight_scale:g}) "
                f"or background ({self.background:g} nA)",
            )

    def _warn(self, finding: str, advice: str) -> None:
        # Past the context manager and the method that was called, to its caller.
        warnings.warn(f"{self.name}: the liquid {finding}; {advice}", UserWarning, stacklevel=5)


def _members(value: Any) -> Sequence[Any]:
    """The members of a setting that should have several; a single number has none."""
    return value if isinstance(value, Sequence) else ()
