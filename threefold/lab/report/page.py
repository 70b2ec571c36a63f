"""A report as one self-contained HTML page: no network, figures as SVG.

A small script hides models and shows the numbers of points; without it nothing is missing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from threefold._version import __version__
from threefold.drawing.page import document, figure_block, script, style, table
from threefold.drawing.series_style import swatch
from threefold.drawing.text import format_value
from threefold.lab.report.evidence import best_lines, evidence, use_commands
from threefold.lab.report.example_views import (
    ExampleView,
    example_views,
    examples_note,
    shade_legend,
)
from threefold.lab.report.figure_parts import everything
from threefold.lab.report.report import Report
from threefold.lab.report.sections import SECTIONS, ReportSection, section_figures
from threefold.lab.report.story import is_sample
from threefold.lab.report.summary import summary
from threefold.lab.report.tables import (
    BASELINES,
    SHAPES,
    baseline_rows,
    caption,
    columns,
    shape_rows,
)


def page(report: Report) -> str:
    """The report as an HTML document."""
    body = f"""<a class="skip" href="#result">Skip to the result</a>
<main>
{_header(report)}
{_body(report)}
{_best(report)}
{_reproduce(report)}
</main>
{script()}"""
    return document(f"{report.subject.title}: {report.sentence}", body)


def fragment(report: Report) -> str:
    """The report for a notebook: without a document around it, and without a script."""
    return (
        f"<style>{style()}</style>"
        f'<div class="threefold fragment">{_header(report)}{_body(report)}</div>'
    )


def _header(report: Report) -> str:
    subject = report.subject
    shown = "".join(
        f'<li><a href="#{section.slug}">{escape(section.title)}</a></li>'
        for section in SECTIONS
        if _content(report, section)
    )
    return f"""<header>
<p class="kicker"><b>threefold compare</b> · {escape(subject.title)}</p>
<h1>{escape(report.sentence)}</h1>
{_summary(report)}
{_confidence(report)}
{_story(report)}
{_facts(report)}
{_warnings(report)}
<nav aria-label="Sections"><ul><li><a href="#result">Result</a></li>{shown}\
{_use_link(report)}<li><a href="#reproduce">Reproduce this race</a></li></ul></nav>
</header>"""


def _use_link(report: Report) -> str:
    return "" if report.best is None else '<li><a href="#use">Use the best model</a></li>'


def _summary(report: Report) -> str:
    """The paragraph that needs no statistics."""
    text = " ".join(map(escape, summary(report)))
    return f'<p class="lead summary"><b>In short.</b> {text}</p>'


def _story(report: Report) -> str:
    """What happened here, for newcomers; a sample of text is a quotation."""
    paragraphs = "".join(
        f"<blockquote>{escape(text[1:-1])}</blockquote>"
        if is_sample(text)
        else f"<p>{escape(text)}</p>"
        for text in report.subject.story
    )
    return f'<div class="story">{paragraphs}</div>' if paragraphs else ""


def _confidence(report: Report) -> str:
    verdict = report.verdict
    seeds = max(len(c.runs) for c in report.contenders)
    if verdict.margin is None or math.isinf(verdict.margin.half):
        return _details("What the verdict rests on", evidence(report))
    confidence = format_value(verdict.confidence, "percent")
    return (
        f'<p class="muted">Models are compared with {confidence} confidence, from {seeds} seeds '
        "each; for each seed, all models were trained on the same batches in the same order.</p>"
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
    if report.subject.test_examples:
        facts.insert(1, ("test examples", f"{report.subject.test_examples:,}"))
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
    text, commands = " ".join(best_lines(report)), "\n".join(use_commands(report))
    return (
        '<section aria-labelledby="use"><h2 id="use">Use the best model</h2>'
        f"<p>{escape(text)}</p>"
        f'<pre tabindex="0"><code>{escape(commands)}</code></pre></section>'
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
    parts.append(_legend(report))
    for section in SECTIONS:
        if content := _content(report, section):
            parts.append(
                f'<section aria-labelledby="{section.slug}"><h2 id="{section.slug}">'
                f'{escape(section.title)}</h2><p class="muted">{escape(section.text)}</p>'
                f"{content}</section>"
            )
    return "\n".join(parts)


def _content(report: Report, section: ReportSection) -> str:
    """The figures of a section, or the examples; empty if there are none."""
    if section.slug == "examples":
        return _examples(report)
    drawn = "".join(map(figure_block, section_figures(report, section)))
    return f'<div class="pair by-model">{drawn}</div>' if drawn else ""


def _legend(report: Report) -> str:
    """Models and baselines with their lines; a script makes it switch them on and off."""
    items = "".join(
        f'<li data-key="{series}">{swatch(series)}{escape(one.name)}</li>'
        for series, one in everything(report)
    )
    return f'<ul class="legend" aria-label="Models and baselines in the figures">{items}</ul>'


def _examples(report: Report) -> str:
    """The most wrong answers: drawings as cards, texts with their shades."""
    views = example_views(report)
    if not views:
        return ""
    note = f'<p class="muted">{escape(examples_note(report))}</p>'
    wide = any(view.figure and not view.small for view in views)
    cards = "".join(map(_card, views))
    shades = shade_legend() if any(view.html for view in views) else ""
    return f'{note}{shades}<div class="{"pair" if wide else "cards"}">{cards}</div>'


def _card(view: ExampleView) -> str:
    if view.figure is not None and view.small:
        return (
            f'<figure class="example" id="figure-{view.figure.slug}">'
            f"<figcaption>{escape(view.caption)}</figcaption>{view.figure.svg}</figure>"
        )
    if view.figure is not None:
        return figure_block(view.figure)
    text = view.html or escape(view.text)
    look = "surprise" if view.html else "quoted"
    return (
        f'<figure class="example"><figcaption>{escape(view.caption)}</figcaption>'
        f'<p class="{look}">{text}</p></figure>'
    )


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
        f"<table><caption><span>{caption(report)}</span></caption>"
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
