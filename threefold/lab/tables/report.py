"""A re-made table as Markdown, JSON and one self-contained page in the style of a race's report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from html import escape
from pathlib import Path
from typing import Any

from threefold._version import __version__
from threefold.data.atomic_files import report_write_errors, write_json, write_text
from threefold.drawing.charts import Figure
from threefold.drawing.page import document, figure_block, script, standalone, table
from threefold.drawing.series_style import swatch
from threefold.drawing.text import format_duration
from threefold.lab.report.markdown import image, listed, rows
from threefold.lab.tables.table import RemadeTable, TableContent, TableSection, TextGrid

DIFFERENCES = "Where ours differ from the published figures, and why"


@dataclass(frozen=True)
class TableReport:
    """A table with everything that its reports show."""

    name: str
    title: str
    preset: str
    content: TableContent
    cells: Mapping[str, Mapping[str, Any]]  # as they are stored

    @staticmethod
    def of(maker: RemadeTable, preset: str, stored: Mapping[str, Mapping[str, Any]]) -> TableReport:
        """The report of stored cells."""
        content = maker.content(preset, {key: cell["values"] for key, cell in stored.items()})
        return TableReport(maker.name, maker.title, preset, content, stored)

    @property
    def command(self) -> str:
        """What makes this table."""
        return f"threefold tables {self.name} --preset {self.preset}"

    @property
    def figures(self) -> list[Figure]:
        """All figures, in the order of the page."""
        return [figure for section in self.content.sections for figure in section.figures]

    @property
    def facts(self) -> list[tuple[str, str]]:
        """How much was measured, and how long it took."""
        cells = self.cells.values()
        return [
            ("preset", self.preset),
            ("cells", str(len(self.cells))),
            ("elapsed time", format_duration(sum(cell["seconds"] for cell in cells))),
            ("CPU time", format_duration(sum(cell["cpu_seconds"] for cell in cells))),
            ("kernels", self.versions["kernels"]),
        ]

    @property
    def versions(self) -> dict[str, str]:
        """What the cells were measured with; several versions of one component are all named."""
        parts = next(iter(self.cells.values()))["versions"]
        return {
            part: ", ".join(dict.fromkeys(cell["versions"][part] for cell in self.cells.values()))
            for part in parts
        }

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; figures only as their numbers."""
        content = asdict(self.content)
        for section in content["sections"]:
            for figure in section["figures"]:
                del figure["svg"]
        head = {"table": self.name, "title": self.title, "preset": self.preset}
        cells = {"cells": {key: dict(cell) for key, cell in self.cells.items()}}
        return {**head, "command": self.command, **content, "versions": self.versions, **cells}

    def save(self, folder: Path) -> None:
        """Write report.md, report.json, report.html and the figures."""
        figures = folder / "figures"
        with report_write_errors(figures):
            figures.mkdir(parents=True, exist_ok=True)
        for figure in self.figures:
            write_text(figures / f"{figure.slug}.svg", standalone(figure))
        write_json(folder / "report.json", self.to_dict())
        write_text(folder / "report.md", self.markdown())
        write_text(folder / "report.html", self.page())

    def markdown(self) -> str:
        """The report as Markdown."""
        content = self.content
        parts = [f"# {self.title}", f"**{content.sentence}**", " ".join(content.summary)]
        for section in content.sections:
            parts += [f"## {section.title}", section.text]
            for grid in section.grids:
                parts += [f"### {grid.title}", rows(grid.header, grid.rows), grid.text]
            parts += map(image, section.figures)
        parts += [f"## {DIFFERENCES}", listed(content.differences)]
        parts += ["## What was measured", listed(content.setup), rows(("", ""), self.facts)]
        parts += ["## Sources", listed(content.sources)]
        parts += ["## Reproduce this table", f"```\n{self.command}\n```"]
        parts.append(rows(("component", "version"), self.versions.items()))
        return "\n\n".join(filter(None, parts)) + "\n"

    def page(self) -> str:
        """The report as an HTML document."""
        sections = "\n".join(map(_section, self.content.sections))
        body = f"""<a class="skip" href="#{self.content.sections[0].slug}">Skip to the result</a>
<main>
{_header(self)}
{_legend(self.content.legend)}
{sections}
{_end(self)}
</main>
{script()}"""
        return document(f"{self.title}: {self.content.sentence}", body)


def _header(report: TableReport) -> str:
    content = report.content
    facts = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>"
        for name, value in report.facts
    )
    links = [(section.slug, section.title) for section in content.sections]
    links += [
        ("differences", "Where ours differ"),
        ("setup", "What was measured"),
        ("sources", "Sources"),
        ("reproduce", "Reproduce this table"),
    ]
    shown = "".join(f'<li><a href="#{slug}">{escape(title)}</a></li>' for slug, title in links)
    return f"""<header>
<p class="kicker"><b>threefold tables {report.name}</b> · {escape(report.title)}</p>
<h1>{escape(content.sentence)}</h1>
<p class="lead summary"><b>In short.</b> {escape(" ".join(content.summary))}</p>
<dl class="facts">{facts}</dl>
<nav aria-label="Sections"><ul>{shown}</ul></nav>
</header>"""


def _section(section: TableSection) -> str:
    drawn = "".join(map(figure_block, section.figures))
    figures = f'<div class="pair by-model">{drawn}</div>' if drawn else ""
    return (
        f'<section aria-labelledby="{section.slug}"><h2 id="{section.slug}">'
        f'{escape(section.title)}</h2><p class="muted">{escape(section.text)}</p>'
        f"{''.join(map(_grid, section.grids))}{figures}</section>"
    )


def _grid(grid: TextGrid) -> str:
    text = f'<p class="muted">{escape(grid.text)}</p>' if grid.text else ""
    return f"<h3>{escape(grid.title)}</h3>{text}{table(grid.header, grid.rows, grid.title)}"


def _legend(names: Sequence[str]) -> str:
    items = "".join(
        f'<li data-key="{series}">{swatch(series)}{escape(name)}</li>'
        for series, name in enumerate(names)
    )
    return f'<ul class="legend" aria-label="Series of the figures">{items}</ul>' if items else ""


def _items(texts: Sequence[str]) -> str:
    return f"<ul>{''.join(f'<li>{escape(text)}</li>' for text in texts)}</ul>"


def _end(report: TableReport) -> str:
    content = report.content
    used = table(("component", "version"), report.versions.items(), "Versions")
    return f"""<section class="warnings" aria-labelledby="differences">\
<h2 id="differences">{DIFFERENCES}</h2>{_items(content.differences)}</section>
<section aria-labelledby="setup"><h2 id="setup">What was measured</h2>\
{_items(content.setup)}</section>
<section aria-labelledby="sources"><h2 id="sources">Sources</h2>{_items(content.sources)}</section>
<section aria-labelledby="reproduce"><h2 id="reproduce">Reproduce this table</h2>
<pre tabindex="0"><code>{escape(report.command)}</code></pre>{used}</section>
<footer>Generated by Threefold {__version__}. This page loads nothing and sends nothing; \
report.json in the same folder contains every number.</footer>"""
