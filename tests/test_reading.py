"""Pages are short and so are their sentences; what once was stands in the changelog."""

import re
from collections.abc import Iterator

from tests.doc_blocks import PAGES, prose

MOST_WORDS = 1500  # of a page that is read from top to bottom: tables count, blocks do not
MOST_IN_A_GUIDE = 800  # one task on one page
MOST_IN_A_SENTENCE = 35
LOOKED_UP = ("docs/reference/", "docs/benchmarks/", "CONTRIBUTING.md")
HISTORY = r"until now|before this version|earlier version|\(before: |, as before\b|used to be|formerly|previously"
WORD = re.compile(r"[A-Za-z][A-Za-z'-]*")


def sentences(page: str) -> Iterator[str]:
    """The sentences and the halves at a colon or semicolon, without tables, headings, code and the targets of links."""
    lines = [line for line in prose(page).splitlines() if not re.match(r"\s*(\||#|<|!\[)", line)]
    text = re.sub(r"`[^`]*`", "code", re.sub(r"\]\([^)]*\)", "]", "\n".join(lines)))
    for paragraph in re.split(r"\n\s*\n|\n\s*(?:[-*]|\d+\.) ", text):
        yield from re.split(r"(?<=[.!?:;])\s+", " ".join(paragraph.split()))


def test_no_sentence_is_long() -> None:
    pages = (page for page in PAGES if page != "CONTRIBUTING.md")
    said = ((page, sentence) for page in pages for sentence in sentences(page))
    assert [(page, s) for page, s in said if len(WORD.findall(s)) > MOST_IN_A_SENTENCE] == []


def test_a_page_that_is_read_is_short() -> None:
    most = {page: MOST_IN_A_GUIDE if page.startswith("docs/guides/") else MOST_WORDS for page in PAGES}
    words = {page: len(prose(page).split()) for page in PAGES if not page.startswith(LOOKED_UP)}
    assert {page: n for page, n in words.items() if n > most[page]} == {}


def test_history_belongs_to_the_changelog() -> None:
    assert [(page, found) for page in PAGES if (found := re.findall(HISTORY, prose(page)))] == []
