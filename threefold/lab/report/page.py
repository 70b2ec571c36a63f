"""A report as one HTML page that needs nothing else: no network, no script, figures as SVG."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape

from threefold._version import __version__
from threefold.drawing.charts import swatch
from threefold.drawing.page import document, figure_block, style, table
from threefold.drawing.text import format_value
from threefold.lab.report.race_figures import SECTIONS, section_figures
from threefold.lab.report.report import Contender, Report


def page(report: Report) -> str:
    """The report as a document."""
    body = f"""<a class="skip" href="#result">To the result</a>
<main>
{_header(report)}
{_body(report)}
{_again(report)}
</main>"""
    return document(f"{report.subject.title}: {report.sentence}", body)


def fragment(report: Report) -> str:
    """The same for a notebook: no document around it."""
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
<li><a href="#again">How to do it again</a></li></ul></nav>
</header>"""


def _confidence(report: Report) -> str:
    found = report.verdict
    seeds = min(len(c.runs) for c in report.contenders)
    if found.margin is None or math.isinf(found.margin.half):
        return ""
    return (
        f'<p class="lead">At {found.confidence:.0%} confidence over {seeds} seeds, compared seed '
        "by seed on the same batches in the same order.</p>"
    )


def _facts(report: Report) -> str:
    runs = [run for c in report.contenders for run in c.runs]
    sizes = sorted(c.parameters for c in report.contenders)
    tokens = sorted(run.tokens for run in runs)
    facts = [
        ("models × seeds", f"{len(report.contenders)} × {len(report.contenders[0].runs)}"),
        ("parameters", _range(sizes)),
        (f"{report.subject.element}s read, each", _range(tokens)),
        ("training in all", format_value(sum(run.seconds for run in runs), "seconds")),
        ("matched", report.subject.match),
    ]
    cells = "".join(f"<div><dt>{a}</dt><dd>{escape(b)}</dd></div>" for a, b in facts)
    return f'<dl class="facts">{cells}</dl>'


def _range(values: Sequence[float]) -> str:
    low, high = format_value(values[0], "count"), format_value(values[-1], "count")
    return low if low == high else f"{low} – {high}"


def _warnings(report: Report) -> str:
    if not report.warnings:
        return ""
    items = "".join(f"<li>{escape(text)}</li>" for text in report.warnings)
    return (
        '<section class="warnings" aria-labelledby="mind"><h2 id="mind">Before you rely on it</h2>'
        f"<ul>{items}</ul></section>"
    )


def _body(report: Report) -> str:
    parts = [f'<section aria-labelledby="result"><h2 id="result">Result</h2>{_table(report)}']
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


def columns(report: Report) -> list[tuple[str, list[str], int | None]]:
    """(title, cells, row of the best cell) of the table, for the page and for Markdown."""
    ranked, subject = report.ranked, report.subject
    found: list[tuple[str, list[str], int | None]] = [
        (subject.metric_name, [_quality(report, c) for c in ranked], 0)
    ]

    def add(title: str, values: Iterable[float], unit: str, best: str = "") -> None:
        numbers = list(values)
        if any(math.isfinite(v) for v in numbers):
            place = None
            if best:
                key = min if best == "low" else max
                place = numbers.index(key(v for v in numbers if math.isfinite(v)))
            found.append((title, [format_value(v, unit) for v in numbers], place))

    add("parameters", (c.parameters for c in ranked), "count")
    add("learning rate", (c.learning_rate for c in ranked), "number")
    add(f"training, {subject.element}s/s", (c.training_rate for c in ranked), "count", "high")
    add(f"writing, {subject.element}s/s", (1 / c.decode_seconds for c in ranked), "count", "high")
    add("peak memory of training", (_last(c.cost.memory) for c in ranked), "bytes", "low")
    add("state", (_last(c.cost.state) for c in ranked), "bytes", "low")
    return found


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
        name = f'<th scope="row">{swatch(i)}{escape(contender.name)}</th>'
        rows.append(f"<tr{lead}>{name}{cells}</tr>")
    caption = "Best first; ± is the 99 % interval of the mean over seeds. Bold: best of a column."
    return (
        '<div class="scroll" tabindex="0" role="region" aria-label="Result, table">'
        f'<table><caption>{caption}</caption><thead><tr><th scope="col">model</th>{head}</tr>'
        f"</thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


def _soften(cell: str) -> str:
    """What follows ± in a quieter colour."""
    before, sign, after = cell.partition(" ± ")
    if not sign:
        return escape(cell)
    return f'{escape(before)} <span class="pm">± {escape(after)}</span>'


def _again(report: Report) -> str:
    subject = report.subject
    shapes = table(
        ("model", "mixer", "width", "depth", "channel mixer", "spec"),
        (
            (c.name, c.mixer, str(c.width), str(c.depth), c.channel, c.digest[:12])
            for c in report.ranked
        ),
        "Shapes",
    )
    equal = "".join(f"<li>{escape(text)}</li>" for text in subject.matched)
    versions = table(("what", "version"), subject.versions.items(), "Versions")
    hashes = "".join(
        f'<li>{escape(what)}: <code class="hash">{escape(value)}</code></li>'
        for what, value in subject.hashes.items()
    )
    return f"""<section aria-labelledby="again"><h2 id="again">How to do it again</h2>
<pre tabindex="0"><code>{escape(subject.command)}</code></pre>
<h3>What was held equal</h3><ul>{equal}</ul>
<h3>The models</h3>{shapes}
<h3>Versions</h3>{versions}
<h3>Hashes (SHA-256)</h3><ul>{hashes}</ul></section>
<footer>Made by threefold {__version__}. This page loads nothing and sends nothing; \
report.json beside it has every number.</footer>"""
