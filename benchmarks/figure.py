"""The figure of a run: time by length with crossings, and ratios with their targets."""

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
Bar = tuple[str, Target, float]  # label, target, measured ratio

ATTENTION = "attention"


def available() -> bool:
    """Whether matplotlib is installed."""
    return importlib.util.find_spec("matplotlib") is not None


def draw(path: Path, results: Results) -> bool:
    """Write the figure in the format of the suffix; False if there is nothing to draw."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "threefold"
    from matplotlib import pyplot

    all_results = [result for of_benchmark in results.values() for result in of_benchmark]
    panels, bars = lines(all_results), ratios(all_results)
    columns = len(panels) + bool(bars)
    if not columns:
        return False
    height = max(5.0, 1.5 + 0.3 * len(bars))
    figure, axes = pyplot.subplots(
        1, columns, figsize=(6.5 * columns, height), squeeze=False, layout="constrained"
    )
    for axis, (title, panel) in zip(axes[0], panels.items(), strict=False):
        draw_lines(axis, title, panel)
    if bars:
        draw_bars(axes[0][-1], bars)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{os.getpid()}.{path.name}")
    figure.savefig(temporary)
    pyplot.close(figure)
    temporary.replace(path)
    return True


def lines(results: Iterable[Result]) -> dict[str, dict[str, Line]]:
    """Panels of lines of points; a point measured in several comparisons is their median."""
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
    """A bar for every target that was measured."""
    bars: list[Bar] = []
    for result in results:
        for target in result.targets:
            value = target.measured(result.medians)
            if value is not None:
                bars.append((f"{result.title}\n{target.text}", target, value))
    return bars


def draw_bars(axis: Any, bars: list[Bar]) -> None:
    """Each ratio relative to its limit: a bar that reaches 1 meets the target."""
    for row, (_, target, value) in enumerate(reversed(bars)):
        share = value / target.limit if target.faster else target.limit / value
        sign = "≥" if target.faster else "≤"
        axis.barh(row, share, color="tab:green" if target.met(value) else "tab:red")
        axis.annotate(
            f" {value:.2f} ({sign} {target.limit:g})", (share, row), va="center", fontsize=7
        )
    axis.set_yticks(range(len(bars)), [label for label, _, _ in reversed(bars)], fontsize=6)
    axis.axvline(1, color="black")
    axis.set(
        xscale="log", title="ratios and their targets", xlabel="1 is the target; right of it is met"
    )
