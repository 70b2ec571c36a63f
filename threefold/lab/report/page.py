"""A report as one self-contained HTML page: no network, no script, figures as SVG."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape

from threefold._version import __version__
from threefold.drawing.charts import swatch
from threefold.drawing.page import document, figure_block, style, table
from threefold.drawing.text import format_value
from threefold.lab.report.evidence import best_lines, evidence
from threefold.lab.report.race_figures import SECTIONS, section_figures
from threefold.lab.report.report import Contender, Report

Column = tuple[str, list[str], int | None]  # title, cells, row of the best cell


def page(report: Report) -> str:
    """The report as an HTML document."""
    body = f"""<a class="skip" href="#result">Skip to the result</a>
<main>
{_header(report)}
{_body(report)}
{_best(report)}
{_reproduce(report)}
</main>"""
    return document(f"{report.subject.title}: {report.sentence}", body)


def fragment(report: Report) -> str:
    """The report for a notebook: without a document around it."""
    return (
        f"<style>{style()}</style>"
        f'<div class="threefold fragment">{_header(report)}{_body(report)}</div>'
    )


def _header(report: Report) -> str:
    subject = report.subject
    shown = "".join(
        f'<li><a href="#{slug}">{escape(title)}</a></li>'
        for slug, title, _ in SECTIONS
        if section_figures(report, slug)
    )
    return f"""<header>
<p class="kicker"><b>threefold compare</b> · {escape(subject.title)}</p>
<h1>{escape(report.sentence)}</h1>
{_confidence(report)}
{_facts(report)}
{_warnings(report)}
<nav aria-label="Sections"><ul><li><a href="#result">Result</a></li>{shown}\
<li><a href="#reproduce">Reproduce this race</a></li></ul></nav>
</header>"""


def _confidence(report: Report) -> str:
    verdict = report.verdict
    seeds = max(len(c.runs) for c in report.contenders)
    if verdict.margin is None or math.isinf(verdict.margin.half):
        return ""
    confidence = format_value(verdict.confidence, "percent")
    return (
        f'<p class="lead">With {confidence} confidence, from {seeds} seeds per model. '
        "For each seed, all models were trained on the same batches in the same order.</p>"
        f"{_details('What the verdict rests on', evidence(report))}"
    )


def _facts(report: Report) -> str:
    runs = [run for c in report.contenders for run in c.runs]
    sizes = sorted(c.parameters for c in report.contenders)
    tokens = sorted(run.tokens for run in runs)
    facts = [
        ("models × seeds", f"{len(report.contenders)} × {_range(_seeds(report))}"),
        ("parameters", _range(sizes)),
        (f"{report.subject.element}s read per run", _range(tokens)),
        ("total training time", format_value(sum(run.seconds for run in runs), "seconds")),
        ("matched by", report.subject.match),
    ]
    cells = "".join(f"<div><dt>{a}</dt><dd>{escape(b)}</dd></div>" for a, b in facts)
    return f'<dl class="facts">{cells}</dl>'


def _seeds(report: Report) -> list[int]:
    return sorted(len(c.runs) for c in report.contenders)


def _details(title: str, texts: Sequence[str]) -> str:
    """Sentences that can be unfolded."""
    if not texts:
        return ""
    items = "".join(f"<li>{escape(text)}</li>" for text in texts)
    return f"<details><summary>{escape(title)}</summary><ul>{items}</ul></details>"


def _best(report: Report) -> str:
    """Where the best model is, and how to use it."""
    if report.best is None:
        return ""
    text = " ".join(best_lines(report))
    return (
        '<section aria-labelledby="use"><h2 id="use">Use the best model</h2>'
        f"<p>{escape(text)}</p>"
        f'<pre tabindex="0"><code>{escape(report.best.command)}</code></pre></section>'
    )


def _range(values: Sequence[float]) -> str:
    low, high = format_value(values[0], "count"), format_value(values[-1], "count")
    return low if low == high else f"{low} – {high}"


def _warnings(report: Report) -> str:
    if not report.warnings:
        return ""
    items = "".join(f"<li>{escape(text)}</li>" for text in report.warnings)
    return (
        '<section class="warnings" aria-labelledby="limits"><h2 id="limits">Limitations</h2>'
        f"<ul>{items}</ul></section>"
    )


def _body(report: Report) -> str:
    parts = [f'<section aria-labelledby="result"><h2 id="result">Result</h2>{_table(report)}']
    if report.baselines:
        header, rows = baseline_rows(report)
        parts.append(f"<h3>Baselines</h3><p>{BASELINES}</p>{table(header, rows, 'Baselines')}")
    parts.append("</section>")
    for slug, title, text in SECTIONS:
        drawn = section_figures(report, slug)
        if drawn:
            shown = "".join(map(figure_block, drawn))
            parts.append(
                f'<section aria-labelledby="{slug}"><h2 id="{slug}">{escape(title)}</h2>'
                f'<p class="muted">{escape(text)}</p><div class="pair">{shown}</div></section>'
            )
    return "\n".join(parts)


BASELINES = (
    "Simple models that were fitted to the same training data and scored on the same test "
    "examples: a sequence model that does not beat them is not worth its cost."
)


def baseline_rows(report: Report) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """The table of the baselines, for the page and for Markdown."""
    header: tuple[str, ...] = (
        "baseline",
        f"test {report.subject.metric_name}",
        "time to fit",
        "time per element",
    )
    rows: list[tuple[str, ...]] = [
        (
            b.name,
            report.subject.score(b.quality.mean, b.quality.half),
            format_value(b.fit_seconds, "seconds"),
            format_value(b.element_seconds, "seconds"),
        )
        for b in report.ranked_baselines
    ]
    return header, rows


def columns(report: Report) -> list[Column]:
    """The columns of the table, for the page and for Markdown."""
    ranked, subject = report.ranked, report.subject
    qualities = [_quality(report, c) for c in ranked]
    listed: list[Column] = [(f"test {subject.metric_name}", qualities, 0)]

    def add(title: str, values: Iterable[float], unit: str, best: str = "") -> None:
        numbers = list(values)
        if any(math.isfinite(v) for v in numbers):
            cells = [format_value(v, unit) for v in numbers]
            listed.append((title, cells, _best_row(numbers, best)))

    add("parameters", (c.parameters for c in ranked), "count")
    add("learning rate", (c.learning_rate for c in ranked), "number")
    add(f"training speed, {subject.element}s/s", (c.training_rate for c in ranked), "count", "high")
    decode = (1 / c.decode_seconds for c in ranked)
    add(f"decode speed, {subject.element}s/s", decode, "count", "high")
    memory = _bytes_column("peak training memory", [c.cost.memory for c in ranked], subject.element)
    state = _bytes_column("state per stream", [c.cost.state for c in ranked], subject.element)
    return [*listed, *memory, *state]


def _bytes_column(
    title: str, costs: Sequence[Sequence[tuple[int, float]]], element: str
) -> list[Column]:
    """The bytes at the longest measured length, with that length; nothing if not measured."""
    lengths = {points[-1][0] for points in costs if points}
    if not lengths:
        return []
    numbers = [_last(points) for points in costs]
    cells = [format_value(value, "bytes") for value in numbers]
    if len(lengths) == 1:
        best = _best_row(numbers, "low")
        return [(f"{title} at {lengths.pop():,} {element}s", cells, best)]
    # Bytes at different lengths cannot be compared, so none of them is best.
    at = [f" at {points[-1][0]:,} {element}s" if points else "" for points in costs]
    return [(title, [cell + length for cell, length in zip(cells, at, strict=True)], None)]


def _best_row(numbers: list[float], best: str) -> int | None:
    """The row of the "low"est or "high"est finite number; None where no number is best ("")."""
    if not best:
        return None
    choose = min if best == "low" else max
    return numbers.index(choose(v for v in numbers if math.isfinite(v)))


def caption(report: Report) -> str:
    """How to read the table, and after how many elements decoding was measured."""
    order = "Best model first." if report.verdict.kind == "best" else "Sorted by score."
    texts = [
        f"{order} ± is half the width of the 99 % confidence interval of the mean over seeds; the "
        "best value of each column is bold."
    ]
    costs = [c.cost for c in report.ranked]
    decode = sorted({cost.decode[0][0] for cost in costs if cost.decode})
    if len(decode) == 1:
        texts.append(f"Decode speed was measured after {decode[0]:,} {report.subject.element}s.")
    return " ".join(texts)


def _quality(report: Report, contender: Contender) -> str:
    return report.subject.score(contender.quality.mean, contender.quality.half)


def _last(points: Sequence[tuple[int, float]]) -> float:
    return points[-1][1] if points else math.nan


def _table(report: Report) -> str:
    listed = columns(report)
    head = "".join(f'<th scope="col">{escape(title)}</th>' for title, _, _ in listed)
    rows = []
    for i, contender in enumerate(report.ranked):
        cells = "".join(
            f"<td{' class=best' if best == i else ''}>{_soften(cells[i])}</td>"
            for _, cells, best in listed
        )
        lead = ' class="lead-row"' if i == 0 else ""
        name = f'<th scope="row">{swatch(i)}{escape(contender.label)}</th>'
        rows.append(f"<tr{lead}>{name}{cells}</tr>")
    return (
        '<div class="scroll" tabindex="0" role="region" aria-label="Result, table">'
        f"<table><caption>{caption(report)}</caption>"
        f'<thead><tr><th scope="col">model</th>{head}</tr>'
        f"</thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


def _soften(cell: str) -> str:
    """A cell whose ± part has a weaker colour."""
    before, sign, after = cell.partition(" ± ")
    if not sign:
        return escape(cell)
    return f'{escape(before)} <span class="pm">± {escape(after)}</span>'


def _shapes(report: Report) -> str:
    return table(SHAPES, shape_rows(report), "Shapes")


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


def _reproduce(report: Report) -> str:
    subject = report.subject
    shapes = _shapes(report)
    common = "".join(f"<li>{escape(text)}</li>" for text in subject.matched)
    versions = table(("component", "version"), subject.versions.items(), "Versions")
    hashes = "".join(
        f'<li>{escape(what)}: <code class="hash">{escape(value)}</code></li>'
        for what, value in subject.hashes.items()
    )
    return f"""<section aria-labelledby="reproduce"><h2 id="reproduce">Reproduce this race</h2>
<pre tabindex="0"><code>{escape(subject.command)}</code></pre>
<h3>What all models had in common</h3><ul>{common}</ul>
<h3>The models</h3>{shapes}{_details("What --tune chose", subject.tuning)}
<h3>Versions</h3>{versions}
<h3>Hashes (SHA-256)</h3><ul>{hashes}</ul></section>
<footer>Generated by Threefold {__version__}. This page loads nothing and sends nothing; \
report.json in the same folder contains every number.</footer>"""
