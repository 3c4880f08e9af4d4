"""Numbers and configuration values as the page writes them."""

from __future__ import annotations

import math
from collections.abc import Sequence


def plain(value: object) -> str:
    """A configuration value in words: no Python in the page."""
    if isinstance(value, (list, tuple)):
        return ", ".join(map(plain, value)) or "empty"
    if value is None or isinstance(value, bool):
        return {None: "none", True: "yes", False: "no"}[value]
    return "∞" if value == "inf" else str(value)


def number(value: float | None, digits: int = 3) -> str:
    """A number with fixed digits; "n/a" for what is missing or not a number."""
    return "n/a" if value is None or not math.isfinite(value) else f"{value:.{digits}f}"


def percent(value: float | None) -> str:
    """A rate in percent with one digit, without the sign."""
    return number(None if value is None else 100 * value, 1)


def p_value(value: float | None) -> str:
    """A p-value with two digits."""
    return "n/a" if value is None or math.isnan(value) else f"{value:.2g}"


def kind(verdict: str | None) -> str:
    """The class of a verdict in the page's style: a leak is one in either direction."""
    return (verdict or "").partition(",")[0].replace(" ", "-")


def epsilon(value: float | str | None) -> str:
    """An epsilon with three digits; the infinite one, also as the string "inf", is the sign."""
    if value is None:
        return "n/a"
    value = float(value)
    return "n/a" if math.isnan(value) else "∞" if math.isinf(value) else f"{value:.3g}"


def short(value: float | None) -> str:
    """Three digits, thousands with commas."""
    if value is None or not math.isfinite(value):
        return "n/a" if value is None or math.isnan(value) else "∞"
    return f"{float(f'{value:.3g}'):,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def signed(value: float, digits: int = 1) -> str:
    """A difference with fixed digits and its sign."""
    return f"{value:+z.{digits}f}".replace("-", "−")


def tau(value: float) -> str:
    """A rank correlation with two digits."""
    return f"{value:.2f}".replace("-0.00", "0.00").replace("-", "−")


def listed(words: Sequence[str]) -> str:
    """ "a, b and c"."""
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
