"""figures/loss.svg and figures/learning_rate.svg of a run folder, drawn from its log."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from threefold.data.atomic_files import report_write_errors, write_text
from threefold.drawing.axes import Axis
from threefold.drawing.charts import Figure, Line, Point, line_chart
from threefold.drawing.page import standalone

MAX_POINTS = 600  # of a line; longer ones are averaged


def read_history(folder: Path) -> list[dict[str, Any]]:
    """The log of a run: a dictionary for each step; empty if nothing was logged."""
    log = folder / "log.jsonl"
    if not log.exists():
        return []
    return [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]


def draw_run(folder: Path) -> list[Path]:
    """Draw the curves of a run's log, if it has one; returns the paths of the figures."""
    entries = read_history(folder)
    if not entries:
        return []
    figures = folder / "figures"
    with report_write_errors(figures):
        figures.mkdir(exist_ok=True)
    charts = {"loss": loss_chart(entries), "learning_rate": rate_chart(entries)}
    return [_write(figures / f"{name}.svg", chart) for name, chart in charts.items()]


def loss_chart(entries: Sequence[dict[str, Any]]) -> Figure:
    """Training and validation loss over steps."""
    training = _points(entries, "loss")
    validation = _points((entry for entry in entries if "valid_loss" in entry), "valid_loss")
    lines = [Line("training", 0, _averaged(training)), Line("validation", 1, validation)]
    return line_chart("Loss", "Loss over steps.", lines, Axis("step"), Axis("loss", "number"))


def rate_chart(entries: Sequence[dict[str, Any]]) -> Figure:
    """Learning rate over steps."""
    lines = [Line("learning rate", 0, _averaged(_points(entries, "learning_rate")))]
    axes = Axis("step"), Axis("learning rate", "number")
    return line_chart("Learning rate", "Learning rate over steps.", lines, *axes)


def _points(entries: Iterable[dict[str, Any]], name: str) -> list[Point]:
    """(step, value) where the value is a finite number; the log has null for one that is not."""
    values = [(float(entry["step"]), entry[name]) for entry in entries]
    return [(step, value) for step, value in values if value is not None and math.isfinite(value)]


def _averaged(points: Sequence[Point]) -> list[Point]:
    """At most MAX_POINTS points, each the mean of its neighbours at the last of their steps."""
    size = max(1, math.ceil(len(points) / MAX_POINTS))
    groups = [points[i : i + size] for i in range(0, len(points), size)]
    return [(group[-1][0], fmean(value for _, value in group)) for group in groups]


def _write(path: Path, figure: Figure) -> Path:
    write_text(path, standalone(figure))
    return path
