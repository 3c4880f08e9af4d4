"""Arguments with which a learner is made. Imports nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from fedaudit.backbones.clip_source import ClipSource


@dataclass(frozen=True)
class Resources:
    """The frozen model, its device, and the learner's settings: arguments of `prepared` and `evaluation`."""

    backbone: Path | ClipSource
    settings: DataclassInstance  # with the fields of the learner's `Settings`
    cache: Path  # folder of encoded records
    device: str = "cpu"
    dtype: str = "float32"
    backbone_code: str = ""  # the user's Python file that loads the model; "" if it needs none
    workers: int = 1  # processes that compute; one on a GPU
    threads: int = 1  # for work of the processor: what --threads says
    memory: int = 0  # bytes that a pass of a worker may hold; 0: the learner's default
    sample: bool = False  # encode one batch of pictures, and take the others for these: for estimates of time
