"""What a run imports sooner or later, for processes that are forked from one that has it (`tests.warm`)."""

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

import fedaudit.pipeline.compute  # noqa: F401
import reports.report  # noqa: F401
import trainers.lora
import trainers.prompts  # noqa: F401
