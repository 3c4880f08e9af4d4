"""What README.md, CONTRIBUTING.md and docs/ hold beside sentences: fenced blocks, command lines, flags, tables and links."""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
PATHS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAGES = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in PATHS}

_FENCED = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
_INDENTED = re.compile(r"^ {4}(?=python |audit\.py )(.*)$", re.MULTILINE)  # a command line between paragraphs
_COMMENT = re.compile(r"(^|\s)#\s.*$", re.MULTILINE)
_CRON = re.compile(r"^([\d*]+ ){5} *", re.MULTILINE)
_COMMAND = re.compile(r"(python3? |audit\.py |fedaudit -)")  # how inline code begins that is a command line


@dataclass(frozen=True)
class Block:
    page: str
    language: str
    text: str

    @property
    def first(self) -> str:
        """Its first line, by which tests name it."""
        return self.text.partition("\n")[0]


BLOCKS = [Block(page, *pair) for page, text in PAGES.items() for pair in _FENCED.findall(text)]


def prose(page: str) -> str:
    """A page without its fenced blocks."""
    return _FENCED.sub("", PAGES[page])


def inline(page: str) -> list[str]:
    """The inline code of a page, each on one line."""
    return [" ".join(code.split()) for code in re.findall(r"`([^`]+)`", prose(page))]


def commands(text: str) -> list[list[str]]:
    """The commands of a shell script, each as its words: without comments, redirections, and a crontab's times."""
    lexer = shlex.shlex(_CRON.sub("", _COMMENT.sub("", text)), posix=True, punctuation_chars=";<>|&\n")
    lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t\r", True, ""
    found: list[list[str]] = [[]]
    redirected = False
    for word in lexer:
        if not word.strip(";<>|&\n"):
            if redirected := "<" in word or ">" in word:
                found[-1] = [w for w in found[-1] if not w.isdigit() or w is not found[-1][-1]]
            else:
                found.append([])
        elif redirected:
            redirected = False
        elif word not in ("{", "}"):
            found[-1].append(word)
    return [words for words in found if words]


def shell_blocks() -> list[Block]:
    """The fenced blocks of command lines; not those that show a folder's files."""
    return [block for block in BLOCKS if block.language in ("", "bash") and not block.first.endswith("/")]


def documented() -> list[tuple[str, tuple[str, ...]]]:
    """Every command line with its page, each once: of blocks, of indented lines, and of inline code that is one."""
    texts = [(block.page, block.text) for block in shell_blocks()]
    for page in PAGES:
        texts += [(page, line) for line in _INDENTED.findall(PAGES[page])]
        texts += [(page, code) for code in inline(page) if _COMMAND.match(code)]
    return list(dict.fromkeys((page, tuple(words)) for page, text in texts for words in commands(text)))


def table(page: str, *headings: str, section: str = "") -> list[list[str]]:
    """The cells of the one table under `section` (a heading's words; by default anywhere) whose first columns are called so."""
    text = prose(page)
    if section:
        (start,) = re.finditer(rf"^(#+) {re.escape(section)}\n", text, re.MULTILINE)
        text = re.split(rf"^#{{1,{len(start[1])}}} ", text[start.end() :], maxsplit=1, flags=re.MULTILINE)[0]
    rows = [
        [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines.splitlines()]
        for lines in re.findall(r"(?:^ *\|.*\n)+", text + "\n", re.MULTILINE)
    ]
    (found,) = (cells for cells in rows if tuple(cells[0][: len(headings)]) == headings)
    return found[2:]


def codes(cell: str) -> list[str]:
    """The inline code of a cell."""
    return re.findall(r"`([^`]+)`", cell)


def anchors(page: str) -> set[str]:
    """What links may name on a page: its headings, as GitHub writes them."""
    titles = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.replace("`", "").lower()).replace(" ", "-") for title in titles}


def links(page: str) -> list[str]:
    """Where a page's links lead, but those to the web."""
    return [to for to in re.findall(r"\]\(([^)\s]+)\)", prose(page)) if "://" not in to]
