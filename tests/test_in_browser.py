"""Every kind of page as a browser shows it: on phones and wide screens, by day and by night, on paper, sent on alone,
and to who has only a keyboard or a screen reader.

Needs a Chromium; the rules of accessibility are axe-core's (CONTRIBUTING.md says how to get it)."""

from __future__ import annotations

import functools
import io
import re
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from matplotlib.backends.backend_pdf import FigureCanvasPdf

from docs.pictures.photographs import browser
from fedaudit.machinery.errors import InputError
from tests.page_kinds import DRAWN, INDEXES, KINDS, QUICK

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install -e '.[test]'")
Browser, Tab = playwright.Browser, playwright.Page
AXE = Path(__file__).parent / "node_modules" / "axe-core" / "axe.min.js"
WIDTHS = (360, 400, 768, 1280)  # pixels: phones, a tablet, a laptop
SCHEMES = ("light", "dark")
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]
SHEETS = 11  # of A4 that LoRA's page may take


each = pytest.mark.parametrize(
    "opened",
    # every kind; quick: three pages that together have every kind of element
    [pytest.param(kind, marks=[] if kind in QUICK else pytest.mark.slow) for kind in KINDS],
    indirect=True,
    scope="module",
)


@dataclass
class Opened:
    """A page in a browser, and what it did there."""

    kind: str
    tab: Tab
    address: str
    asked_for: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


@functools.cache
def content(kind: str) -> bytes:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FigureCanvasPdf, "print_pdf", lambda *_, **__: None)  # nobody looks at it here
        return KINDS[kind]()


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    try:
        path = browser()
    except InputError as error:
        pytest.skip(str(error))
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])  # the pages are ours
        yield started
        started.close()


@pytest.fixture(scope="module")
def opened(chromium: Browser, tmp_path_factory: pytest.TempPathFactory, request: Any) -> Iterator[Opened]:
    """A page alone in a folder, by day."""
    file = tmp_path_factory.mktemp("sent") / "index.html"
    file.write_bytes(content(request.param))
    context = chromium.new_context(color_scheme="light", viewport={"width": 1280, "height": 900}, accept_downloads=True)
    one = Opened(request.param, context.new_page(), file.as_uri())
    one.tab.on("request", lambda asked: one.asked_for.append(asked.url))
    one.tab.on("console", lambda said: one.errors.append(said.text))
    one.tab.on("pageerror", lambda error: one.errors.append(str(error)))
    one.tab.goto(one.address)
    yield one
    context.close()


@each
def test_a_page_asks_for_nothing_fails_nowhere_and_has_no_dead_link(opened: Opened) -> None:
    tab = opened.tab
    tab.evaluate("window.scrollTo(0, document.body.scrollHeight)")
    for scheme in SCHEMES:
        tab.emulate_media(color_scheme=scheme)
    assert [url for url in opened.asked_for if not url.startswith("data:")] == [opened.address]
    assert opened.errors == []
    links: list[str] = tab.eval_on_selector_all("a[href]", "all => all.map(a => a.getAttribute('href'))")
    for link in links:
        if link.startswith("#"):
            assert tab.locator(f"[id='{link[1:]}']").count() == 1, link
        elif not link.startswith("data:"):
            assert opened.kind in INDEXES, link[:80]
            assert re.fullmatch(r"[\w./-]+", link), link


@each
def test_its_files_are_saved_from_it(opened: Opened) -> None:
    tab = opened.tab
    if opened.kind == "index of audits":
        assert tab.locator("a[download]").count() == 0
        return
    with tab.expect_download() as saved:
        tab.locator("a[download]").click()
    assert saved.value.suggested_filename == "report.zip"
    with zipfile.ZipFile(io.BytesIO(saved.value.path().read_bytes())) as archive:
        assert archive.testzip() is None
        assert any(name.endswith(".csv") for name in archive.namelist())


@each
def test_nothing_is_wider_than_the_screen_and_a_phone_shows_the_first_words(opened: Opened) -> None:
    """Unfolded, and on phones folded too; what is wide itself scrolls in its own box."""
    tab = opened.tab
    for unfolded, widths in ((True, WIDTHS), (False, WIDTHS[:1])):
        unfold(tab, unfolded)
        for width in widths:
            tab.set_viewport_size({"width": width, "height": 900})
            assert tab.evaluate("document.documentElement.scrollWidth") == width, (width, unfolded)
    tab.set_viewport_size({"width": 360, "height": 640})
    box = tab.locator("h1").first.bounding_box()
    assert box["y"] + box["height"] < 640, "the first words are in sight"


@each
def test_contents_stay_in_sight_on_wide_screens_alone(opened: Opened) -> None:
    tab = opened.tab
    if tab.locator("body > nav").count() == 0:
        pytest.skip("a page without contents")
    for width, stays in ((1280, True), (768, False)):
        tab.set_viewport_size({"width": width, "height": 600})
        tab.evaluate("window.scrollTo(0, document.body.scrollHeight)")
        box = tab.locator("body > nav").bounding_box()
        assert (0 <= box["y"] < 300) == stays
    tab.evaluate("window.scrollTo(0, 0)")


@each
def test_the_first_key_skips_to_the_content(opened: Opened) -> None:
    tab = opened.tab
    tab.goto(opened.address)
    tab.keyboard.press("Tab")
    skip = tab.locator(":focus")
    box = skip.bounding_box()
    assert min(box["x"], box["y"]) >= 0
    assert skip.evaluate("it => getComputedStyle(it).outlineStyle") == "solid"
    tab.keyboard.press("Enter")
    assert tab.evaluate("location.hash") == "#main"
    assert tab.locator("main#main").count() == 1


@each
def test_colours_are_those_of_the_scheme(opened: Opened) -> None:
    colour = "name => getComputedStyle(document.body)[name].match(/\\d+/g).slice(0, 3).reduce((a, b) => a + +b, 0)"
    for scheme in SCHEMES[::-1]:
        opened.tab.emulate_media(color_scheme=scheme)
        ink, page = (opened.tab.evaluate(colour, name) for name in ("color", "backgroundColor"))
        assert (ink < page) == (scheme == "light")
    if opened.kind in DRAWN:  # on the page's own ground
        assert "var(--page)" in opened.tab.locator("figure svg").first.inner_html()


@each
def test_axe_finds_nothing(opened: Opened) -> None:
    """By day in all that is folded, too; by night colours alone are another question."""
    if not AXE.is_file():
        pytest.skip(f"{AXE} is not there: cd tests && npm install")
    tab = opened.tab
    tab.set_viewport_size({"width": 1280, "height": 900})
    tab.evaluate(AXE.read_text(encoding="utf-8"))
    rules = ({"type": "rule", "values": ["color-contrast"]}, {"type": "tag", "values": RULES})
    for scheme, only in zip(SCHEMES[::-1], rules, strict=True):
        tab.emulate_media(color_scheme=scheme)
        unfold(tab, scheme == "light")
        found: dict[str, Any] = tab.evaluate("only => axe.run({runOnly: only, resultTypes: ['violations']})", only)
        violations = [(rule["id"], node["html"]) for rule in found["violations"] for node in rule["nodes"]]
        assert violations == [], scheme


@each
def test_on_paper(opened: Opened) -> None:
    """Light although the screen is dark; nothing is cut; long tables stay folded, and notes do not."""
    tab = opened.tab
    unfold(tab, False)
    tab.emulate_media(media="print", color_scheme="dark")
    page = "getComputedStyle(document.body).getPropertyValue('--page')"
    assert tab.evaluate(page) == "#fff"
    cut = "all => all.filter(it => getComputedStyle(it).breakInside != 'avoid').length"
    assert tab.eval_on_selector_all("figure, tr", cut) == 0
    shown = "all => all.filter(it => it.lastElementChild.checkVisibility({contentVisibilityAuto: true})).length"
    assert tab.eval_on_selector_all("details:has(table):not([open])", shown) == 0
    tab.emulate_media(media="screen", color_scheme="light")


@pytest.mark.slow  # the page of the default report; quick: what is printed of a page, test_on_paper
def test_lora_fits_on_eleven_sheets(chromium: Browser) -> None:
    tab = chromium.new_page()
    tab.set_content(content("LoRA").decode())
    printed = tab.pdf(prefer_css_page_size=True)
    assert len(re.findall(rb"/Type\s*/Page\b", printed)) <= SHEETS
    tab.close()


def unfold(tab: Tab, everything: bool) -> None:
    """Open all that is folded, or fold it again; what was open from the start stays open."""
    keep = "it.dataset.open ??= it.open; it.open = everything || it.dataset.open == 'true'"
    tab.evaluate(f"everything => document.querySelectorAll('details').forEach(it => {{ {keep} }})", everything)
