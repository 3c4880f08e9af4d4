"""Frozen pre-trained models. Importing this imports nothing heavy."""

from pathlib import Path

EMBEDDED = Path(__file__).parent / "scenes-llava"  # the vision-language model in the package
