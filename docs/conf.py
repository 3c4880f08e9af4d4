"""Settings of Sphinx: `sphinx-build -W --keep-going docs build/docs` makes a folder that any static host takes."""

import re
from pathlib import Path
from typing import Any

from docutils import nodes
from pygments.lexers.data import JsonLexer
from sphinx.application import Sphinx

import fedaudit

HERE = Path(__file__).parent

project, author, copyright = "FedAudit", "FedAudit's authors", "FedAudit's authors, Apache-2.0"  # noqa: A001 (Sphinx' name)
release = version = fedaudit.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc"]
exclude_patterns = ["nightly", "pictures"]
myst_heading_anchors = 4  # as GitHub makes them: a link to a heading works in both places
default_role = "code"  # docstrings have Markdown's single backticks
autodoc_member_order = "bysource"

html_theme = "pydata_sphinx_theme"
html_title = f"FedAudit {release}"
html_static_path = ["site"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_theme_options = {
    "navbar_align": "left",
    "navbar_persistent": ["search-button"],
    "navbar_end": ["theme-switcher"],
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": [],
}


def contents(source: str) -> str:
    """A hidden table of contents of the pages that an index links to, in its own folder and the indexes below."""
    pages = re.findall(r"\]\(((?:[\w-]+/index|[\w-]+)\.(?:md|rst))\)", source)
    return "\n```{toctree}\n:hidden:\n\n" + "\n".join(dict.fromkeys(pages)) + "\n```\n"


def read_page(app: Sphinx, page: str, source: list[str]) -> None:
    """Name files of the repository outside of docs instead of linking to them, and give an index its contents."""

    def outside(link: re.Match[str]) -> str:
        path = (HERE / page).parent.joinpath(link[2].partition("#")[0]).resolve()
        if path.is_relative_to(HERE):
            return link[0]
        return f"{link[1]} (`{path.relative_to(HERE.parent).as_posix()}` in the repository)"

    source[0] = re.sub(r"(?<!!)\[([^\]]*)\]\((\.\./[^)\s]+)\)", outside, source[0])
    if page.rpartition("/")[2] == "index":
        source[0] += contents(source[0])


def name_headings(app: Sphinx, page: nodes.document) -> None:
    """Give a screen reader a word for the empty heading above the names of rows."""
    for head in page.findall(nodes.thead):
        for entry in head.findall(nodes.entry):
            if not entry.astext().strip():
                entry += nodes.inline("", "row", classes=["visually-hidden"])


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("source-read", read_page)
    app.connect("doctree-read", name_headings)
    app.add_lexer("jsonl", JsonLexer)
    return {"parallel_read_safe": True}
