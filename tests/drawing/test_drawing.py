"""Text and figures that all other folders share: numbers, sparklines, curves of a run."""

from __future__ import annotations

import json
import math
import zlib
from datetime import datetime
from pathlib import Path
from xml.etree import ElementTree

import pytest

from threefold.drawing.axes import Axis, interval_ends
from threefold.drawing.scatter import Dot, dot_chart
from threefold.drawing.small import curves_figure, png
from threefold.drawing.text import format_bytes, format_duration, largest, sparkline
from threefold.drawing.time_ticks import time_axis
from threefold.training.curves import MAX_POINTS, draw_run

SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (45, "45 s"), (200, "3 min 20 s"), (7500, "2 h 5 min"), (math.inf, "?")],
)
def test_durations(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (1000, "1,000 B"), (4000, "3.91 KiB"), (64 * 1024, "64 KiB"), (5e12, "4.55 TiB")],
)
def test_bytes(size: float, text: str) -> None:
    assert format_bytes(size) == text


def test_sparklines() -> None:
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7], 8) == "▁▂▃▄▅▆▇█"
    assert sparkline([0, 0, 7, 7], 2) == "▁█"
    assert sparkline([1, math.nan, math.inf, 2], 10) == "▁█"
    assert sparkline([3, 3], 10) == "▁▁" and sparkline([], 10) == sparkline([math.nan], 10) == ""
    # A single peak disappears in the mean, and is kept by `largest`.
    values = [0.0] * 50 + [1.0] + [0.0] * 49 + [2.0] * 100
    assert sparkline(values, 4) == "▁▁██"
    assert sparkline(values, 4, largest) == "▁▅██"


def test_curves_of_a_run(tmp_path: Path) -> None:
    steps = 3 * MAX_POINTS
    entries = [{"step": i + 1, "loss": 1 / (i + 1), "learning_rate": 1e-3} for i in range(steps)]
    entries[5]["loss"] = None  # a loss that is not finite
    entries[-1]["valid_loss"] = 0.5
    lines = "".join(json.dumps(entry) + "\n" for entry in entries)
    (tmp_path / "log.jsonl").write_text(lines, encoding="utf-8")
    loss, rate = draw_run(tmp_path)
    assert (loss.name, rate.name) == ("loss.svg", "learning_rate.svg")
    for path in (loss, rate):
        text = path.read_text(encoding="utf-8")
        assert text.startswith("<svg") and "<style>" in text
        # The rules are for an svg inside the class, as on a page.
        root = ElementTree.fromstring(text)
        assert root.get("class") == "threefold" and root.get("viewBox") == "0 0 410 290"
        assert [child.get("class") for child in root if child.tag == f"{SVG}svg"] == ["chart"]
        for line in ElementTree.fromstring(text).iter(f"{SVG}polyline"):
            points = [pair.split(",") for pair in (line.get("points") or "").split()]
            assert len(points) <= MAX_POINTS
            assert all(0 <= float(x) <= 410 and 0 <= float(y) <= 290 for x, y in points)
    labels = [text.text for text in ElementTree.parse(loss).iter(f"{SVG}text")]
    assert {"training", "validation", "step", "loss"} <= set(labels)


def test_a_run_without_a_log_has_no_figures(tmp_path: Path) -> None:
    assert draw_run(tmp_path) == []
    (tmp_path / "log.jsonl").write_text("")
    assert draw_run(tmp_path) == []


def test_an_image_is_a_png_of_its_pixels() -> None:
    pixels = [[[0], [255], [7]], [[1], [2], [3]]]
    data = png(pixels)
    assert data.startswith(b"\x89PNG\r\n\x1a\n") and data[16:24] == b"\0\0\0\x03\0\0\0\x02"
    start = data.index(b"IDAT")
    size = int.from_bytes(data[start - 4 : start], "big")
    rows = zlib.decompress(data[start + 4 : start + 4 + size])
    assert rows == b"\0\x00\xff\x07\0\x01\x02\x03"
    assert png([[[1, 2, 3]]])[25] == 2  # in colours


def test_curves_with_gaps() -> None:
    figure = curves_figure("Example 1", "", [0, 10, 20, 30], [[1.0, None, 2.0, 3.0]])
    path = ElementTree.fromstring(figure.svg).find(f"{SVG}g/{SVG}path")
    assert path is not None and (path.get("d") or "").count("M") == 2
    assert [row[1] for row in figure.rows] == ["1", "–", "2", "3"]


def test_a_wide_interval_does_not_crowd_the_dots() -> None:
    """An error is not below 0, and an interval of two seeds may be a hundred times the range."""
    axis = Axis("error", "number", better="low", least=0.0)
    assert interval_ends(1.0, 5.0, axis) == (0.0, 6.0)
    dots = [Dot("a", 0, 1.0, 1.0, error=500.0), Dot("b", 1, 2.0, 2.0), Dot("c", 100, 3.0, 3.0)]
    figure = dot_chart("t", "d", dots, ("a",), Axis("cost", "seconds", True), axis)
    heights = [
        float(circle.get("cy", "nan"))
        for circle in ElementTree.fromstring(figure.svg).iter(f"{SVG}circle")
    ]
    assert max(heights) - min(heights) > 40  # of 230 pixels
    assert [row[-1] for row in figure.rows] == ["yes", "no", "no"]
    assert 'class="dot hollow"' in figure.svg and 'data-series="100"' in figure.svg


def test_many_names_at_one_place_do_not_cover_each_other() -> None:
    dots = [Dot(f"model number {i}", i, 1 + 1e-4 * i, 5 + 1e-3 * i, size=10.0**i) for i in range(9)]
    sizes = Axis("cost", "seconds", True), Axis("score", "number"), Axis("memory", "bytes")
    figure = dot_chart("t", "d", [*dots, Dot("far", 9, 1000.0, 9.0, size=1.0)], (), *sizes)
    labels = [
        (float(text.get("x", "nan")), text.get("text-anchor"), float(text.get("y", "nan")))
        for text in ElementTree.fromstring(figure.svg).iter(f"{SVG}text")
        if "label" in (text.get("class") or "")
    ]
    for i, (_, side, y) in enumerate(labels):
        assert all(abs(y - other) >= 12.9 for _, s, other in labels[:i] if s == side)
    assert len(figure.header) == 5


@pytest.mark.parametrize(
    ("start", "length", "first", "count"),
    [
        ("2024-01-31 10:07", 90, "10:07:00", 4),
        ("2024-01-31 10:07", 3600 * 2, "10:30", 4),
        ("2024-02-28 22:10", 3600 * 8, "29 Feb 00:00", 4),
        ("2024-02-28 00:00", 0, "00:00:00", 1),
        ("2023-12-27 03:00", 86_400 * 5, "28 Dec", 5),
        ("2023-11-20 00:00", 86_400 * 120, "Dec 2023", 4),
        ("1991-02-01 00:00", 86_400 * 365 * 30, "1995", 6),
        ("0003-02-01 00:00", 86_400 * 365 * 4000, "3", 2),
    ],
)
def test_an_axis_of_time_has_its_ticks_at_whole_units(
    start: str, length: float, first: str, count: int
) -> None:
    low = (datetime.fromisoformat(start) - datetime(1970, 1, 1)).total_seconds()
    axis = time_axis("time", low, low + length)
    assert len(axis.at) == count and axis.label(axis.at[0]) == first
    assert all(low <= at <= low + length for at in axis.at)
    assert axis.label(low) in (start, first)
