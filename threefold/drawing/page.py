"""HTML pages that need nothing else: no network, figures as inline SVG."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files

from threefold._version import __version__
from threefold.drawing.charts import Figure


def style() -> str:
    """The style sheet of pages and figures."""
    return (files("threefold.drawing") / "page.css").read_text(encoding="utf-8")


def script() -> str:
    """The script of pages with a legend, as an element."""
    text = (files("threefold.drawing") / "page.js").read_text(encoding="utf-8")
    return f"<script>\n{text}</script>"


def document(title: str, body: str) -> str:
    """A complete HTML document."""
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="generator" content="threefold {__version__}">
<title>{escape(title)}</title>
<style>
{style()}</style>
</head>
<body class="threefold">
{body}
</body>
</html>
"""


def plain_page(command: str, title: str, body: str) -> str:
    """A document with a heading: the command that made it, and a title."""
    kicker = f'<p class="kicker"><b>{escape(command)}</b></p>'
    return document(title, f"<main><header>{kicker}<h1>{escape(title)}</h1></header>{body}</main>")


def standalone(figure: Figure) -> str:
    """A figure as an SVG file that contains its own style sheet."""
    start, rest = figure.svg.split(">", 1)
    names, drawing = rest.split("</desc>", 1)
    box = start.partition('viewBox="')[2].partition('"')[0]
    # The rules of the style sheet are for an svg inside an element of the class threefold.
    return (
        f"{start.replace('chart', 'threefold', 1)}><style>{style()}</style>{names}</desc>"
        f'<svg class="chart" viewBox="{box}">{drawing}</svg>\n'
    )


def figure_block(figure: Figure) -> str:
    """A figure with its title, its description and a table of its numbers."""
    return (
        f'<figure id="figure-{figure.slug}"><h3>{escape(figure.title)}</h3>'
        f"<figcaption>{escape(figure.description)}</figcaption>{figure.svg}"
        f"<details><summary>Show the numbers</summary>"
        f"{table(figure.header, figure.rows, figure.title)}</details></figure>"
    )


def table(header: Sequence[str], rows: Iterable[Sequence[str]], name: str) -> str:
    """A plain table that can be scrolled with the keyboard."""
    head = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in header)
    lines = "".join(
        f'<tr><th scope="row">{escape(first)}</th>'
        + "".join(f"<td>{escape(cell)}</td>" for cell in rest)
        + "</tr>"
        for first, *rest in rows
    )
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(name)}, numbers">'
        f"<table><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table></div>"
    )
