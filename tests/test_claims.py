"""Every number that docs/benchmarks/claims.md quotes for a page stands on that page, and the constants it names are there."""

from __future__ import annotations

import re

from tests.doc_blocks import PAGES, ROOT, prose

CLAIMS = "docs/benchmarks/claims.md"
READ = ("docs/start/", "docs/tutorials/", "docs/guides/")
OTHERWISE = "arithmetic|a definition|an assumption|no command|the page's own|the tutorial's own|the same".split("|")


def sections() -> dict[str, list[list[str]]]:
    """By page the rows of its table: the claim, and what prints it."""
    found = {}
    for section in re.split(r"^## ", PAGES[CLAIMS], flags=re.MULTILINE)[1:]:
        page, _, text = section.partition("\n")
        cells = [[c.strip() for c in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("|")]
        found[page] = cells[2:]
    return found


SECTIONS = sections()
ROWS = [(page, *row) for page, rows in SECTIONS.items() for row in rows]


def bare(text: str) -> str:
    """Text on one line, without the marks of code and stress and without the targets of links."""
    return " ".join(re.sub(r"[`*]", "", re.sub(r"\]\([^)]*\)", "]", text)).split())


def stands(number: str, text: str) -> bool:
    """Whether a number stands there as a whole: 0.6 is no part of 0.65, nor 2 of 1.2, 12 or 2,000."""
    ends = r"(?![\w]|[.,]\d)" if number[-1].isalnum() else ""
    return re.search(rf"(?<![\w.])(?<!\d,){re.escape(number)}{ends}", text, re.IGNORECASE) is not None


def test_a_number_stands_on_its_page() -> None:
    texts = {page: bare(prose(page)) for page in SECTIONS}
    for page, claim, _ in ROWS:
        assert (numbers := re.findall(r"\*\*(.+?)\*\*", claim)), (page, claim)
        assert [number for number in numbers if not stands(number, texts[page])] == [], (page, claim)


def test_what_prints_it_is_there() -> None:
    """A name in a file stands in that file; test_doc_commands.py reads the commands."""
    for *_, source in ROWS:
        constants = re.findall(r"((?:`\w[\w-]*`(?:, | and )?)+) in `([\w/.]+\.(?:py|toml))`", source)
        for names, file in constants:
            words = {*re.findall(r"[\w-]+", (ROOT / file).read_text(encoding="utf-8"))}
            assert {*re.findall(r"`([\w-]+)`", names)} <= words, file
        assert constants or source.startswith((*OTHERWISE, "`python ", "`pytest ")), source


def test_every_page_that_is_read_is_there() -> None:
    """With a table, or named above the first one as a page without numbers."""
    head = PAGES[CLAIMS].partition("\n## ")[0]
    read = {page for page in PAGES if page == "README.md" or page.startswith(READ)}
    assert read == {*SECTIONS} | {*re.findall(r"`(docs/[\w/-]+\.md)`", head)}
