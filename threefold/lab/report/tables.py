"""The tables of a report, for the page, for Markdown and for the terminal."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from threefold.drawing.text import format_value
from threefold.lab.report.report import Contender, Report
from threefold.lab.report.results import calibration_error, longest_common

Column = tuple[str, list[str], int | None]  # title, cells, row of the best cell; None: no row

BASELINES = (
    "Simple models that were fitted to the same training data and scored on the same test "
    "examples: a sequence model that does not beat them is not worth its cost. They answer whole "
    "inputs, in batches: the time per element is the time for a whole input, divided by its "
    "length. Their size is that of all numbers that were fitted, in memory as on disk."
)


SHAPES = ("model", "mixer", "width", "depth", "channel mixer", "dropout", "spec digest")


def shape_rows(report: Report) -> list[tuple[str, ...]]:
    """The shapes of the models, for the page and for Markdown."""
    return [
        (
            c.name,
            c.mixer,
            str(c.width),
            str(c.depth),
            c.channel,
            f"{c.dropout:g}",
            c.digest[:12],
        )
        for c in report.ranked
    ]


def baseline_rows(report: Report) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """The table of the baselines, for the page and for Markdown."""
    header: tuple[str, ...] = (
        "baseline",
        f"test {report.subject.metric_with_unit}",
        "time to fit",
        f"time per {report.subject.element}",
        "size",
    )
    rows: list[tuple[str, ...]] = [
        (
            b.name,
            report.subject.score(b.quality.mean, b.quality.half),
            format_value(b.fit_seconds, "seconds"),
            format_value(b.decode_seconds, "seconds"),
            format_value(b.running_bytes, "bytes"),
        )
        for b in report.ranked_baselines
    ]
    return header, rows


def columns(report: Report) -> list[Column]:
    """The columns of the table, for the page and for Markdown."""
    ranked, subject = report.ranked, report.subject
    qualities = [_quality(report, c) for c in ranked]
    alone = len(qualities) == 1 or qualities[0] != qualities[1]
    listed: list[Column] = [(f"test {subject.metric_with_unit}", qualities, 0 if alone else None)]

    def add(title: str, values: Iterable[float], unit: str, best: str = "") -> None:
        numbers = list(values)
        if any(math.isfinite(v) for v in numbers):
            cells = [format_value(v, unit) for v in numbers]
            listed.append((title, cells, _best_row(numbers, best)))

    add("parameters", (c.parameters for c in ranked), "count")
    if subject.tuned:  # otherwise all models have that of the command
        add("learning rate", (c.learning_rate for c in ranked), "number")
    add(f"training speed, {subject.element}s/s", (c.training_rate for c in ranked), "count", "high")
    decode = (1 / c.decode_seconds for c in ranked)
    add(f"decode speed, {subject.element}s/s", decode, "count", "high")
    memory = _bytes_column("peak training memory", [c.cost.memory for c in ranked], subject.element)
    state = _bytes_column("state per stream", [c.cost.state for c in ranked], subject.element)
    add("size on disk", (c.extras.get("disk_bytes", math.nan) for c in ranked), "bytes", "low")
    found = [c.extras.get("calibration") or {} for c in ranked]
    add("calibration error", map(calibration_error, ranked), "percent", "low")
    bands = {f["nominal"] for f in found if "nominal" in f}
    if len(bands) == 1:
        share = format_value(bands.pop(), "percent")
        actual = [f.get("actual", math.nan) for f in found]
        add(f"values inside the {share} band", actual, "percent")
    return [*listed, *memory, *state]


def _bytes_column(
    title: str, costs: Sequence[Sequence[tuple[int, float]]], element: str
) -> list[Column]:
    """The bytes at the longest length at which all were measured; nothing if there is none."""
    found = longest_common(costs)
    if found is None:
        return []
    length, numbers = found
    cells = [format_value(value, "bytes") for value in numbers]
    return [(f"{title} at {length:,} {element}s", cells, _best_row(numbers, "low"))]


def _best_row(numbers: list[float], best: str) -> int | None:
    """The row of the "low"est or "high"est finite number; None where no single one is best."""
    if not best:
        return None
    choose = min if best == "low" else max
    found = choose(v for v in numbers if math.isfinite(v))
    return numbers.index(found) if numbers.count(found) == 1 or len(numbers) == 1 else None


def caption(report: Report) -> str:
    """How to read the table, and after how many elements decoding was measured."""
    order = "Best model first." if report.verdict.kind == "best" else "Sorted by score."
    texts = [order]
    if any(math.isfinite(c.quality.half) for c in report.ranked):
        text = "± is half the width of the 99 % confidence interval of the mean over seeds"
        clipped = any("[" in _quality(report, c) for c in report.ranked)
        texts.append(f"{text}, [low, high] are its ends." if clipped else f"{text}.")
    texts.append("The best value of each column is bold.")
    costs = [c.cost for c in report.ranked]
    decode = sorted({cost.decode[0][0] for cost in costs if cost.decode})
    if len(decode) == 1:
        texts.append(f"Decode speed was measured after {decode[0]:,} {report.subject.element}s.")
    return " ".join(texts)


def _quality(report: Report, contender: Contender) -> str:
    return report.subject.score(contender.quality.mean, contender.quality.half)
