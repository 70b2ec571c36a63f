"""A report as Markdown; its figures are SVG files in the folder `figures`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from threefold.drawing.charts import Figure
from threefold.lab.report.evidence import best_lines, evidence, use_commands
from threefold.lab.report.example_views import example_views, examples_note
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


def markdown(report: Report) -> str:
    """The report as a Markdown document."""
    subject = report.subject
    parts = [f"# {subject.title}", f"**{report.sentence}**", " ".join(summary(report))]
    parts += [_quoted(text[1:-1]) if is_sample(text) else text for text in subject.story]
    if evidence(report):
        parts += ["What the verdict rests on:", listed(evidence(report))]
    if report.warnings:
        parts += ["## Limitations", listed(report.warnings)]
    parts += ["## Result", _result(report), caption(report)]
    if report.baselines:
        parts += ["### Baselines", BASELINES, rows(*baseline_rows(report))]
    for section in SECTIONS:
        content = _examples(report) if section.slug == "examples" else _figures(report, section)
        if content:
            parts += [f"## {section.title}", section.text, *content]
    if report.best is not None:
        commands = "\n".join(use_commands(report))
        parts += ["## Use the best model", *best_lines(report), f"```\n{commands}\n```"]
    parts += ["## Reproduce this race", f"```\n{subject.command}\n```"]
    parts += ["What all models had in common:", listed(subject.matched)]
    parts.append(rows(SHAPES, shape_rows(report)))
    if subject.tuning:
        parts += ["What `--tune` chose:", listed(subject.tuning)]
    parts.append(rows(("component", "version"), subject.versions.items()))
    parts.append(rows(("data", "SHA-256"), ((a, f"`{b}`") for a, b in subject.hashes.items())))
    return "\n\n".join(parts) + "\n"


def _figures(report: Report, section: ReportSection) -> list[str]:
    return [image(figure) for figure in section_figures(report, section)]


def image(figure: Figure) -> str:
    """A link to the file of a figure."""
    return f"![{figure.title}. {figure.description}](figures/{figure.slug}.svg)"


def _examples(report: Report) -> list[str]:
    """The most wrong answers."""
    views = example_views(report)
    parts = [examples_note(report)] if views else []
    for view in views:
        if view.figure is not None:
            parts.append(image(view.figure))
        else:
            parts.append(f"{view.caption}\n\n{_quoted(view.text)}")
    return parts


def _quoted(text: str) -> str:
    return "\n".join(f"> {line}" for line in text.splitlines())


def _result(report: Report) -> str:
    table = columns(report)
    body = [
        [
            c.label,
            *(f"**{cells[i]}**" if best == i else cells[i] for _, cells, best in table),
        ]
        for i, c in enumerate(report.ranked)
    ]
    return rows(["model", *(title for title, _, _ in table)], body)


def listed(items: Iterable[str]) -> str:
    """A bulleted list."""
    return "\n".join(f"- {item}" for item in items)


def rows(header: Sequence[str], body: Iterable[Sequence[str]]) -> str:
    """A table."""
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in body]
    return "\n".join(["| " + " | ".join(header) + " |", "|" + "---|" * len(header), *lines])
