"""Copies among the records of a task: equal pixels, however files store them, and an equal text where records have one.

The copy of a member among held-out, reference or test records would be trained on and count as not trained on. So
copies are merged before records are dealt: one record, one coin, one role. Nobody can tell which class of a picture
under two classes is right: all its copies are left out.
"""

import contextlib
import hashlib
import os
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedaudit.machinery import user_files

Stored = NDArray[np.uint8] | Path | bytes  # pixels [H, W, 3], an image file or its bytes

NAMED = 3  # pairs that a sentence names
THREADS = 8  # that decode pictures


class _Known(NamedTuple):
    """Shape and pixels of a file's picture, which hold while size and time of change of the file stay."""

    size: int
    changed: int  # ns
    shape: tuple[int, ...]  # height and width
    digest: str  # of its pixels; "": not decoded yet


_known: dict[str, _Known] = {}  # by path
_undecoded: list[list[Stored]] = []  # the pictures that each `undecoded` around the caller let pass


@contextlib.contextmanager
def undecoded() -> Iterator[list[Stored]]:
    """Inside the `with` block, as long as no file's pixels are known, pictures are equal if they are the same file or
    the same bytes; none is decoded. Yields the list of those that were not."""
    _undecoded.append([])
    try:
        yield _undecoded[-1]
    finally:
        _undecoded.pop()


def decoding() -> bool:
    """Whether pictures may be read as a whole here: not inside `undecoded`."""
    return not _undecoded


def known_pictures() -> dict[str, _Known]:
    """All that this process knows of files' pictures, by path, for `remember` in another one."""
    return dict(_known)


def remember(entries: Mapping[str, Sequence[object]]) -> None:
    """Add another process' `known_pictures`, which may come from JSON; entries of this process stay."""
    for path, (size, changed, shape, digest) in entries.items():
        _known.setdefault(path, _Known(size, changed, tuple(shape), digest))  # type: ignore[arg-type]


def identities(pictures: Sequence[Stored]) -> list[Hashable]:
    """For each picture a value that it shares with the pictures of equal pixels [H, W, 3], and with no others.

    A picture is decoded only if another one has its height and width, and a file once until it changes. One that
    cannot be decoded equals its own file or bytes only: who uses it says what is wrong. See also `undecoded`.
    """
    sources: list[Hashable] = [_source(picture) for picture in pictures]
    files = [picture for picture in pictures if not isinstance(picture, np.ndarray)]
    if files and _undecoded and not _known:
        _undecoded[-1].extend(files)
        return sources
    distinct = dict(zip(sources, pictures, strict=True))
    for path in (source for source in distinct if isinstance(source, Path)):
        user_files.note(path)  # another content could be a copy, or none any more
    with ThreadPoolExecutor(min(os.cpu_count() or 1, THREADS)) as threads:
        shapes = dict(zip(distinct, threads.map(_shape, distinct.values()), strict=True))
        count = Counter(shapes.values())
        alike = [source for source, shape in shapes.items() if shape and count[shape] > 1]
        digests = dict(zip(alike, threads.map(_digest, (distinct[source] for source in alike)), strict=True))
    return [digests.get(source) or source for source in sources]


def _source(picture: Stored) -> Hashable:
    if isinstance(picture, Path):
        return picture
    return hashlib.sha256(picture).digest() if isinstance(picture, bytes) else _of_pixels(picture)


def _of_pixels(pixels: NDArray[np.uint8]) -> str:
    return hashlib.sha256(f"{pixels.shape}".encode() + np.ascontiguousarray(pixels).tobytes()).hexdigest()


def _shape(picture: Stored) -> tuple[int, ...]:
    """Height and width as the picture's header says; () if it cannot be read."""
    if isinstance(picture, np.ndarray):
        return picture.shape[:2]
    if isinstance(picture, Path) and (entry := _entry(picture)):
        return entry.shape
    try:
        with user_files.picture(picture) as opened:
            shape = (opened.height, opened.width)
    except OSError:
        return ()
    if isinstance(picture, Path):
        _note(picture, shape)
    return shape


def _digest(picture: Stored) -> str:
    """A digest of the pixels; "" if they cannot be decoded."""
    if isinstance(picture, np.ndarray):
        return _of_pixels(picture)
    if isinstance(picture, Path) and (entry := _entry(picture)) and entry.digest:
        return entry.digest
    try:
        pixels = np.asarray(user_files.decode(picture))
    except OSError:
        return ""
    digest = _of_pixels(pixels)
    if isinstance(picture, Path):
        _note(picture, pixels.shape[:2], digest)
    return digest


def _entry(path: Path) -> _Known | None:
    if (entry := _known.get(str(path))) is None or not path.exists():
        return None
    now = path.stat()
    return entry if entry[:2] == (now.st_size, now.st_mtime_ns) else None


def _note(path: Path, shape: tuple[int, ...], digest: str = "") -> None:
    now = path.stat()
    if time.time_ns() - now.st_mtime_ns > user_files.GRAIN_NS:  # else it could change within a tick of the clock
        _known[str(path)] = _Known(now.st_size, now.st_mtime_ns, shape, digest)


def later(texts: Sequence[Iterable[Hashable]], pictures: Sequence[Stored]) -> dict[int, int]:
    """{position of a record: that of an earlier one with equal pixels and a text in common}. Each record has several
    texts; the earlier ones named are no copies themselves. Only pictures of records with a common text are read."""
    of_record = [list(dict.fromkeys(some)) for some in texts]
    count = Counter(text for some in of_record for text in some)
    suspects = [i for i, some in enumerate(of_record) if any(count[text] > 1 for text in some)]
    first: dict[Hashable, int] = {}
    copies: dict[int, int] = {}
    for i, pixels in zip(suspects, identities([pictures[i] for i in suspects]), strict=True):
        keys = [(pixels, text) for text in of_record[i]]
        there = [first[key] for key in keys if key in first]
        if there:
            copies[i] = there[0]
        else:
            first |= dict.fromkeys(keys, i)
    return copies


class Copies(NamedTuple):
    """Labelled pictures that a task leaves out, by their positions, each with the one that it is a copy of."""

    merged: dict[int, int]  # copies of pictures that are kept
    two_classes: dict[int, int]  # all pictures that stand under two classes; the first of each is its own copy

    def __bool__(self) -> bool:
        return bool(self.merged or self.two_classes)

    def kept(self, n: int) -> list[int]:
        """The positions of those of n pictures that are kept."""
        return [i for i in range(n) if i not in self.merged and i not in self.two_classes]


def labelled_copies(pixels_of: Sequence[Hashable], labels: Sequence[str]) -> Copies:
    """The positions of the pictures to leave out, of n with a class each: of those with equal pixels (`identities`) all
    but the first, and all if their classes differ."""
    groups: defaultdict[Hashable, list[int]] = defaultdict(list)
    for i, pixels in enumerate(pixels_of):
        groups[pixels].append(i)
    several = [group for group in groups.values() if len(group) > 1]
    torn = [len({labels[i] for i in group}) > 1 for group in several]
    return Copies(
        {i: group[0] for group, bad in zip(several, torn, strict=True) if not bad for i in group[1:]},
        {i: group[0] for group, bad in zip(several, torn, strict=True) if bad for i in group},
    )


def pairs(copies: Mapping[int, int], names: Callable[[int], str]) -> str:
    """The first few copies by name, for the end of a sentence: "A = B, C = D, ..."."""
    named = [(first, i) for i, first in copies.items() if i != first]
    return ", ".join(f"{names(first)} = {names(i)}" for first, i in named[:NAMED]) + ", ..." * (len(named) > NAMED)


def file_name(path: Path) -> str:
    """A file by its folder and name."""
    return "/".join(path.parts[-2:])
