"""The findings as tables in the terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import mean, stdev
from typing import TYPE_CHECKING, Any

from audits.findings import THESE
from audits.verdicts import SHARES
from fedaudit.command.window import WindowColumn, fits, open_console, print_table
from fedaudit.terms.nonmembers import BY_COIN
from fedaudit.terms.splits import SPLITS
from fedaudit.terms.threat_models import PROMPT_USER, SERVER
from fedaudit.terms.verdicts import NO_LEAK_FOUND
from reports.formats import number, p_value, short
from reports.measured import contradictions
from reports.measured import rows as measured_rows

if TYPE_CHECKING:
    from rich.console import Console

Finding = dict[str, Any]
FEW = 3  # attacks whose rows fit beside each other
WIDE = 120  # columns of a window in which controls stand beside the verdicts
SCORE, VERDICT = WindowColumn("score", 12), WindowColumn("verdict", len(NO_LEAK_FOUND))


def show(findings: Sequence[Finding], attack: str | None, console: Console | None = None) -> None:
    """Print utility and privacy of prompts where there are any, what was found about membership where something was
    attacked, and what canaries show of epsilon where there are any."""
    console = console or open_console()
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
    """A row per method and epsilon: accuracies, the noise, and claimed and provable epsilon for a client's own record;
    the latter in a table of their own where the window is too narrow for one."""
    first, seeds = accuracies[0], sorted({f["seed"] for f in accuracies})
    spread = (
        f"± sd over {len(seeds)} seeds"
        if len(seeds) > 1
        else f"[{100 * first['confidence']:g} %] over clients, seed {seeds[0]}"
    )
    title = f"accuracy in percent, mean of the last {first['rounds']} rounds {spread}"
    splits = [split for split in SPLITS if any(f["metric"] == split.metric for f in accuracies)]
    scores = [WindowColumn(split.replace("_", " ")) for split in splits]
    privacy = [WindowColumn(name) for name in ("noise/signal", "claimed", "proven", "server")]
    level = WindowColumn("ε", len("none"))
    rows: dict[str, list[tuple[str, list[str], list[str]]]] = {}
    for label in dict.fromkeys(f["method"] for f in accuracies):
        name = ":".join(part for part in label.split(":") if not part.startswith("epsilon="))
        own = [f for f in accuracies if f["method"] == label]
        values = [_score([f for f in own if f["metric"] == split.metric]) for split in splits]
        rows.setdefault(name, []).append((_epsilon(own[0]["epsilon"]), values, _privacy(label, own, epsilons)))
    whole = {name: [[claim, *values, *proven] for claim, values, proven in some] for name, some in rows.items()}
    if fits([level, *scores, *privacy], whole, console.width):
        print_table(console, title, [level, *scores, *privacy], whole)
    else:
        parts = {name: [[claim, *values] for claim, values, _ in some] for name, some in rows.items()}
        print_table(console, title, [level, *scores], parts)
        parts = {name: [[claim, *proven] for claim, _, proven in some] for name, some in rows.items()}
        print_table(console, "noise, and epsilon for a client's own record", [level, *privacy], parts)
    console.print(
        "noise/signal: longest noise over its signal in a step; proven: as it ran, for a client's own record, against "
        "a user of its prompt and against the server; the report has the other readings"
    )


def _privacy(label: str, accuracies: Sequence[Finding], epsilons: Sequence[Finding]) -> list[str]:
    """Of one method the largest noise, claimed and proven epsilon, and what is proven against the server."""
    ratios = [float(f["noise_ratio"]) for f in accuracies if f["noise_ratio"] is not None]
    own = [f for f in epsilons if f["method"] == label and f["whose"] == "own"]
    user, server = ([f for f in own if f["threat_model"] == name] for name in (PROMPT_USER, SERVER))
    claimed, proven = _numbers(user)
    against = "same" if _numbers(server) == (claimed, proven) else _numbers(server)[1]
    return [short(max(ratios)) if ratios else "none", claimed, proven, against]


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
    return claimed, _proven(worst["provable"])


def _proven(value: float | str) -> str:
    return "∞" if math.isinf(float(value)) else _epsilon(value)


def _epsilon(value: float | str) -> str:
    return "none" if math.isinf(float(value)) else f"{float(value):.3g}"


def _show_membership(console: Console, rows: Sequence[Finding], attack: str | None) -> None:
    """The AUROC rows against held-out records and canaries, with their verdicts; of many attacks only the best,
    corrected for picking it."""
    seeds = sorted({f["seed"] for f in rows})
    several = len({f["method"] for f in rows}) > 1
    shown = _shown([f for f in rows if f["seed"] == seeds[0]])
    title = f"{attack}: members against held-out records of the same clients, seed {seeds[0]}"
    if best := max((f["best_of"] or 0 for f in shown), default=0):
        title = f"the best of up to {best} attacks, its interval corrected for picking it; {title}"
    few = any(THESE in f["interval"] for f in shown)
    tested = any(f["p_adjusted"] is not None for f in shown)
    columns = [SCORE, WindowColumn(f"AUROC [{100 * rows[0]['confidence']:g} %]")]
    columns += [WindowColumn("p alone"), WindowColumn("among (n)")] if tested else []
    columns += [VERDICT, *([WindowColumn("base model"), WindowColumn("blind")] if console.width >= WIDE else [])]
    groups: dict[str, list[list[str]]] = {}
    for f in shown:
        place = f"{f['threat_model']}: model {f['way']}, {f['population']}"
        cells = [
            f["signal"],
            _auroc(f) + (_star(f) if few else ""),
            *(_p_values(f) if tested else []),
            f["verdict"] or "n/a",
        ]
        cells += [number(f["base_value"]), number(f["blind_value"])] if console.width >= WIDE else []
        groups.setdefault(f"{f['method']} · {place}" if several else place, []).append(cells)
    print_table(console, title, columns, groups)
    for line in _remarks(shown):
        console.print(line)
    if console.width < WIDE:
        console.print(f"controls (base model, blind): in a window of {WIDE} columns, and in the report")
    if len(seeds) > 1:
        _spread(console, rows, shown)


def _show_measured(console: Console, bounds: Sequence[dict[str, Any]]) -> None:
    """The lower bounds on epsilon from canaries, beside what is proven and claimed, for every run and adversary."""
    first = bounds[0]["any"]
    methods, seeds = (len({row["any"][name] for row in bounds}) > 1 for name in ("method", "seed"))
    heads = ("canaries", "guesses right", "any mechanism", "if Gaussian", "proven", "claimed")
    groups: dict[str, list[list[str]]] = {}
    for row in bounds:
        m = row["any"]
        run = [*([m["method"]] if methods else []), *([f"seed {m['seed']}"] if seeds else [])]
        cells = [m["signal"], str(m["canaries"]), f"{m['correct']} of {m['guesses']}", _at_least(m)]
        cells += [_at_least(row["gaussian"]), _proven(m["provable"]), _epsilon(m["claimed"])]
        groups.setdefault(" · ".join([*run, m["threat_model"]]), []).append(cells)
    rests = f"{100 * first['confidence']:g} % each, delta {first['delta']:g}"
    title = f"measured epsilon, at least (of at most): {rests}"
    print_table(console, title, [SCORE, *map(WindowColumn, heads)], groups)


def _at_least(bound: Finding | None) -> str:
    return "n/a" if bound is None else f"{bound['value']:.3g} ({bound['ceiling']:.3g})"


def _remarks(shown: Sequence[Finding]) -> list[str]:
    """What must be known of the rows: what p is corrected for, what intervals are about, and controls that are off."""
    remarks = []
    sizes = {f["family"]: f["family_n"] for f in shown if f["p_adjusted"] is not None}
    if sizes:
        families = " or ".join(f"{sizes[name]:,} {name}" for name in SHARES if name in sizes)
        remarks.append(
            f"p: exact, by the coins; alone, and among the {families} scores of this report, by which the verdict goes"
            " (primary ones were named beforehand)"
        )
    if any(THESE in f["interval"] for f in shown):
        remarks.append(f"* for {THESE}, of which there are too few to speak of others")
    return remarks + list(dict.fromkeys(f["alarm"] for f in shown if f["alarm"]))


def _shown(rows: Sequence[Finding]) -> list[Finding]:
    """The rows of headline scores of a few attacks, or of many the best one of each place."""
    coin = [f for f in rows if f["nonmembers"] in BY_COIN]
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


def _auroc(f: Finding) -> str:
    """With its interval, or why there is none."""
    return f["status"] if f["value"] is None else f"{f['value']:.3f} [{f['low']:.3f}, {f['high']:.3f}]"


def _star(f: Finding) -> str:
    """Where an interval is about these clients only."""
    return " *" if THESE in f["interval"] else "  "


def _p_values(f: Finding) -> list[str]:
    """The p-value of a score alone, and corrected, with the number of scores that it is corrected for."""
    if f["p_adjusted"] is None:
        return ["n/a", "n/a"]
    return [p_value(f["p"]), f"{p_value(f['p_adjusted'])} ({f['family_n']:,})"]
