"""A report as Markdown; its figures are SVG files in the folder `figures`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from threefold.lab.report.evidence import best_lines, evidence
from threefold.lab.report.page import (
    BASELINES,
    SHAPES,
    baseline_rows,
    caption,
    columns,
    shape_rows,
)
from threefold.lab.report.race_figures import SECTIONS, section_figures
from threefold.lab.report.report import Report


def markdown(report: Report) -> str:
    """The report as a Markdown document."""
    subject = report.subject
    parts = [f"# {subject.title}", f"**{report.sentence}**"]
    if evidence(report):
        parts += ["What the verdict rests on:", listed(evidence(report))]
    if report.warnings:
        parts += ["## Limitations", listed(report.warnings)]
    parts += ["## Result", _result(report), caption(report)]
    if report.baselines:
        parts += ["### Baselines", BASELINES, rows(*baseline_rows(report))]
    for slug, title, text in SECTIONS:
        drawn = section_figures(report, slug)
        if drawn:
            parts += [f"## {title}", text]
            parts += [
                f"![{figure.title}. {figure.description}](figures/{figure.slug}.svg)"
                for figure in drawn
            ]
    if report.best is not None:
        parts += ["## Use the best model", *best_lines(report), f"```\n{report.best.command}\n```"]
    parts += ["## Reproduce this race", f"```\n{subject.command}\n```"]
    parts += ["What all models had in common:", listed(subject.matched)]
    parts.append(rows(SHAPES, shape_rows(report)))
    if subject.tuning:
        parts += ["What `--tune` chose:", listed(subject.tuning)]
    parts.append(rows(("component", "version"), subject.versions.items()))
    parts.append(rows(("data", "SHA-256"), ((a, f"`{b}`") for a, b in subject.hashes.items())))
    return "\n\n".join(parts) + "\n"


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
