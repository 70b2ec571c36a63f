"""The report page: in a real browser, and by rules that need no browser."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests import browser
from tests.lab.reports import MODELS, measured, report
from threefold.drawing.page import standalone, style
from threefold.errors import ThreefoldError
from threefold.lab.report.page import page
from threefold.lab.report.report import Report
from threefold.lab.report.sections import figures

PROGRAM = browser.find()
needs_browser = pytest.mark.skipif(
    PROGRAM is None, reason="no Chromium found (install one, or name it in THREEFOLD_BROWSER)"
)
TEXT, GRAPHICS = 4.5, 3.0  # WCAG 2.2, 1.4.3 and 1.4.11
VOID = {"meta", "br", "hr", "img", "input", "link"}
XML = "{http://www.w3.org/2000/svg}"


class Outline(HTMLParser):
    """Checks that tags are nested, and keeps ids, links, headings and attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.wrong: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.headings: list[int] = []
        self.loads: list[str] = []
        self.feed(text)
        self.wrong += [f"<{tag}> is never closed" for tag in self.open]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if tag not in VOID:
            self.open.append(tag)
        self.ids += [values["id"] or ""] if "id" in values else []
        if re.fullmatch(r"h[1-6]", tag):
            self.headings.append(int(tag[1]))
        if tag == "a":
            self.links.append(values.get("href") or "")
        self.loads += [str(values[name]) for name in ("src", "srcset", "data") if name in values]
        self.loads += [tag] if tag in ("script", "link", "iframe", "object", "embed") else []

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open[-1] != tag:
            self.wrong.append(f"</{tag}> after {self.open[-3:]}")
        else:
            self.open.pop()


def colours(css: str, dark: bool) -> dict[str, str]:
    """The variables that hold a colour."""
    found = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", css.split("@media")[0]))
    if dark:
        inside = re.search(r"prefers-color-scheme: dark\) \{(.*?)\n\}", css, re.DOTALL)
        assert inside is not None
        found.update(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", inside.group(1)))
    return found


def contrast(one: str, other: str) -> float:
    """WCAG's ratio of relative luminances."""

    def luminance(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("dark", [False, True])
def test_contrast(dark: bool) -> None:
    found = colours(style(), dark)
    for ground in ("paper", "card", "tint"):
        for text in ("ink", "muted", "accent", *(f"c{i}" for i in range(8))):
            assert contrast(found[text], found[ground]) >= TEXT, (text, ground, dark)
    for text in ("warn", "ink"):
        assert contrast(found[text], found["warn-tint"]) >= TEXT, (text, dark)
    assert contrast(found["focus"], found["paper"]) >= GRAPHICS


def test_contrast_checker_fails() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") < TEXT
    assert colours(style(), True)["ink"] != colours(style(), False)["ink"]


def test_every_colour_is_a_variable() -> None:
    rules = re.sub(r"--[\w-]+: [^;]+;", "", style())
    assert re.findall(r"#[0-9a-fA-F]{3,8}\b|rgba?\(|hsl", rules) == []


def test_the_page_is_well_formed_and_loads_nothing() -> None:
    text = page(measured(report()))
    outline = Outline(text)
    assert outline.wrong == []
    assert outline.loads == ["script"]  # its text is in the page
    assert not re.search(r"fetch\(|XMLHttp|import|eval\(|WebSocket", text.split("<script>")[1])
    assert len(outline.ids) == len(set(outline.ids))
    assert all(link.startswith("#") and link[1:] in outline.ids for link in outline.links)
    steps = zip(outline.headings, outline.headings[1:], strict=False)
    assert outline.headings[0] == 1 and all(b <= a + 1 for a, b in steps)
    assert set(re.findall(r'href="([^"#]{0,15})', text)) <= {"", "data:image/png;"}
    addresses = set(re.findall(r"https?://[^\"' <)]+", text))
    assert addresses <= {"http://www.w3.org/2000/svg"}  # a namespace, not an address to load
    assert "url(" not in text and "@import" not in text


def test_the_outline_checker_fails() -> None:
    assert Outline("<p><b>x</p>").wrong
    assert Outline('<script src="a.js"></script>').loads == ["a.js", "script"]


def test_every_figure_says_what_it_is() -> None:
    assert len(figures(report())) == 13
    drawn = figures(measured(report()))
    assert len(drawn) == 13 + 8 + 3  # and the front, calibration, robustness, influence, examples
    for figure in drawn:
        root = ElementTree.fromstring(standalone(figure))
        assert root.get("role") == "img"
        title, description = (root.find(f"{XML}{tag}") for tag in ("title", "desc"))
        assert title is not None and description is not None
        assert title.text == figure.title and description.text == figure.description
        assert root.get("aria-labelledby") == f"{title.get('id')} {description.get('id')}"
        assert figure.rows and all(len(row) == len(figure.header) for row in figure.rows)
    assert len({figure.slug for figure in drawn}) == len(drawn)


def test_nothing_is_drawn_outside_its_figure() -> None:
    for figure in figures(measured(report())):
        root = ElementTree.fromstring(figure.svg)
        _, _, width, height = map(float, (root.get("viewBox") or "").split())
        for circle in root.iter(f"{XML}circle"):
            assert 0 <= float(circle.get("cx", "0")) <= width
            assert 0 <= float(circle.get("cy", "0")) <= height
        for line in root.iter(f"{XML}polyline"):
            for pair in (line.get("points") or "").split():
                x, y = map(float, pair.split(","))
                assert 0 <= x <= width and 0 <= y <= height, figure.title


def test_names_are_escaped() -> None:
    text = page(report("<b>&'\"", "lstm"))
    assert "<b>&" not in text and "&lt;b&gt;&amp;" in text
    assert Outline(text).wrong == []


def test_the_same_in_three_files(tmp_path: Path) -> None:
    made = measured(report())
    path = made.save(tmp_path)
    assert path.name == "report.html" and made.sentence in path.read_text(encoding="utf-8")
    text = (tmp_path / "report.md").read_text(encoding="utf-8")
    values = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    assert made.sentence in text and values["verdict"]["sentence"] == made.sentence
    for name in MODELS:
        assert f"| {name} |" in text
    for link in re.findall(r"\]\((figures/[^)]+)\)", text):
        assert (tmp_path / link).is_file()
    assert len(re.findall(r"!\[", text)) == 24
    assert "> a < b" in text and "true: up & away, answered: down (probability 97 %)" in text
    assert values["contenders"][0]["name"] == made.ranked[0].name
    single = report(seeds=1).to_dict()
    assert single["contenders"][0]["quality"]["half"] is None  # JSON has no infinity


def test_the_page_is_drawn_again_from_its_numbers(tmp_path: Path) -> None:
    made = measured(report())
    made.save(tmp_path)
    again = Report.load(tmp_path)
    assert page(again) == page(made) and again.to_dict() == made.to_dict()
    alone = report("mamba", seeds=1)
    assert page(Report.from_dict(json.loads(alone.to_json()))) == page(alone)
    with pytest.raises(ThreefoldError, match="give the folder of a finished race"):
        Report.load(tmp_path / "nothing")


def test_baselines_are_in_every_figure_of_scores() -> None:
    made = measured(report())
    without = {"training-throughput", "prefill-time", "peak-training-memory", "state-size"}
    for figure in figures(made):
        if not figure.slug.startswith(("example", "large-error")):
            drawn = 'data-series="100"' in figure.svg
            assert drawn == (figure.slug not in without), figure.title


def test_texts_are_shaded_by_surprise() -> None:
    text = page(measured(report()))
    assert '<span class="h0" title="0.2 bits">&lt;p&gt;</span>' in text
    assert '<span class="h4" title="9.0 bits">ä</span>' in text
    assert '<span class="h2" title="3.0 bits">⏎' in text
    for dark in (False, True):
        found = colours(style(), dark)
        for level in range(1, 5):
            assert contrast(found["ink"], found[f"h{level}"]) >= TEXT, (level, dark)


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[browser.Page]:
    """The page in a browser."""
    folder = tmp_path_factory.mktemp("page")
    measured(report()).save(folder)
    assert PROGRAM is not None
    with browser.browser(PROGRAM, folder / "profile") as tab:
        tab.look(1280, 900)
        tab.open(folder / "report.html")
        yield tab


@needs_browser
class TestInABrowser:
    def test_quiet_console_and_no_requests(self, tab: browser.Page) -> None:
        assert tab.complaints == []
        assert [
            address for address in tab.requests if not address.startswith(("file:", "data:"))
        ] == []
        assert tab.evaluate("document.title").startswith("The Python language reference")

    @pytest.mark.parametrize("width", [320, 390, 768, 1280])
    @pytest.mark.parametrize("media", ["", "print"])
    def test_nothing_sticks_out(self, tab: browser.Page, width: int, media: str) -> None:
        tab.look(width, 800, media=media)
        if media and width < 700:
            return  # no paper is that narrow
        assert tab.evaluate("document.documentElement.scrollWidth") <= width
        clipped = tab.evaluate(
            "[...document.querySelectorAll('svg.chart')].flatMap(s => {"
            "const b = s.getBoundingClientRect();"
            "return [...s.querySelectorAll('text')].filter(t => {"
            "const r = t.getBoundingClientRect();"
            "return r.left < b.left - 1 || r.right > b.right + 1 || r.top < b.top - 1"
            " || r.bottom > b.bottom + 1}).map(t => t.textContent)})"
        )
        assert clipped == []

    def test_wide_letters_fit(self, tab: browser.Page, tmp_path: Path) -> None:
        shown = tab.evaluate("location.pathname")
        report("mmmmwww", "lll", seeds=2).save(tmp_path)
        tab.look(1280, 900)
        tab.open(tmp_path / "report.html")
        over = tab.evaluate(
            "[...document.querySelectorAll('svg.chart')].flatMap(s => [...s.querySelectorAll("
            "'text.label, text.name')].filter(t => t.getBoundingClientRect().right >"
            " s.getBoundingClientRect().right + 1 || t.getBoundingClientRect().left <"
            " s.getBoundingClientRect().left - 1).map(t => t.textContent))"
        )
        tab.open(Path(shown))
        assert over == []

    def test_light_and_dark(self, tab: browser.Page) -> None:
        seen = []
        for dark in (False, True):
            tab.look(1280, 900, dark)
            seen.append(tab.evaluate("getComputedStyle(document.body).backgroundColor"))
        assert seen[0] == "rgb(251, 250, 246)" and seen[1] == "rgb(20, 22, 26)"
        tab.look(1280, 900, True, "print")
        assert tab.evaluate("getComputedStyle(document.body).backgroundColor") == (
            "rgb(255, 255, 255)"
        )

    def test_names_do_not_cover_each_other(self, tab: browser.Page) -> None:
        tab.look(1280, 900)
        covered = tab.evaluate(
            "[...document.querySelectorAll('svg.chart')].flatMap(s => {"
            "const r = [...s.querySelectorAll('text.label')].map(t => [t.textContent,"
            " t.getBoundingClientRect()]);"
            "return r.flatMap(([n, a], i) => r.slice(i + 1).filter(([m, b]) =>"
            " a.left < b.right && b.left < a.right && a.top + 5 < b.bottom && b.top + 5 < a.bottom)"
            ".map(([m, b]) => s.querySelector('title').textContent + ': ' + n + ', ' + m))})"
        )
        assert covered == []

    def test_keys_reach_everything(self, tab: browser.Page) -> None:
        tab.look(1280, 900)
        tab.evaluate("document.activeElement.blur(); window.scrollTo(0, 0)")
        wanted = tab.evaluate(
            "document.querySelectorAll('a, summary, button, [tabindex]').length"
            " - document.querySelectorAll('details [tabindex]').length"
        )
        seen = set()
        for _ in range(wanted):
            tab.press("Tab")
            seen.add(
                tab.evaluate(
                    "(e => e.tagName + [...document.querySelectorAll('*')].indexOf(e) +"
                    " getComputedStyle(e).outlineStyle)(document.activeElement)"
                )
            )
        assert len(seen) == wanted and all(name.endswith("solid") for name in seen)

    def test_numbers_open_with_a_key(self, tab: browser.Page) -> None:
        tab.evaluate("document.querySelector('summary').focus()")
        tab.press("Enter")
        assert tab.evaluate("document.querySelector('details').open") is True

    def test_a_model_is_hidden_by_its_button(self, tab: browser.Page) -> None:
        tab.look(1280, 900)
        shown = (
            "[...document.querySelectorAll('.by-model [data-series=\"0\"]')]"
            ".filter(e => e.getClientRects().length).length"
        )
        before = tab.evaluate(shown)
        others = tab.evaluate(shown.replace("0", "1", 1))
        tab.evaluate("document.querySelector('.legend button').focus()")
        tab.press("Enter")
        assert before > 20 and tab.evaluate(shown) == 0
        assert tab.evaluate(shown.replace("0", "1", 1)) == others
        pressed = "document.querySelector('.legend button').getAttribute('aria-pressed')"
        assert tab.evaluate(pressed) == "false"
        tab.press("Enter")
        assert tab.evaluate(shown) == before and tab.evaluate(pressed) == "true"

    def test_a_point_shows_its_numbers(self, tab: browser.Page) -> None:
        tab.look(1280, 900)
        place = tab.evaluate(
            "(() => {const f = document.querySelector('#figure-influence-of-the-past');"
            "f.scrollIntoView(); const b = f.querySelector('[data-series=\"0\"] .dot')"
            ".getBoundingClientRect(); return [b.left + b.width / 2, b.top + b.height / 2]})()"
        )
        for shift in (3, 0):
            tab("Input.dispatchMouseEvent", type="mouseMoved", x=place[0] + shift, y=place[1])
        assert tab.evaluate("document.querySelector('.tip').hidden") is False
        assert tab.evaluate("document.querySelector('.tip').textContent") == "mamba: 1, 80 %"

    def test_everything_is_there_without_scripts(self, tab: browser.Page, tmp_path: Path) -> None:
        shown = tab.evaluate("location.pathname")
        texts = []
        for disabled in (True, False):
            tab("Emulation.setScriptExecutionDisabled", value=disabled)
            tab.open(Path(shown))
            buttons = tab.evaluate("document.querySelectorAll('button').length")
            assert (buttons == 0) == disabled
            texts.append(tab.evaluate("document.querySelector('main').textContent"))
        assert texts[0] == texts[1]
        assert tab.evaluate("document.querySelectorAll('.legend li').length") == len(MODELS) + 2

    def test_prints(self, tab: browser.Page) -> None:
        tab.look(1280, 900)
        made = tab.pdf()
        assert made.startswith(b"%PDF") and len(made) > 20_000
