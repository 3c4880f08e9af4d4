"""The examples of CONTRIBUTING.md by their files, and imported as if they lay there."""

from __future__ import annotations

import re
import sys
from types import ModuleType

from tests.whole_runs import ROOT

_FILE = re.compile(r"```(?:python|csv|html)\n(?:# |\{# )(\S+)(?: #\})?\n(.*?)```", re.DOTALL)
EXAMPLES: dict[str, str] = dict(_FILE.findall((ROOT / "CONTRIBUTING.md").read_text()))


def loaded(name: str) -> ModuleType:
    module = ModuleType(name.removesuffix(".py").replace("/", "."))
    sys.modules[module.__name__] = module  # dataclasses look their module up
    exec(compile(EXAMPLES[name], name, "exec"), vars(module))
    return module
