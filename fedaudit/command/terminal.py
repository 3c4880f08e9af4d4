"""The findings as tables in the terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import mean, stdev
from typing import TYPE_CHECKING, Any

from audits.findings import THESE
from reports.formats import short
from reports.measured import contradictions
from reports.measured import rows as measured_rows

if TYPE_CHECKING:
    from rich.console import Console

Finding = dict[str, Any]
FEW = 3  # attacks whose rows fit beside each other
SPLITS = ("local", "neighbour", "overall", "own_test")


def show(findings: Sequence[Finding], attack: str | None) -> None:
    """Print utility and privacy of prompts where there are any, what was found about membership where something was
    attacked, and what canaries show of epsilon where there are any."""
    from rich.console import Console

    console = Console()
    if not console.is_terminal:  # nobody can widen that window: never cut a number
        console = Console(width=200)
    epsilons = [f for f in findings if f["metric"] == "epsilon"]
    if accuracies := [f for f in findings if f["metric"].startswith("accuracy/")]:
        _show_prompts(console, accuracies, epsilons)
    else:
        _show_epsilons(console, epsilons)
    if rows := [f for f in findings if f["metric"] == "auroc"]:
        _show_membership(console, rows, attack)
    if bounds := measured_rows(findings):
        _show_measured(console, bounds)
        for sentence in contradictions(findings):
            console.print(sentence, style="bold")


def _show_prompts(console: Console, accuracies: Sequence[Finding], epsilons: Sequence[Finding]) -> None:
    """A row per method and epsilon: accuracies, the noise beside them, and claimed and provable epsilon for a client's
    own record."""
    from rich import box
    from rich.table import Table

    first, seeds = accuracies[0], sorted({f["seed"] for f in accuracies})
    spread = (
        f"± sd over {len(seeds)} seeds"
        if len(seeds) > 1
        else f"[{100 * first['confidence']:g} %] over clients, seed {seeds[0]}"
    )
    splits = [split for split in SPLITS if any(f["metric"] == f"accuracy/{split}" for f in accuracies)]
    table = Table(
        box=box.SIMPLE_HEAD,
        padding=(0, 1),
        pad_edge=False,
        title=f"accuracy in percent, mean of the last {first['rounds']} rounds {spread}",
    )
    table.add_column("method", min_width=8, overflow="fold")
    widths = {"ε": 4, **dict.fromkeys(splits, 6), "noise/ signal": 6, "claimed": 6, "proven": 6, "server": 6}
    for name, least in widths.items():  # a narrow window breaks lines, it cuts no number
        table.add_column(name.replace("_", " "), justify="right", overflow="fold", min_width=least)
    for label in dict.fromkeys(f["method"] for f in accuracies):
        mine = [f for f in accuracies if f["method"] == label]
        ratios = [float(f["noise_ratio"]) for f in mine if f["noise_ratio"] is not None]
        own = [f for f in epsilons if f["method"] == label and f["whose"] == "own"]
        user, server = ([f for f in own if f["threat_model"] == name] for name in ("prompt-user", "server"))
        claims = _numbers(user)
        against = "same" if _numbers(server) == claims else _numbers(server)[1]
        name = ":".join(part for part in label.split(":") if not part.startswith("epsilon="))
        noise = short(max(ratios)) if ratios else "none"
        scores = [_score([f for f in mine if f["metric"] == f"accuracy/{split}"]) for split in splits]
        table.add_row(name, _epsilon(mine[0]["epsilon"]), *scores, noise, claims[0], claims[1], against)
    console.print(table)
    console.print(
        "noise/signal: longest noise over its signal in a step; proven: as it ran, for a client's own record, against "
        "a user of its prompt and "
        "against the server; the report has the other readings"
    )


def _show_epsilons(console: Console, epsilons: Sequence[Finding]) -> None:
    """A line per method: claimed and provable epsilon for a client's own record, by adversary, and what they rest on;
    of several seeds the largest."""
    for label in dict.fromkeys(f["method"] for f in epsilons):
        own = [f for f in epsilons if f["method"] == label and f["whose"] == "own"]
        against: dict[tuple[str, str, str], list[str]] = {}
        for threat in dict.fromkeys(f["threat_model"] for f in own):
            mine = [f for f in own if f["threat_model"] == threat]
            why = max(mine, key=lambda f: float(f["provable"]))["why"]
            against.setdefault((*_numbers(mine), why), []).append(threat)
        for (claimed, proven, why), threats in against.items():
            console.print(f"{label}, {', '.join(threats)}: ε {claimed} claimed, {proven} proven ({why})")


def _score(found: Sequence[Finding]) -> str:
    """Of one method and split, with the spread over seeds or the interval over clients."""
    if not found:
        return "n/a"
    values = [f["value"] for f in found]
    if len(values) > 1:
        return f"{mean(values):.1f} ± {stdev(values):.1f}"
    low, high = found[0]["low"], found[0]["high"]
    return f"{values[0]:.1f}" if low is None else f"{values[0]:.1f} [{low:.1f}, {high:.1f}]"


def _numbers(found: Sequence[Finding]) -> tuple[str, str]:
    """Claimed and provable; of several seeds the largest that is provable."""
    if not found:
        return "n/a", "n/a"
    worst = max(found, key=lambda f: float(f["provable"]))
    claimed = _epsilon(worst["claimed"])
    return claimed, "∞" if math.isinf(float(worst["provable"])) else _epsilon(worst["provable"])


def _epsilon(value: float | str) -> str:
    return "none" if math.isinf(float(value)) else f"{float(value):.3g}"


def _show_membership(console: Console, rows: Sequence[Finding], attack: str | None) -> None:
    """The AUROC rows against held-out records and canaries, with their verdicts; of many attacks only the best,
    corrected for picking it."""
    from rich import box
    from rich.table import Table

    seeds = sorted({f["seed"] for f in rows})
    several = len({f["method"] for f in rows}) > 1
    shown = _shown([f for f in rows if f["seed"] == seeds[0]])
    title = f"{attack}: members against held-out records of the same clients, seed {seeds[0]}"
    if best := max((f["best_of"] or 0 for f in shown), default=0):
        title = f"the best of up to {best} attacks, its interval corrected for picking it; {title}"
    table = Table(box=box.SIMPLE_HEAD, title=title)
    for name in (["method"] if several else []) + ["adversary", "model", "members", "score"]:
        table.add_column(name)
    for name in (f"AUROC [{100 * rows[0]['confidence']:g} %]", "base model", "blind", "p", "verdict"):
        table.add_column(name, justify="left" if name == "verdict" else "right", no_wrap=True)
    for f in shown:
        cells = [f["method"]] if several else []
        cells += [f["threat_model"], f["way"], f["population"], f["signal"]]
        star = " *" if THESE in f["interval"] else ""
        cells += [f["status"] if f["value"] is None else _interval(f["value"], f["low"], f["high"]) + star]
        p = "n/a" if f["p_adjusted"] is None else f"{f['p_adjusted']:.2g}"
        cells += [_number(f["base_value"]), _number(f["blind_value"]), p, f["verdict"] or "n/a"]
        table.add_row(*cells)
    console.print(table)
    for line in _remarks(shown):
        console.print(line)
    if len(seeds) > 1:
        _spread(console, rows, shown)


def _show_measured(console: Console, bounds: Sequence[dict[str, Any]]) -> None:
    """The lower bounds on epsilon from canaries, beside what is proven and claimed, for every run and adversary."""
    from rich import box
    from rich.table import Table

    first = bounds[0]["any"]
    several = len({row["any"]["method"] for row in bounds}) > 1
    seeds = len({row["any"]["seed"] for row in bounds}) > 1
    rests = f"{100 * first['confidence']:g} % each, delta {first['delta']:g}"
    table = Table(box=box.SIMPLE_HEAD, title=f"measured epsilon, at least (of at most): {rests}")
    for name in (["method"] if several else []) + (["seed"] if seeds else []) + ["adversary", "score"]:
        table.add_column(name)
    for name in ("canaries", "guesses right", "any mechanism", "if Gaussian", "proven", "claimed"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in bounds:
        m = row["any"]
        cells = ([m["method"]] if several else []) + ([str(m["seed"])] if seeds else [])
        cells += [m["threat_model"], m["signal"], str(m["canaries"]), f"{m['correct']} of {m['guesses']}"]
        cells += [_at_least(m), _at_least(row["gaussian"])]
        cells += ["∞" if math.isinf(float(m["provable"])) else _epsilon(m["provable"]), _epsilon(m["claimed"])]
        table.add_row(*cells)
    console.print(table)


def _at_least(bound: Finding | None) -> str:
    return "n/a" if bound is None else f"{bound['value']:.3g} ({bound['ceiling']:.3g})"


def _remarks(shown: Sequence[Finding]) -> list[str]:
    """What must be known of the rows: what p is corrected for, what intervals are about, and controls that are off."""
    found = []
    if any(f["p_adjusted"] is not None for f in shown):
        found.append("p: exact, by the coins, and corrected for all rows of its family in this report")
    if any(THESE in f["interval"] for f in shown):
        found.append(f"* for {THESE}, of which there are too few to speak of others")
    return found + list(dict.fromkeys(f["alarm"] for f in shown if f["alarm"]))


def _shown(rows: Sequence[Finding]) -> list[Finding]:
    """Headline rows of a few attacks, or of many the best one of each place."""
    coin = [f for f in rows if f["nonmembers"] in ("held-out", "left-out canaries")]
    best = [f for f in coin if f["best_of"]]
    return best if any(f["best_of"] > FEW for f in best) else [f for f in coin if f["headline"]]


def _spread(console: Console, rows: Sequence[Finding], shown: Sequence[Finding]) -> None:
    """Mean and standard deviation over seeds. The best attack may be another one in each."""
    place = ("method", "threat_model", "way", "population", "nonmembers")
    for f in shown:
        kind = ("best_of",) if f["best_of"] else ("signal", "best_of")
        same = [g["value"] for g in rows if all(g[k] == f[k] for k in (*place, *kind)) and g["value"] is not None]
        if len(same) > 1:
            label = " ".join(f[k] for k in place[:4]) + (" best" if f["best_of"] else f" {f['signal']}")
            console.print(f"{label}: {mean(same):.3f} over {len(same)} seeds, sd {stdev(same):.3f}")


def _interval(value: float, low: float, high: float) -> str:
    return f"{value:.3f} [{low:.3f}, {high:.3f}]"


def _number(x: float | None) -> str:
    return "n/a" if x is None else f"{x:.3f}"
