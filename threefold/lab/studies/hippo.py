"""What each HiPPO measure remembers of a signal, and how accurately: `threefold lab hippo`.

A signal of at most ten periods is projected sample by sample; at its end, it is reconstructed from
the coefficients of each measure.  The figure also shows the measures, and how the error of LegS
decreases with the number of coefficients N: very fast for a smooth signal, like N^−3/2 for one with
corners.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from threefold.drawing.figures import COLOURS, FAINT, GREY, INK, new_figure, save, style
from threefold.memory.hippo import Fourier, Hippo, LagT, LegS, LegT

DURATION = 10.0  # of the signal, in units of time
SIZES = (4, 8, 12, 16, 24, 32, 48, 64)


@dataclass(frozen=True)
class Memory:
    """The memory of the signal under one measure, at its end."""

    name: str
    description: str
    projection: Hippo
    past: Tensor  # times before the end that are reconstructed
    reconstruction: Tensor
    error: float  # relative, over those times


def wave(samples: int) -> Tensor:
    """A sum of seven sines, the fastest with ten periods: smooth and not periodic in parts."""
    time = torch.arange(samples, dtype=torch.float64) / samples
    parts = [
        torch.sin(2 * math.pi * (n * time + n * n / 7)) / (1 + n / 5)
        for n in (1, 2, 3, 5, 7, 9, 10)
    ]
    return torch.stack(parts).sum(0) / 2


def triangle(samples: int) -> Tensor:
    """Two periods of a triangle wave, whose corners no polynomial can follow."""
    time = torch.arange(samples, dtype=torch.float64) / samples
    return (4 * time % 2 - 1).abs() - 0.5


def error(actual: Tensor, expected: Tensor) -> float:
    """‖actual − expected‖ / ‖expected‖."""
    return float((actual - expected).norm() / expected.norm())


def ages(samples: int) -> Tensor:
    """How long before the end each sample is, as a fraction of the whole signal."""
    return (torch.arange(samples, dtype=torch.float64).flip(0) + 0.5) / samples


def remember(signal: Tensor, size: int) -> list[Memory]:
    """The memory of the signal under each measure, reconstructed as far as the measure reaches."""
    period, past = DURATION / len(signal), ages(len(signal))
    legs = LegS(size)
    reconstruction = legs.reconstruct(legs.project(signal)[-1], past)
    description = "the whole past, equally weighted"
    memories = [
        Memory("LegS", description, legs, DURATION * past, reconstruction,
               error(reconstruction, signal))
    ]  # fmt: skip
    window = DURATION * 0.4
    odd = size - 1 + size % 2
    for name, description, projection, reach in (
        ("LegT", "a window, equally weighted", LegT(size, window), window),
        ("Fourier", "a window, as sines and cosines", Fourier(odd, window), window),
        (
            "LagT",
            "exponentially less weight for the distant past",
            LagT(size, DURATION / 20),
            window,
        ),
    ):
        inside = DURATION * past <= reach
        coefficients = projection.project(signal, period)[-1]
        values = projection.reconstruct(coefficients, DURATION * past)[inside]
        distance = error(values, signal[inside])
        memories.append(
            Memory(name, description, projection, DURATION * past[inside], values, distance)
        )
    return memories


def errors(signal: Tensor, sizes: tuple[int, ...] = SIZES) -> list[float]:
    """The relative error of LegS over the whole signal for each number of coefficients."""
    past = ages(len(signal))
    values = []
    for size in sizes:
        memory = LegS(size)
        values.append(error(memory.reconstruct(memory.project(signal)[-1], past), signal))
    return values


def draw(signal: Tensor, memories: list[Memory], curves: dict[str, list[float]]) -> Any:
    """The figure: signal and reconstructions on the left, measures and errors on the right."""
    with style():
        figure = new_figure(11.5, 7.2)
        left, right = figure.subfigures(1, 2, width_ratios=(2.4, 1), wspace=0.03)
        rows = left.subplots(len(memories), 1, sharex=True)
        for axes, memory, colour in zip(rows, memories, COLOURS, strict=False):
            _remembered(axes, signal, memory, colour)
        rows[-1].set_xlabel("time (the measure is shaded, the right end is the present)")
        upper, lower = right.subplots(2, 1)
        _measures(upper, memories)
        _falling(lower, curves)
    return figure


def _remembered(axes: Any, signal: Tensor, memory: Memory, colour: str) -> None:
    time = DURATION * (1 - ages(len(signal)))
    low, high = 1.15 * signal.min().item(), 1.15 * signal.max().item()
    past = DURATION - time
    scaled = past / DURATION if isinstance(memory.projection, LegS) else past
    weight = memory.projection.measure(scaled)
    weight = weight / weight.max() * 0.28 * (high - low)
    axes.fill_between(time, low, low + weight, color=colour, alpha=0.13, linewidth=0)
    axes.plot(time, signal, color=GREY, linewidth=3.2, alpha=0.55)
    axes.plot(DURATION - memory.past, memory.reconstruction, color=colour)
    axes.set_title(
        f"$\\bf{{{memory.name}}}$   {memory.description};  N = {memory.projection.size},  "
        f"error {100 * memory.error:.2g} %"
    )
    axes.set(xlim=(0, DURATION), ylim=(low, high), yticks=[])
    axes.spines["left"].set_visible(False)


def _measures(axes: Any, memories: list[Memory]) -> None:
    past = torch.linspace(0, DURATION, 1000, dtype=torch.float64)
    for memory, colour in zip(memories, COLOURS, strict=False):
        is_legs = isinstance(memory.projection, LegS)
        weight = memory.projection.measure(past / DURATION) / DURATION if is_legs else (
            memory.projection.measure(past)
        )  # fmt: skip
        dashes = (0, (4, 2.5)) if memory.name == "Fourier" else "-"
        axes.plot(past, weight, color=colour, label=memory.name, linestyle=dashes)
    axes.set(yscale="log", ylim=(1e-3, 4), xlim=(0, DURATION), xlabel="time before the present")
    axes.set_title("the measures: weight of each time")
    axes.grid(axis="y", color=FAINT, linewidth=0.7)
    axes.legend(loc="upper right", ncols=2, handlelength=1.6)


def _falling(axes: Any, curves: dict[str, list[float]]) -> None:
    for (name, values), colour in zip(curves.items(), (COLOURS[0], COLOURS[4]), strict=True):
        axes.plot(SIZES, values, "o-", color=colour, label=name, markersize=3.5)
    start = list(curves.values())[-1]
    expected = [1.6 * start[2] * (size / SIZES[2]) ** -1.5 for size in SIZES[2:]]
    axes.plot(SIZES[2:], expected, color=INK, linewidth=0.9, linestyle=":", label="$N^{-3/2}$")
    axes.axhline(0.02, color=GREY, linewidth=0.7)
    axes.annotate("2 %", (SIZES[0], 0.02), xytext=(0, 3), textcoords="offset points", color=GREY)
    axes.set(xscale="log", yscale="log", xlabel="number of coefficients N")
    axes.set_xticks([4, 8, 16, 32, 64], ["4", "8", "16", "32", "64"], minor=False)
    axes.minorticks_off()
    axes.set_title("LegS: relative error over the whole signal")
    axes.grid(axis="y", color=FAINT, linewidth=0.7)
    axes.legend(loc="lower left", handlelength=1.6)


def run(folder: Path, size: int = 64, samples: int = 10_000) -> list[str]:
    """Draw hippo.png and hippo.svg; returns the lines to print."""
    signal = wave(samples)
    memories = remember(signal, size)
    curves = {"ten periods": errors(signal), "a triangle wave": errors(triangle(samples))}
    paths = save(draw(signal, memories, curves), folder, "hippo")
    lines = [f"{m.name:<9}{100 * m.error:7.2f} % error   {m.description}" for m in memories]
    return [*lines, *(f"wrote {path}" for path in paths)]
