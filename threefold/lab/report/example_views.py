"""The most wrong answers of the best model, as drawings, or as text with shades."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any, NamedTuple

from threefold.drawing.charts import Figure
from threefold.drawing.small import curves_figure, image_figure
from threefold.drawing.text import format_value
from threefold.lab.report.report import Report
from threefold.training.evaluations.figures import forecast_figure

SHADES = (1.0, 2.0, 4.0, 8.0)  # bits from which on a token has the next darker shade


class ExampleView(NamedTuple):
    """One example: a caption, and a drawing or a text."""

    caption: str
    figure: Figure | None = None
    text: str = ""
    html: str = ""  # the text with shades, instead of the plain one
    small: bool = False  # a drawing without axes


def example_views(report: Report) -> list[ExampleView]:
    """All examples of the best model that are known."""
    examples: Sequence[Mapping[str, Any]] = report.ranked[0].extras.get("worst") or ()
    return [VIEWS[item["form"]](item, number) for number, item in enumerate(examples, 1)]


def example_figures(report: Report) -> Iterator[Figure]:
    """The drawings among them."""
    yield from (view.figure for view in example_views(report) if view.figure is not None)


def examples_note(report: Report) -> str:
    """Of which model the examples are, and among how many they were found."""
    leader = report.ranked[0]
    of, form = leader.extras.get("worst_of"), leader.extras["worst"][0]["form"]
    among = f", found among {of:,} test examples" if of else ""
    return NOTES.get(form, "The most confident wrong answers of {}{}.").format(leader.name, among)


# By form of the examples: what they are.
NOTES = {
    "stretch": "The parts of the test text that surprised {} most{}.",
    "forecast": "A typical forecast of {} and those with the largest errors{}.",
}


def _caption(item: Mapping[str, Any]) -> str:
    """Truth and answer."""
    parts = []
    if "label" in item:
        sure = format_value(item["probability"], "percent")
        parts.append(f"true: {item['label']}, answered: {item['answer']} (probability {sure})")
    elif "target" in item and "answer" in item:
        told = [f"{name} {_value(item[key])}" for name, key in NAMES if key in item]
        output = f"{item['output']}: " if "output" in item else ""
        parts.append(output + ", ".join(told))
    return f"{item['place']} · {' · '.join(parts)}" if parts else str(item["place"])


NAMES = (("true:", "target"), ("answered:", "answer"))


def _value(value: Any) -> str:
    return format_value(value, "number") if isinstance(value, float) else str(value)


def _series(item: Mapping[str, Any], number: int) -> ExampleView:
    caption = _caption(item)
    more = item["more_channels"]
    extra = f"; {more} more channels are not drawn" if more else ""
    figure = curves_figure(f"Example {number}", f"{caption}{extra}", item["places"], item["curves"])
    return ExampleView(f"{caption}{extra}", figure, small=True)


def _image(item: Mapping[str, Any], number: int) -> ExampleView:
    caption = _caption(item)
    figure = image_figure(f"Example {number}", caption, item["pixels"])
    return ExampleView(caption, figure, small=True)


def _text(item: Mapping[str, Any], number: int) -> ExampleView:
    return ExampleView(_caption(item), text=item["text"])


def _forecast(item: Mapping[str, Any], number: int) -> ExampleView:
    title = "A typical forecast" if item["title"] == "typical" else f"Large error {number - 1}"
    low, high = item["levels"]
    text = f"{item['target']}, {item['place']}; the band lies between the quantiles {low:g} and "
    return ExampleView(
        str(item["place"]), forecast_figure(title, f"{text}{high:g}.", item, item["target"])
    )


def _stretch(item: Mapping[str, Any], number: int) -> ExampleView:
    """Text whose tokens are the darker the more surprising they were."""
    caption = f"{item['place']} · {format_value(item['bits'], 'number')} bits per token"
    pieces = [(str(text), float(bits or 0.0)) for text, bits in item["pieces"]]
    html = "".join(
        f'<span class="h{sum(bits >= edge for edge in SHADES)}" title="{bits:.1f} bits">'
        f"{escape(_visible(text))}</span>"
        for text, bits in pieces
    )
    return ExampleView(caption, text="".join(text for text, _ in pieces), html=html)


def _visible(text: str) -> str:
    """Line ends and control characters as signs."""
    shown = text.replace("\n", "⏎\n").replace("\t", "⇥")
    return "".join(c if c.isprintable() or c == "\n" else "·" for c in shown)


def shade_legend() -> str:
    """What the shades mean, as HTML."""
    edges = (0.0, *SHADES)
    steps = [
        f'<span class="h{i}"> {edge:g}{"+" if i == len(SHADES) else f"–{edges[i + 1]:g}"} </span>'
        for i, edge in enumerate(edges)
    ]
    return f'<p class="muted shades">Surprise in bits: {" ".join(steps)}</p>'


VIEWS = {
    "series": _series,
    "image": _image,
    "text": _text,
    "forecast": _forecast,
    "stretch": _stretch,
}
