"""What the user gave is wrong: one sentence says what, and what would be right."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class InputError(ValueError):
    """Its message is one sentence that names the flag or file, the value and what is valid.

    The command prints it and exits with 2.
    """


def nearest(name: str, options: Iterable[str]) -> str:
    """The suffix " (did you mean 'fedrand'?)" for the option nearest to `name` in any case; empty if none is near."""
    known = {option.casefold(): option for option in options}
    found = difflib.get_close_matches(name.casefold(), known, n=1)
    return f" (did you mean {known[found[0]]!r}?)" if found else ""
