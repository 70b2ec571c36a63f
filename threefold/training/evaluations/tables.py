"""An evaluation as facts and tables, for the terminal and for the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from threefold.drawing.text import format_number
from threefold.tasks.table import TEXT_KINDS

MOST_CLASSES = 30
MOST_STEPS = 12  # of a horizon in a table
UNITS = {
    **dict.fromkeys(("accuracy", "balanced_accuracy", "macro_f1", "coverage"), "percent"),
    **dict.fromkeys(("calibration_error", "exact_match", "precision", "recall", "f1"), "percent"),
    **dict.fromkeys(("exact", "probability", "nominal", "actual", "confidence"), "percent"),
    "smape": "per cent",
}
# The names of metrics in words; the others are their keys with spaces.
TITLES = {
    "mae": "MAE",
    "rmse": "RMSE",
    "mase": "MASE",
    "smape": "sMAPE",
    "r2": "R²",
    "f1": "F1",
    "macro_f1": "macro F1",
    "bleu": "BLEU",
    "chrf": "chrF",
    "calibration_error": "expected calibration error",
    "pinball": "pinball loss",
    "coverage": "coverage of the interval",
}
# The metrics of each kind, the first of them the headline, and whether lower is better.
HEADLINES = {
    "accuracy": False,
    "exact_match": False,
    "mae": True,
    "mase": True,
    "bits_per_byte": True,
    "bits_per_token": True,
}
SHOWN = (
    *("accuracy", "balanced_accuracy", "macro_f1", "calibration_error"),
    *("mae", "rmse", "mase", "smape", "pinball", "coverage", "r2"),
    *("bits_per_byte", "bits_per_token", "nats_per_token", "perplexity"),
    *("exact_match", "bleu", "chrf"),
)


class TextTable(NamedTuple):
    """A table of texts."""

    title: str
    header: tuple[str, ...]
    rows: list[tuple[str, ...]]
    note: str = ""


def title_of(name: str) -> str:
    """A metric in words."""
    return TITLES.get(name, name.replace("_", " "))


def format_metric(name: str, value: Any) -> str:
    """A metric with its unit; what is not known is a dash."""
    if value is None:
        return "–"
    unit = UNITS.get(name)
    if unit == "percent":
        return f"{100 * value:.1f} %"
    if unit == "per cent":
        return f"{value:.1f} %"
    return format_number(value) if isinstance(value, (int, float)) else str(value)


def headline(values: Mapping[str, Any]) -> str:
    """The metric that is named first."""
    known = [name for name in HEADLINES if values.get(name) is not None]
    return known[0] if known else str(values["metric"])


def facts(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Model, data, metrics and baseline, as pairs to print."""
    rows = [("model", str(values["model"])), ("data", _data(values))]
    rows.append(("loss", format_metric("loss", values["loss"])))
    shown = [name for name in SHOWN if name in values]
    metric = values["metric"]
    outputs = values.get("outputs", {})
    if len(outputs) > 1:  # their mean would have no unit
        return [*rows, *(_output_fact(*item) for item in outputs.items())]
    if not shown:
        shown = [metric]
    rows += [(title_of(name), _fact(values, name)) for name in shown]
    if baseline := values.get("baseline"):
        name = headline(values)
        score = format_metric(name, baseline.get(name))
        rows.append(("baseline", f"{title_of(name)} {score} ({baseline['name']})"))
    elif metric in shown:
        rows.append(("baseline", f"{format_metric(metric, values['chance'])} (chance level)"))
    if scale := values.get("mase_scale"):
        rows.append(("MASE compares with", _scale(scale)))
    return rows


def _output_fact(name: str, errors: Mapping[str, Any]) -> tuple[str, str]:
    baseline = errors["baseline"]
    other = f"{format_metric('mae', baseline['mae'])} for the {baseline['name']}"
    return f"MAE of {name}", f"{format_metric('mae', errors['mae'])} ({other})"


def _data(values: Mapping[str, Any]) -> str:
    split = "all of it" if values["split"] == "all" else f"{values['split']} split"
    names = {"forecaster": "origins", "tagger": "sequences"}
    is_text = values["kind"] in TEXT_KINDS
    what = "windows" if is_text else names.get(values["kind"], "examples")
    parts = [f"{values['data']}, {split}, {values['n']:,} {what}"]
    if is_text:
        size = "" if values["bytes"] is None else f", {values['bytes']:,} bytes"
        parts.append(f"{values['tokens']:,} tokens{size}")
    elif values.get("targets", values["n"]) != values["n"]:
        parts.append(f"{values['targets']:,} targets")
    return ", ".join(parts)


def _fact(values: Mapping[str, Any], name: str) -> str:
    text = format_metric(name, values[name])
    if name == "accuracy":
        return f"{text} ({values['correct']:,} of {values['targets']:,})"
    if name == "coverage" and (levels := values.get("picture_levels")):
        return f"{text} (nominal {100 * (levels[1] - levels[0]):.0f} %)"
    return text


def _scale(scale: Mapping[str, Any]) -> str:
    rows = scale["rows"]
    how = "the value before" if rows == 1 else f"the value of {rows:,} rows before"
    known = [value for value in scale["values"] if value is not None]
    if not known:
        return "nothing: there is no history to compare with"
    shown = ", ".join(f"{value:.4g}" for value in known)
    return f"{how}, whose mean error in the {scale['source']} is {shown}"


def tables(values: Mapping[str, Any]) -> list[TextTable]:
    """All tables that an evaluation has, without the worst examples."""
    made = [*_classes(values), *_confused(values), *_targets(values)]
    made += [*_horizon(values), *_series(values), *_intervals(values), *_positions(values)]
    return [table for table in made if table.rows]


def _positions(values: Mapping[str, Any]) -> list[TextTable]:
    """Errors along a stream, with the state carried all the way beside a fresh one."""
    places = values.get("by_position")
    if places is None:
        return []
    unit = title_of(places["unit"])
    rows: list[tuple[str, ...]] = [
        (
            f"{line['begin']:,} to {line['end']:,}",
            format_number(line["carried"]),
            format_number(line["fresh"]),
            f"{line['carried'] / line['fresh']:.3f}" if line["fresh"] else "–",
        )
        for line in places["lines"]
    ]
    far = places["ratio_far"]
    note = "" if far is None else f"from {places['far']:,} elements on: {far:.3f} × the fresh state"
    header = ("elements of the stream", f"{unit}, state carried", f"{unit}, fresh state", "ratio")
    return [TextTable("Errors along a stream", header, rows, note)]


def _rows(entries: Sequence[Mapping[str, Any]], names: Sequence[str]) -> list[tuple[str, ...]]:
    return [tuple(format_metric(name, entry.get(name)) for name in names) for entry in entries]


def _classes(values: Mapping[str, Any]) -> list[TextTable]:
    if "classes" not in values:
        return []
    names = ("label", "precision", "recall", "f1", "support", "answered")
    entries = sorted(values["classes"], key=lambda row: -row["support"])
    shown, left = entries[:MOST_CLASSES], max(0, len(entries) - MOST_CLASSES)
    note = f"and {left:,} more classes" if left else ""
    header = ("class", *map(title_of, names[1:]))
    return [TextTable("Classes", header, _rows(shown, names), note)]


def _confused(values: Mapping[str, Any]) -> list[TextTable]:
    names = ("label", "answer", "n")
    rows = _rows(values.get("most_confused", []), names)
    return [TextTable("Commonest mistakes", ("label", "answer", "number"), rows)]


def _targets(values: Mapping[str, Any]) -> list[TextTable]:
    """Forecast or regression errors of each target beside the baselines."""
    targets = values.get("by_target") or values.get("outputs") or {}
    names = [n for n in ("mae", "rmse", "mase", "smape", "r2") if _some(targets, n)]
    rows = []
    for target, errors in targets.items():
        baselines = errors.get("baselines") or {errors["baseline"]["name"]: errors["baseline"]}
        rows.append((target, "model", *_cells(errors, names)))
        rows += [(target, name, *_cells(line, names)) for name, line in baselines.items()]
    header = ("target", "forecast" if "by_target" in values else "answer", *map(title_of, names))
    return [TextTable("Errors beside the baselines", header, rows)]


def _some(targets: Mapping[str, Any], name: str) -> bool:
    return any(errors.get(name) is not None for errors in targets.values())


def _cells(errors: Mapping[str, Any], names: Sequence[str]) -> tuple[str, ...]:
    return tuple(format_metric(name, errors.get(name)) for name in names)


def _horizon(values: Mapping[str, Any]) -> list[TextTable]:
    """Errors by step ahead; a long horizon is thinned."""
    made = []
    targets = values.get("by_target", {})
    for target, errors in targets.items():
        entries = errors["by_horizon"]
        every = -(-len(entries) // MOST_STEPS)
        steps = [*entries[: len(entries) - 1 : every], entries[-1]]
        names = ["step", "mae", "rmse", "mase", "smape", "pinball", "coverage"]
        names = [name for name in names if entries[0].get(name) is not None]
        title = "Errors by step ahead" + (f": {target}" if len(targets) > 1 else "")
        made.append(TextTable(title, tuple(map(title_of, names)), _rows(steps, names)))
    return made


def _series(values: Mapping[str, Any]) -> list[TextTable]:
    names = ["series", "n", "mae", "rmse", "mase", "smape"]
    header = ("series", "origins", *map(title_of, names[2:]))
    return [TextTable("Series, the worst first", header, _rows(values.get("by_series", []), names))]


def _intervals(values: Mapping[str, Any]) -> list[TextTable]:
    rows = []
    for target, errors in values.get("by_target", {}).items():
        for line in errors["intervals"]:
            ends = f"{line['from']:g} to {line['to']:g}"
            rows.append((target, ends, *_cells(line, ("nominal", "actual"))))
    header = ("target", "quantiles", "nominal", "actual")
    return [TextTable("Coverage of the intervals", header, rows)]
