"""A page that carries its files: whoever is sent the page alone saves them from it as one ZIP archive."""

from __future__ import annotations

import base64
import io
import zipfile
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedaudit.reports.templates import Write

PAGE = "index.html"
LINK = b'href="report.zip"'  # of templates: the macro `archive`
FIRST_DATE = (1980, 1, 1, 0, 0, 0)  # that an archive can hold; the real one would make equal reports differ
RIGHTS = 0o644 << 16  # of a file that everybody may read


def self_contained(write: Write) -> Write:
    """A `write(name, bytes)` that passes files on, and gives index.html, the last of them, the others as an archive."""
    files: dict[str, bytes] = {}

    def write_one(name: str, data: bytes) -> None:
        write(name, attach(files, data) if name == PAGE else data)
        files[name] = data

    return write_one


def attach(files: Mapping[str, bytes], page: bytes) -> bytes:
    """The page, in which the link to report.zip holds that archive of `files` itself, as a data: URI. Equal files give
    equal bytes."""
    return page.replace(LINK, b'href="data:application/zip;base64,' + base64.b64encode(_zipped(files)) + b'"')


def _zipped(files: Mapping[str, bytes]) -> bytes:
    """The files as a ZIP archive, compressed."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            about = zipfile.ZipInfo(name, FIRST_DATE)
            about.create_system, about.external_attr, about.compress_type = 3, RIGHTS, zipfile.ZIP_DEFLATED
            archive.writestr(about, data)
    return buffer.getvalue()
