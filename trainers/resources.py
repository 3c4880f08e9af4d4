"""What a learner is made with. Imports nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from fedaudit.backbones.clip_source import ClipSource


@dataclass(frozen=True)
class Resources:
    """The frozen model and where it computes, and the learner's own settings."""

    backbone: Path | ClipSource
    settings: DataclassInstance  # as the command line read them
    cache: Path  # where what is encoded once is kept
    device: str = "cpu"
    dtype: str = "float32"
    backbone_code: str = ""  # the user's own file for a model that needs one
    workers: int = 1
