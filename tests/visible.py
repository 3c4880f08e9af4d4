"""What a reader of a page sees before anything is opened: its words outside of closed details."""

from html.parser import HTMLParser

VOID = {"meta", "link", "img", "br", "hr", "input", "wbr", "col"}


class Visible(HTMLParser):
    """`words` of a page's body outside of closed details; of these the summary counts, and of figures the labels."""

    def __init__(self, page: bytes) -> None:
        super().__init__()
        self.words: list[str] = []
        self._path: list[tuple[str, bool]] = []  # open elements, and whether what is inside is hidden
        self.feed(page.decode())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in VOID:
            return
        closed = tag == "details" and "open" not in dict(attrs)
        self._path.append((tag, closed or tag in ("head", "style", "script", "title", "metadata")))

    def handle_endtag(self, tag: str) -> None:
        while self._path and self._path.pop()[0] != tag:
            pass

    def handle_data(self, data: str) -> None:
        hidden = [i for i, (_, inside) in enumerate(self._path) if inside]
        in_summary = len(hidden) == 1 and [tag for tag, _ in self._path[hidden[0] + 1 :]][:1] == ["summary"]
        if not hidden or in_summary:
            self.words += data.split()


def visible_words(page: bytes) -> int:
    """How many words of a page are in sight."""
    return len(Visible(page).words)
