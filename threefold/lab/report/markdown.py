"""A report as Markdown; its figures are the SVG files beside it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from threefold.lab.report.page import columns
from threefold.lab.report.race_figures import SECTIONS, section_figures
from threefold.lab.report.report import Report


def markdown(report: Report) -> str:
    """The whole report."""
    subject = report.subject
    parts = [f"# {subject.title}", f"**{report.sentence}**"]
    if report.warnings:
        parts.append("Before you rely on it:\n\n" + listed(report.warnings))
    parts += ["## Result", _result(report)]
    for slug, title, text in SECTIONS:
        drawn = section_figures(report, slug)
        if drawn:
            parts += [f"## {title}", text]
            parts += [
                f"![{figure.title}. {figure.description}](figures/{figure.slug}.svg)"
                for figure in drawn
            ]
    parts += ["## How to do it again", f"```\n{subject.command}\n```"]
    parts += ["What was held equal:", listed(subject.matched)]
    shapes = [
        (c.name, c.mixer, str(c.width), str(c.depth), c.channel, f"`{c.digest[:12]}`")
        for c in report.ranked
    ]
    parts.append(rows(("model", "mixer", "width", "depth", "channel mixer", "spec"), shapes))
    parts.append(rows(("what", "version"), subject.versions.items()))
    parts.append(rows(("what", "SHA-256"), ((a, f"`{b}`") for a, b in subject.hashes.items())))
    return "\n\n".join(parts) + "\n"


def _result(report: Report) -> str:
    found = columns(report)
    body = [
        [c.name, *(f"**{cells[i]}**" if best == i else cells[i] for _, cells, best in found)]
        for i, c in enumerate(report.ranked)
    ]
    return rows(["model", *(title for title, _, _ in found)], body)


def listed(items: Iterable[str]) -> str:
    """A list."""
    return "\n".join(f"- {item}" for item in items)


def rows(header: Sequence[str], body: Iterable[Sequence[str]]) -> str:
    """A table."""
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in body]
    return "\n".join(["| " + " | ".join(header) + " |", "|" + "---|" * len(header), *lines])
