"""Numbers and configuration values as text."""

from __future__ import annotations

import math
from collections.abc import Sequence


def plain(value: object) -> str:
    """A configuration value as text: lists joined by commas ("empty" without entries), None, True and False as none,
    yes and no, "inf" as ∞."""
    if isinstance(value, (list, tuple)):
        return ", ".join(map(plain, value)) or "empty"
    if value is None or isinstance(value, bool):
        return {None: "none", True: "yes", False: "no"}[value]
    return "∞" if value == "inf" else str(value)


def number(value: float | None, digits: int = 3) -> str:
    """A number with `digits` decimals; "n/a" for None, NaN and infinities."""
    return "n/a" if value is None or not math.isfinite(value) else f"{value:.{digits}f}"


def is_missing(value: object) -> bool:
    """Whether a value is None or NaN."""
    return value is None or (isinstance(value, float) and math.isnan(value))


def percent(value: float | None) -> str:
    """A rate (0 to 1) in percent with one decimal, without the % sign; "n/a" as in `number`."""
    return number(None if value is None else 100 * value, 1)


def p_value(value: float | None) -> str:
    """A p-value with two significant digits; "n/a" for None and NaN."""
    return "n/a" if value is None or math.isnan(value) else f"{value:.2g}"


def kind(verdict: str | None) -> str:
    """The CSS class of a verdict, such as "no-leak-found"; "leak" also for reversed scores, "" for None."""
    return (verdict or "").partition(",")[0].replace(" ", "-")


def epsilon(value: float | str | None) -> str:
    """An epsilon with three significant digits; ∞ for infinity, also as the string "inf"; "n/a" for None and NaN."""
    if value is None:
        return "n/a"
    value = float(value)
    return "n/a" if math.isnan(value) else "∞" if math.isinf(value) else f"{value:.3g}"


def short(value: float | None) -> str:
    """A number with three significant digits and commas between thousands; ∞, or "n/a" for None and NaN."""
    if value is None or not math.isfinite(value):
        return "n/a" if value is None or math.isnan(value) else "∞"
    return f"{float(f'{value:.3g}'):,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def duration(seconds: float) -> str:
    """A time span in the largest units: "43 s", "5 min 12 s", "2 h 10 min"."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    return f"{whole // 60} min {whole % 60} s" if whole < 3600 else f"{whole // 3600} h {whole % 3600 // 60} min"


def signed(value: float, digits: int = 1) -> str:
    """A difference with its sign (− is U+2212) and `digits` decimals."""
    return f"{value:+z.{digits}f}".replace("-", "−")


def tau(value: float) -> str:
    """A rank correlation with two decimals."""
    return f"{value:.2f}".replace("-0.00", "0.00").replace("-", "−")


def join_words(words: Sequence[str]) -> str:
    """The words joined as "a, b and c"."""
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
