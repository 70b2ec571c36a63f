"""figures/loss.svg and learning_rate.svg of a run, drawn without any library."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from threefold.data.atomic_files import told, write_file

WIDTH, HEIGHT, LEFT, BOTTOM, TOP, RIGHT = 720, 320, 64, 40, 36, 16
POINTS = 600  # of a line; more are averaged
COLOURS = ("#0072b2", "#d55e00", "#009e73")
STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#555}"
    ".left{text-anchor:end;dominant-baseline:middle}.mid{text-anchor:middle}"
    ".title{font-size:14px;font-weight:600}.grid{stroke:#8884;stroke-width:1}"
    "polyline{fill:none;stroke-width:1.6;stroke-linejoin:round}"
    "@media(prefers-color-scheme:dark){text{fill:#bbb}}"
)
Line = tuple[str, Sequence[float], Sequence[float]]  # name, x, y


def draw_run(folder: Path) -> list[Path]:
    """The pictures of a run's log; those that there is something for."""
    log = folder / "log.jsonl"
    if not log.exists():
        return []
    lines = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    if not lines:
        return []
    steps = [line["step"] for line in lines]
    judged = [line for line in lines if "valid_loss" in line]
    curves: list[Line] = [("training", *_thinned(steps, [_loss(line, "loss") for line in lines]))]
    if judged:
        at = [line["step"] for line in judged]
        curves.append(("validation", at, [_loss(line, "valid_loss") for line in judged]))
    rates: list[Line] = [
        ("learning rate", *_thinned(steps, [line["learning_rate"] for line in lines]))
    ]
    figures = folder / "figures"
    with told(figures):
        figures.mkdir(exist_ok=True)
    made = []
    for name, title, drawn in (("loss", "loss", curves), ("learning_rate", "learning rate", rates)):
        path, picture = figures / f"{name}.svg", chart(title, drawn)
        write_file(path, lambda new, picture=picture: _write(new, picture))  # type: ignore[misc]
        made.append(path)
    return made


def chart(title: str, lines: Sequence[Line]) -> str:
    """Lines over steps as SVG, readable on light and on dark."""
    xs = [x for _, line, _ in lines for x in line]
    ys = [y for _, _, line in lines for y in line if math.isfinite(y)]
    low, high = (min(ys), max(ys)) if ys else (0.0, 1.0)
    pad = 0.05 * (high - low) or abs(high) * 0.05 or 1.0
    low, high, last = low - pad, high + pad, max(xs, default=1) or 1

    def place(x: float, y: float) -> str:
        across = LEFT + (WIDTH - LEFT - RIGHT) * x / last
        down = TOP + (HEIGHT - TOP - BOTTOM) * (high - y) / (high - low)
        return f"{across:.1f},{down:.1f}"

    parts = []
    for value in ticks(low, high, 5):
        end, down = place(last, value).split(",")
        parts.append(f'<path class="grid" d="M{LEFT},{down}H{end}"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{down}" class="left">{value:.4g}</text>')
    for value in ticks(0, last, 6):
        across = place(value, low).split(",")[0]
        parts.append(
            f'<text x="{across}" y="{HEIGHT - BOTTOM + 18}" class="mid">{value:,.0f}</text>'
        )
    parts.append(f'<text x="{WIDTH / 2}" y="{HEIGHT - 6}" class="mid">step</text>')
    for i, (name, line_x, line_y) in enumerate(lines):
        colour = COLOURS[i % len(COLOURS)]
        points = " ".join(
            place(x, y) for x, y in zip(line_x, line_y, strict=True) if math.isfinite(y)
        )
        parts.append(f'<polyline points="{points}" stroke="{colour}"/>')
        if len(lines) > 1:
            beside = WIDTH - RIGHT - 110 * (len(lines) - i)
            parts.append(f'<text x="{beside}" y="22" style="fill:{colour}">{escape(name)}</text>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">'
        f"<title>{escape(title)} over steps</title><style>{STYLE}</style>"
        f'<text x="{LEFT}" y="22" class="title">{escape(title)}</text>{"".join(parts)}</svg>\n'
    )


def ticks(low: float, high: float, count: int) -> list[float]:
    """Round numbers within a range."""
    raw = (high - low) / max(count, 1)
    power = 10.0 ** math.floor(math.log10(raw)) if raw > 0 else 1.0
    step = next(power * m for m in (1, 2, 5, 10) if power * m >= raw) if raw > 0 else 1.0
    first = math.ceil(low / step)
    return [i * step for i in range(first, math.floor(high / step) + 1)]


def _thinned(xs: list[int], ys: list[float]) -> tuple[list[float], list[float]]:
    """At most POINTS points, each the mean of its neighbours."""
    size = -(-len(xs) // POINTS)
    groups = [slice(i, i + size) for i in range(0, len(xs), size)]
    return (
        [float(xs[group][-1]) for group in groups],
        [sum(ys[group]) / len(ys[group]) for group in groups],
    )


def _loss(line: dict[str, Any], name: str) -> float:
    """A loss of the log, where null is no number."""
    return math.nan if line[name] is None else float(line[name])


def _write(path: Path, content: Any) -> None:
    path.write_text(content, encoding="utf-8")
