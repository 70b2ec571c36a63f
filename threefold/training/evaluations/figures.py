"""The figures of an evaluation, from its JSON values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from threefold.drawing.axes import Axis
from threefold.drawing.charts import Figure, Line, line_chart
from threefold.drawing.matrix import matrix_chart
from threefold.training.evaluations.tables import format_metric

MOST_CLASSES = 20  # of a matrix that is drawn


def figures(values: Mapping[str, Any]) -> list[Figure]:
    """All figures for which there are numbers."""
    drawn = [*_confusion(values), *_reliability(values)]
    drawn += [*_answers(values), *_pictures(values), *_horizons(values)]
    return [*drawn, *_positions(values)]


def _positions(values: Mapping[str, Any]) -> Iterator[Figure]:
    """Errors along a stream."""
    places = values.get("by_position")
    if places is None or len(places["lines"]) < 2:
        return
    yield position_chart({"model": places})


def position_chart(curves: Mapping[str, Mapping[str, Any]]) -> Figure:
    """Errors against the position in a stream, of one or several models by name."""
    lines, unit = [], next(iter(curves.values()))["unit"]
    for number, (name, places) in enumerate(curves.items()):
        middles = [(line["begin"] or line["end"] / 4, line["end"]) for line in places["lines"]]
        for kind, series in (("carried", 2 * number), ("fresh", 2 * number + 1)):
            points = [
                ((begin * end) ** 0.5, line[kind])
                for (begin, end), line in zip(middles, places["lines"], strict=True)
            ]
            title = f"{name}, {kind}" if len(curves) > 1 else f"state {kind}"
            lines.append(Line(title, series, points))
    text = (
        "The error of the same elements with the state carried from the beginning of the stream, "
        "and with one that has read as little as in training."
    )
    x = Axis("elements of the stream so far", logarithmic=True)
    return line_chart("Errors along a stream", text, lines, x, Axis(unit_title(unit), "number"))


def unit_title(unit: str) -> str:
    """The unit of an error in words."""
    return {"mae": "mean absolute error"}.get(unit, unit.replace("_", " "))


def _confusion(values: Mapping[str, Any]) -> Iterator[Figure]:
    """The classes that occur most, and the mistakes among them."""
    if "confusion" not in values:
        return
    classes, counts = values["classes"], values["confusion"]
    order = sorted(range(len(classes)), key=lambda i: -classes[i]["support"])[:MOST_CLASSES]
    chosen = sorted(order)
    names = [classes[i]["label"] for i in chosen]
    table = [[counts[i][j] for j in chosen] for i in chosen]
    left = len(classes) - len(chosen)
    more = f" The {len(chosen)} commonest of {len(classes)} classes." if left else ""
    shades = "the stronger the colour, the larger the share of its row"
    text = f"Each row is a label, each column an answer; {shades}.{more}"
    yield matrix_chart("Confusion matrix", text, names, table)


def _reliability(values: Mapping[str, Any]) -> Iterator[Figure]:
    bins = values.get("calibration")
    if not bins:
        return
    error = format_metric("calibration_error", values["calibration_error"])
    points = [(line["confidence"], line["accuracy"]) for line in bins]
    lines = [
        Line("perfect", 7, [(0.0, 0.0), (1.0, 1.0)]),
        Line("model", 0, points),
    ]
    text = (
        "How often answers of a confidence are right; below the diagonal the model is "
        f"overconfident. Expected calibration error {error}."
    )
    ticks = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
    x = Axis("confidence", "percent", at=ticks)
    yield line_chart("Reliability", text, lines, x, Axis("accuracy", "percent", at=ticks))


def _answers(values: Mapping[str, Any]) -> Iterator[Figure]:
    """The answers of a regressor beside the targets."""
    for name, errors in values.get("outputs", {}).items():
        groups = errors["by_size"]
        if len(groups) < 2:
            continue
        ends = [groups[0]["target"], groups[-1]["target"]]
        lines = [
            Line("perfect", 7, [(end, end) for end in ends]),
            Line(
                "model",
                0,
                [(group["target"], group["answer"]) for group in groups],
                band=[(group["target"], group["low"], group["high"]) for group in groups],
            ),
        ]
        text = (
            f"Examples in {len(groups)} groups by the size of their target: its mean, and the mean "
            "of the answers; the band has the middle 80\u00a0% of them."
        )
        axes = Axis(f"{name}, target", "number"), Axis(f"{name}, answer", "number")
        yield line_chart(f"Answers and targets: {name}", text, lines, *axes)


def _horizons(values: Mapping[str, Any]) -> Iterator[Figure]:
    targets = values.get("by_target", {})
    for target, errors in targets.items():
        steps = errors["by_horizon"]
        if len(steps) < 2:
            continue
        lines = [Line("model", 0, _points([line["mae"] for line in steps]))]
        lines += [
            Line(name.replace("value of a season ago", "season ago"), series, _points(line))
            for series, (name, line) in enumerate(_baseline_lines(errors), 1)
        ]
        suffix = f" of {target}" if len(targets) > 1 else ""
        text = "The mean absolute error of each step, beside forecasts without a model."
        axes = Axis("steps ahead"), Axis(f"MAE, {target}", "number", better="low")
        yield line_chart(f"Errors by step ahead{suffix}", text, lines, *axes)
        if steps[0].get("coverage") is not None:
            yield _coverage(values, suffix, steps)


def _baseline_lines(errors: Mapping[str, Any]) -> list[tuple[str, list[float | None]]]:
    return [(name, line["mae_by_horizon"]) for name, line in errors["baselines"].items()]


def _coverage(values: Mapping[str, Any], suffix: str, steps: Sequence[Mapping[str, Any]]) -> Figure:
    low, high = values["picture_levels"]
    points = _points([line["coverage"] for line in steps])
    nominal = [(points[0][0], high - low), (points[-1][0], high - low)]
    lines = [Line("nominal", 7, nominal), Line("model", 0, points)]
    text = f"The share of values between the quantiles {low:g} and {high:g}."
    axes = Axis("steps ahead"), Axis("coverage", "percent")
    return line_chart(f"Coverage by step ahead{suffix}", text, lines, *axes)


def _pictures(values: Mapping[str, Any]) -> Iterator[Figure]:
    target = next(iter(values.get("by_target", {"": None})))
    for picture in values.get("pictures", []):
        low, high = values["picture_levels"]
        name = {"typical": "A typical forecast", "worst": "The worst forecast"}[picture["title"]]
        text = (
            f"{target}, {picture['place']}; the band lies between quantiles {low:g} and {high:g}."
        )
        yield forecast_figure(name, text, picture, target)


def forecast_figure(title: str, text: str, picture: Mapping[str, Any], target: str) -> Figure:
    """What was known, what came, and what was forecast, with its band."""
    history, horizon = picture["history"], len(picture["truth"])
    past = _points(history, 1 - len(history))
    truth = [*past[-1:], *_points(picture["truth"], 1)]
    band = [
        (float(h + 1), picture["low"][h], picture["high"][h])
        for h in range(horizon)
        if None not in (picture["low"][h], picture["high"][h])
    ]
    lines = [
        Line("before", 7, past),
        Line("truth", 1, truth),
        Line("forecast", 0, _points(picture["forecast"], 1), band=band),
    ]
    axes = Axis("steps from the last known row", "number"), Axis(target, "number")
    return line_chart(title, text, lines, *axes)


def _points(numbers: Sequence[float | None], first: int = 1) -> list[tuple[float, float]]:
    return [(float(first + i), value) for i, value in enumerate(numbers) if value is not None]
