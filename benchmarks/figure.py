"""The figure of a run: time against length with the crossings, and ratios beside their targets."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.measure import Result, Target
from benchmarks.record import Results
from threefold.lab.bench.measuring import crossing

Line = dict[int, float]  # seconds by length
Bar = tuple[str, Target, float]  # what, its target, the ratio

ATTENTION = "attention"


def available() -> bool:
    """Whether matplotlib is there to draw with."""
    return importlib.util.find_spec("matplotlib") is not None


def draw(path: Path, results: Results) -> bool:
    """Write the figure in the format of the path's suffix; False if it would be empty."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "threefold"
    from matplotlib import pyplot

    everything = [result for found in results.values() for result in found]
    panels, bars = lines(everything), ratios(everything)
    drawn = len(panels) + bool(bars)
    if not drawn:
        return False
    height = max(5.0, 1.5 + 0.3 * len(bars))
    figure, axes = pyplot.subplots(
        1, drawn, figsize=(6.5 * drawn, height), squeeze=False, layout="constrained"
    )
    for axis, (title, panel) in zip(axes[0], panels.items(), strict=False):
        draw_lines(axis, title, panel)
    if bars:
        draw_bars(axes[0][-1], bars)
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{os.getpid()}.{path.name}")
    figure.savefig(beside)
    pyplot.close(figure)
    beside.replace(path)
    return True


def lines(results: Iterable[Result]) -> dict[str, dict[str, Line]]:
    """Panels of lines of points; attention, measured in every race, at its median race."""
    panels: dict[str, dict[str, dict[int, list[float]]]] = {}
    for result in results:
        for name, (line, length) in result.points.items():
            panel = panels.setdefault(result.panel, {})
            panel.setdefault(line, {}).setdefault(length, []).append(result.medians[name])
    return {
        title: {
            line: {length: sorted(times)[len(times) // 2] for length, times in sorted(at.items())}
            for line, at in panel.items()
        }
        for title, panel in panels.items()
    }


def draw_lines(axis: Any, title: str, panel: dict[str, Line]) -> None:
    attention = panel.get(ATTENTION, {})
    for name, line in panel.items():
        style = {"color": "black", "linewidth": 2.5} if name == ATTENTION else {}
        at = crossing(line, attention) if name != ATTENTION else None
        label = name if at is None else f"{name}, faster from {at[0]:,.0f}"
        milliseconds = [1e3 * seconds for seconds in line.values()]
        drawn = axis.plot(list(line), milliseconds, marker=".", label=label, **style)[0]
        if at is not None:
            axis.plot(at[0], 1e3 * at[1], "o", color=drawn.get_color(), markersize=8)
    axis.set(xscale="log", yscale="log", title=title, xlabel="length", ylabel="ms")
    axis.grid(alpha=0.3)
    axis.legend(fontsize=8)


def ratios(results: Iterable[Result]) -> list[Bar]:
    """Every target that was measured."""
    found = []
    for result in results:
        for target in result.targets:
            value = target.measured(result.medians)
            if value is not None:
                found.append((f"{result.title}\n{target.text}", target, value))
    return found


def draw_bars(axis: Any, bars: list[Bar]) -> None:
    """How far each ratio is from its limit: 1 is the limit, to the right of it is met."""
    for place, (_, target, value) in enumerate(reversed(bars)):
        share = value / target.limit if target.faster else target.limit / value
        sign = "≥" if target.faster else "≤"
        axis.barh(place, share, color="tab:green" if target.met(value) else "tab:red")
        axis.annotate(
            f" {value:.2f} ({sign} {target.limit:g})", (share, place), va="center", fontsize=7
        )
    axis.set_yticks(range(len(bars)), [what for what, _, _ in reversed(bars)], fontsize=6)
    axis.axvline(1, color="black")
    axis.set(
        xscale="log", title="ratios beside their targets", xlabel="1 is the target; right is met"
    )
