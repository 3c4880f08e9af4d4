"""A photograph of the first screen of a page, by the Chromium that is at hand, and the words that it shows."""

from __future__ import annotations

import hashlib
import io
import re
import shutil
import subprocess
import tempfile
from html.parser import HTMLParser
from pathlib import Path

from PIL import Image
from PIL.PngImagePlugin import PngInfo

from fedaudit.machinery.errors import InputError

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
FURNITURE = 200  # pixels that a window may be higher than the page in it
SILENT = ("style", "script", "title")  # elements whose text nobody reads
WORDS = "words"  # what a picture says of itself: the SHA-256 of the words that it shows
COUNT = """<script>
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), range = document.createRange();
let lines = 0, seen = 0;
while (walker.nextNode()) {
  if (!walker.currentNode.data.trim() || walker.currentNode.parentElement.closest("style, script, title")) continue;
  lines += 1;
  range.selectNodeContents(walker.currentNode);
  if ([...range.getClientRects()].some(r => r.top < HEIGHT)) seen = lines;
}
document.title = "lines: " + seen;
</script>"""


def browser() -> str:
    """The path of a Chromium. InputError if there is none."""
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        raise InputError(
            f"PATH: a picture needs a browser that photographs pages, one of {', '.join(BROWSERS)}; none is there"
        )
    return found


def photograph(page: bytes, width: int, height: int) -> tuple[bytes, list[str]]:
    """The first `height` pixels of a page as PNG, and the lines of words in them."""
    with tempfile.TemporaryDirectory() as folder:
        html, png = Path(folder, "page.html"), Path(folder, "page.png")
        html.write_bytes(page + COUNT.replace("HEIGHT", str(height)).encode())
        window = f"--window-size={width},{height + FURNITURE}"
        # the page is ours, and root, as in a container, has no sandbox
        command = [browser(), "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", window]
        ran = subprocess.run(
            [*command, f"--screenshot={png}", "--dump-dom", html.as_uri()], capture_output=True, text=True, check=False
        )
        seen = re.search(r"<title>lines: (\d+)</title>", ran.stdout)
        if seen is None or not png.is_file():
            raise InputError(f"{command[0]}: took no picture, its exit code is {ran.returncode}")
        words = lines(page)[: int(seen[1])]
        return _small(Image.open(png).convert("RGB").crop((0, 0, width, height)), words), words


def _small(picture: Image.Image, words: list[str]) -> bytes:
    """As PNG with a palette, which knows by its words whether it is the picture of them."""
    about, buffer = PngInfo(), io.BytesIO()
    about.add_text(WORDS, digest(words))
    picture.quantize(dither=Image.Dither.NONE).save(buffer, "PNG", optimize=True, pnginfo=about)
    return buffer.getvalue()


def digest(words: list[str]) -> str:
    return hashlib.sha256("\n".join(words).encode()).hexdigest()


def lines(page: bytes) -> list[str]:
    """The words of a page, a line for each piece of text between two tags."""
    reader = _Reader()
    reader.feed(page.decode())
    reader.close()
    return reader.lines


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self._silent = False

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self._silent = tag in SILENT

    def handle_endtag(self, tag: str) -> None:
        self._silent = False

    def handle_data(self, data: str) -> None:
        if data.strip() and not self._silent:
            self.lines.append(" ".join(data.split()))
