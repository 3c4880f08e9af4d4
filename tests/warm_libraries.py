"""What a run imports sooner or later and computes once per process, for those that are forked from one that has it (`tests.warm`)."""

import tempfile

import matplotlib.figure  # noqa: F401
import peft  # noqa: F401
import scipy.stats  # noqa: F401
import sklearn.linear_model  # noqa: F401
import torch  # noqa: F401
from transformers import (  # noqa: F401
    AutoModelForImageTextToText,
    AutoProcessor,
    CLIPImageProcessor,
    LlavaForConditionalGeneration,
    LlavaProcessor,
)

import fedaudit
from tests.unprinted import nothing_printed

with tempfile.TemporaryDirectory() as out, nothing_printed():
    fedaudit.audit(
        method="promptfl", epsilon="none", rounds=1, clients=3, train=12, test=1, threads=1, quiet=True, out=out
    )
