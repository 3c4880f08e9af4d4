"""Pictures in one folder per class, and the test pictures of a data set that has no test list."""

from collections.abc import Collection
from pathlib import Path

import numpy as np

from fedaudit.machinery import user_files
from fedaudit.machinery.errors import InputError
from fedaudit.tasks.classification import Picture
from fedaudit.tasks.tables import is_clutter

Rows = list[tuple[Picture, str]]  # pictures with the class as the files name it
TEST_SHARE = 0.3  # where a data set has no test list; CoOp's share
SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff")
UNREAD = (".heic", ".heif", ".avif", ".jp2", ".jxl", ".ppm", ".pgm", ".svg", ".dcm", ".npy")  # pictures of other kinds


def class_folders(images: Path, skip: Collection[str] = ()) -> Rows:
    """Rows (file, class name) of the folders in `images`, one per class, without those in `skip`. Files that systems
    leave, and files that are no pictures, are passed over. InputError: no folders, one without pictures, or pictures
    that cannot be read."""
    rows: Rows = []
    for folder in user_files.listed(images):
        if folder.name not in skip and not is_clutter(folder.name) and not folder.is_file():
            rows += [(file, folder.name) for file in _pictures(folder)]
    if not rows:
        raise InputError(
            f"{images} holds no folders with images, {user_files.largest(images)}; unpack the data set again"
        )
    return rows


def _pictures(folder: Path) -> list[Path]:
    """The pictures of a class, by name."""
    visible = [file for file in user_files.listed(folder) if not is_clutter(file.name)]
    if unread := [file for file in visible if file.suffix.lower() in UNREAD]:
        kinds = ", ".join(user_files.FORMATS)
        raise InputError(f"{unread[0]} is of a format that is not read; convert it to one of {kinds}")
    files = [file for file in visible if file.suffix.lower() in SUFFIXES]
    if not files:
        complaint = f"{folder} holds no images ({', '.join(SUFFIXES)}), {user_files.largest(folder)}"
        raise InputError(f"{complaint}; unpack the data set again")
    if below := [file for file in visible if file.is_dir()]:
        raise InputError(f"{below[0]} is a folder inside a class; a class's pictures must lie in its own folder")
    return files


def with_test(rows: Rows, rng: np.random.Generator) -> tuple[Rows, Rows]:
    """(Training rows, test rows): three tenths of each class, at random, are for testing."""
    by_class: dict[str, Rows] = {}
    for row in rows:
        by_class.setdefault(row[1], []).append(row)
    train: Rows = []
    test: Rows = []
    for of_class in by_class.values():
        dealt = [of_class[i] for i in rng.permutation(len(of_class))]
        cut = round(TEST_SHARE * len(dealt))
        test += dealt[:cut]
        train += dealt[cut:]
    return train, test
