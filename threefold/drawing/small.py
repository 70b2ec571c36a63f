"""Small drawings of single examples: curves with the range of their values, and images."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Sequence

from threefold.drawing.axes import Axis, scale, text_width
from threefold.drawing.charts import Figure, figure_of
from threefold.drawing.series_style import colour, dash

WIDTH, HEIGHT = 300.0, 120.0
IMAGE = 180.0  # side of an image
Curve = Sequence[float | None]


def curves_figure(
    title: str, description: str, places: Sequence[int], curves: Sequence[Curve]
) -> Figure:
    """Curves over the numbers of their elements; gaps where a value is missing."""
    values = [value for curve in curves for value in curve if value is not None]
    y = scale(Axis("value", "number"), values, HEIGHT - 22, 32 - HEIGHT)
    low, high = (min(values), max(values)) if values else (0.0, 0.0)
    left = 8 + max(text_width(y.axis.label(value), 11) for value in (low, high))
    x = scale(Axis("element"), [float(place) for place in places], left, WIDTH - left - 8)
    parts = [
        f'<path class="grid" d="M{left:.1f} {y(value):.1f}H{WIDTH - 8:.0f}"/>'
        f'<text class="tick y" x="{left - 5:.1f}" y="{y(value) + 4:.1f}">{y.axis.label(value)}'
        "</text>"
        for value in dict.fromkeys((low, high))
    ]
    for series, curve in enumerate(curves):
        heights = [None if value is None else y(value) for value in curve]
        path = _path(list(zip(map(x, places), heights, strict=True)))
        parts.append(
            f'<g class="{colour(series)}"><path class="line thin" d="{path}" '
            f'stroke-dasharray="{dash(series)}"/></g>'
        )
    parts.append(
        f'<text class="axis" x="{left + (WIDTH - left) / 2:.0f}" y="{HEIGHT - 3:.0f}">elements '
        f"{places[0]:,} – {places[-1]:,}</text>"
    )
    rows = tuple(
        (str(place), *("–" if c[i] is None else y.axis.label(c[i] or 0.0) for c in curves))
        for i, place in enumerate(places)
    )
    header = ("element", *(f"channel {number}" for number in range(1, len(curves) + 1)))
    return figure_of(title, description, parts, header, rows, (WIDTH, HEIGHT))


def _path(points: Sequence[tuple[float, float | None]]) -> str:
    """An SVG path that is interrupted where there is no point."""
    path, pen = [], "M"
    for x, y in points:
        if y is None:
            pen = "M"
            continue
        path.append(f"{pen}{x:.1f} {y:.1f}")
        pen = "L"
    return "".join(path)


def image_figure(title: str, description: str, pixels: Sequence[Sequence[Sequence[int]]]) -> Figure:
    """An image of pixels [height][width][1 or 3] from 0 to 255."""
    data = base64.b64encode(png(pixels)).decode("ascii")
    height = IMAGE * len(pixels) / len(pixels[0])
    parts = [
        f'<image class="pixels" width="{IMAGE:g}" height="{height:g}" '
        f'href="data:image/png;base64,{data}"/>'
    ]
    rows = tuple(
        (str(number), " ".join("/".join(map(str, pixel)) for pixel in row))
        for number, row in enumerate(pixels, 1)
    )
    return figure_of(title, description, parts, ("row", "pixels"), rows, (IMAGE, height))


def png(pixels: Sequence[Sequence[Sequence[int]]]) -> bytes:
    """A PNG file, grey or in colours (ISO/IEC 15948: one filter byte before each row)."""
    kind = {1: 0, 3: 2}[len(pixels[0][0])]
    header = struct.pack(">IIBBBBB", len(pixels[0]), len(pixels), 8, kind, 0, 0, 0)
    rows = b"".join(b"\0" + bytes(v for pixel in row for v in pixel) for row in pixels)
    parts = [(b"IHDR", header), (b"IDAT", zlib.compress(rows, 9)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(*part) for part in parts)


def _chunk(name: bytes, body: bytes) -> bytes:
    check = struct.pack(">I", zlib.crc32(name + body))
    return struct.pack(">I", len(body)) + name + body + check
