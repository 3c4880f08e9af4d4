"""Builds fedaudit-recorder: one module, which lies in the folder above and in an sdist beside this file."""

import pathlib
import shutil

import setuptools

HERE = pathlib.Path(__file__).resolve().parent
copied = [HERE / name for name in ("fedaudit_recorder.py", "LICENSE") if not (HERE / name).exists()]
for copy in copied:
    shutil.copyfile(str(HERE.parent / copy.name), str(copy))
try:
    setuptools.setup()
finally:
    for copy in copied:
        copy.unlink()
