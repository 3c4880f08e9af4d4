"""The site is built from docs/ without a warning, and every link of its pages leads to a page and a place on it."""

import io
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import fedaudit
from tests.doc_blocks import PAGES, ROOT

for package in ("sphinx", "myst_parser", "pydata_sphinx_theme"):
    pytest.importorskip(package, reason="of the extra docs")
from sphinx.application import Sphinx  # noqa: E402 (of the extra docs)
from sphinx.util.docutils import docutils_namespace, patch_docutils  # noqa: E402

pytestmark = pytest.mark.filterwarnings(r"ignore:.* is deprecated\. Check CHANGES")  # of Sphinx's extensions


class Links(HTMLParser):
    """The places of a page and what it links to."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.places: set[str] = {""}
        self.to: list[str] = []
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = dict(attributes)
        self.places.add(given.get("id") or "")
        link = given.get("href") if tag in ("a", "link") else given.get("src")
        self.to += [link] if link else []


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built in this process, which has loaded torch, and without the stems of words that only the search looks at."""
    place, warnings = tmp_path_factory.mktemp("site"), io.StringIO()
    folders = (ROOT / "docs", ROOT / "docs", place / "html", place / "trees", "html")
    with pytest.MonkeyPatch.context() as patch, patch_docutils(folders[1]), docutils_namespace():
        patch.setattr("sphinx.search.en.SearchEnglish.stem", lambda language, word: word)
        Sphinx(*folders, status=None, warning=warnings).build()
    assert warnings.getvalue() == ""
    return place / "html"


def test_every_page_is_on_it(site: Path) -> None:
    for page in PAGES:
        if page.startswith("docs/"):
            assert (site / page.removeprefix("docs/")).with_suffix(".html").is_file()


def test_links_lead_somewhere(site: Path) -> None:
    pages = {page: Links(page) for page in site.rglob("*.html") if "_static" not in page.parts}
    for page, read in pages.items():
        for link in read.to:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            assert target.is_file(), (page.name, link)
            if target in pages:
                assert unquote(parts.fragment) in pages[target].places, (page.name, link)


def test_what_programs_import_has_an_entry(site: Path) -> None:
    places = Links(site / "reference" / "library.html").places
    assert {f"fedaudit.{name}" for name in fedaudit.__all__} - {"fedaudit.Recorder"} <= places
    assert {"fedaudit.Recorder", "fedaudit_recorder.Recorder"} & places
