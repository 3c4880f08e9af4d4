"""Prints findings as tables in the terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import mean, stdev
from typing import TYPE_CHECKING, Any

from fedaudit.attacks.score_names import signal_name
from fedaudit.audits.findings import THESE
from fedaudit.audits.verdicts import FEW_NAMED, SHARES, few_members
from fedaudit.command.window import WindowColumn, fits, open_console, print_table
from fedaudit.reports.doubts import verdict_word
from fedaudit.reports.formats import epsilon, number, p_value, short
from fedaudit.reports.measured import contradictions
from fedaudit.reports.measured import rows as measured_rows
from fedaudit.terms.nonmembers import BY_COIN
from fedaudit.terms.splits import SPLITS
from fedaudit.terms.threat_models import PROMPT_USER, SERVER
from fedaudit.terms.verdicts import NO_LEAK_FOUND

if TYPE_CHECKING:
    from rich.console import Console

Finding = dict[str, Any]
FEW = 3  # attacks: with more, only the best one is printed
WIDE = 120  # columns of the terminal: a narrower one leaves out the controls
SCORE, VERDICT = WindowColumn("score", 12), WindowColumn("verdict", len(NO_LEAK_FOUND))


def show(findings: Sequence[Finding], attack: str | None, console: Console | None = None) -> None:
    """Print what the findings contain: accuracies and epsilons, attacks' AUROCs, and epsilons measured by canaries.
    `attack` is the value of --attack, for the title."""
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
    """Print a row per method and epsilon: accuracies, noise, and claimed and proven epsilon for a client's own record.
    In a narrow terminal noise and epsilon get a table of their own."""
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
        of_label = [f for f in accuracies if f["method"] == label]
        values = [_score([f for f in of_label if f["metric"] == split.metric]) for split in splits]
        privacies = _privacy(label, of_label, epsilons)
        rows.setdefault(name, []).append((_epsilon(of_label[0]["epsilon"]), values, privacies))
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
    """Texts for the cells of a method: largest noise/signal ("none" without noise), claimed and proven epsilon, and
    epsilon proven against the server ("same" if claim and proof are those against a user)."""
    ratios = [float(f["noise_ratio"]) for f in accuracies if f["noise_ratio"] is not None]
    own_records = [f for f in epsilons if f["method"] == label and f["whose"] == "own"]
    user, server = ([f for f in own_records if f["threat_model"] == name] for name in (PROMPT_USER, SERVER))
    claimed, proven = _numbers(user)
    against = "same" if _numbers(server) == (claimed, proven) else _numbers(server)[1]
    return [short(max(ratios)) if ratios else "none", claimed, proven, against]


def _show_epsilons(console: Console, epsilons: Sequence[Finding]) -> None:
    """Print a line per method and adversary: claimed and proven epsilon for a client's own record, and the reason. Of
    several seeds the largest proven epsilon counts."""
    for label in dict.fromkeys(f["method"] for f in epsilons):
        own_records = [f for f in epsilons if f["method"] == label and f["whose"] == "own"]
        against: dict[tuple[str, str, str], list[str]] = {}
        for threat in dict.fromkeys(f["threat_model"] for f in own_records):
            of_threat = [f for f in own_records if f["threat_model"] == threat]
            why = max(of_threat, key=lambda f: float(f["provable"]))["why"]
            against.setdefault((*_numbers(of_threat), why), []).append(threat)
        for (claimed, proven, why), threats in against.items():
            console.print(f"{label}, {', '.join(threats)}: ε {claimed} claimed, {proven} proven ({why})")


def _score(findings: Sequence[Finding]) -> str:
    """The accuracy of one method and split as text: mean ± sd over seeds, or of one seed with the interval over
    clients, if there is one; "n/a" without findings."""
    if not findings:
        return "n/a"
    values = [f["value"] for f in findings]
    if len(values) > 1:
        return f"{mean(values):.1f} ± {stdev(values):.1f}"
    low, high = findings[0]["low"], findings[0]["high"]
    return f"{values[0]:.1f}" if low is None else f"{values[0]:.1f} [{low:.1f}, {high:.1f}]"


def _numbers(findings: Sequence[Finding]) -> tuple[str, str]:
    """Claimed and proven epsilon, as texts, of the seed with the largest proven one; "n/a" without findings."""
    if not findings:
        return "n/a", "n/a"
    worst = max(findings, key=lambda f: float(f["provable"]))
    return _epsilon(worst["claimed"]), epsilon(worst["provable"])


def _epsilon(value: float | str) -> str:
    return "none" if math.isinf(float(value)) else f"{float(value):.3g}"


def _show_membership(console: Console, rows: Sequence[Finding], attack: str | None) -> None:
    """Print the first seed's AUROC rows against held-out records and canaries with their verdicts, and the mean over
    seeds. Of more than FEW attacks only the best, whose interval is corrected for picking it."""
    seeds = sorted({f["seed"] for f in rows})
    several = len({f["method"] for f in rows}) > 1
    selected = _headlines([f for f in rows if f["seed"] == seeds[0]])
    title = f"{attack}: members against held-out records of the same clients, seed {seeds[0]}"
    if best := max((f["best_of"] or 0 for f in selected), default=0):
        title = f"the best of up to {best} attacks, its interval corrected for picking it; {title}"
    few = any(THESE in f["interval"] for f in selected)
    tested = any(f["p_adjusted"] is not None for f in selected)
    columns = [SCORE, WindowColumn(f"AUROC [{100 * rows[0]['confidence']:g} %]")]
    columns += [WindowColumn("p alone"), WindowColumn("among (n)")] if tested else []
    columns += [VERDICT, *([WindowColumn("base model"), WindowColumn("blind")] if console.width >= WIDE else [])]
    groups: dict[str, list[list[str]]] = {}
    for f in selected:
        setting = f"{f['threat_model']}: model {f['way']}, {f['population']}"
        cells = [
            signal_name(f["signal"]),
            _auroc(f) + (_star(f) if few else ""),
            *(_p_values(f) if tested else []),
            verdict_word(f) or "n/a",
        ]
        cells += [number(f["base_value"]), number(f["blind_value"])] if console.width >= WIDE else []
        groups.setdefault(f"{f['method']} · {setting}" if several else setting, []).append(cells)
    print_table(console, title, columns, groups)
    for line in _remarks(selected):
        console.print(line)
    if console.width < WIDE:
        console.print(f"controls (base model, blind): in a window of {WIDE} columns, and in the report")
    if len(seeds) > 1:
        _show_means(console, rows, selected)


def _show_measured(console: Console, bounds: Sequence[dict[str, Any]]) -> None:
    """Print bounds (`reports.measured.rows`, not empty): by run, adversary and number of canaries the lower bounds on
    epsilon, for any mechanism, for a Gaussian one and from messages, with proven and claimed epsilon."""
    first = bounds[0]["any"]
    methods, seeds = (len({row["any"][name] for row in bounds}) > 1 for name in ("method", "seed"))
    from_messages = any(row["messages"] is not None for row in bounds)
    heads = ["guesses right", "any mechanism", "if Gaussian", *["messages"] * from_messages]
    heads += ["proven", "claimed"]
    groups: dict[str, list[list[str]]] = {}
    for row in bounds:
        m = row["any"]
        run = [*([m["method"]] if methods else []), *([f"seed {m['seed']}"] if seeds else [])]
        cells = [signal_name(m["signal"]), f"{m['correct']} of {m['guesses']}", _at_least(m)]
        of_messages = "n/a" if row["messages"] is None else f"{row['messages']['value']:.3g}"
        cells += [
            _at_least(row["gaussian"]),
            *[of_messages] * from_messages,
            epsilon(m["provable"]),
            _epsilon(m["claimed"]),
        ]
        groups.setdefault(" · ".join([*run, m["threat_model"], f"{m['canaries']} canaries"]), []).append(cells)
    rests = f"{100 * first['confidence']:g} % each, delta {first['delta']:g}"
    title = f"measured epsilon, at least (of at most): {rests}"
    print_table(console, title, [SCORE, *map(WindowColumn, heads)], groups)


def _at_least(bound: Finding | None) -> str:
    return "n/a" if bound is None else f"{bound['value']:.3g} ({bound['ceiling']:.3g})"


def _remarks(selected: Sequence[Finding]) -> list[str]:
    """Notes below the table, a line each: what p is corrected for, intervals of few clients, and failed controls."""
    remarks = []
    sizes = {f["family"]: f["family_n"] for f in selected if f["p_adjusted"] is not None}
    if sizes:
        families = " or ".join(f"{sizes[name]:,} {name}" for name in SHARES if name in sizes)
        remarks.append(
            f"p: exact, by the coins; alone, and among the {families} scores of this report, by which the verdict goes"
            " (named and primary ones were chosen beforehand)"
        )
    if any(few_members(f) for f in selected):
        remarks.append(FEW_NAMED)
    if any(THESE in f["interval"] for f in selected):
        remarks.append(f"* for {THESE}, of which there are too few to speak of others")
    return remarks + list(dict.fromkeys(f["alarm"] for f in selected if f["alarm"]))


def _headlines(rows: Sequence[Finding]) -> list[Finding]:
    """The AUROC rows to print, only against non-members that a coin chose: headline scores, or if these come from more
    than FEW attacks, the best attack's only."""
    coin = [f for f in rows if f["nonmembers"] in BY_COIN]
    best = [f for f in coin if f["best_of"]]
    return best if any(f["best_of"] > FEW for f in best) else [f for f in coin if f["headline"]]


def _show_means(console: Console, rows: Sequence[Finding], selected: Sequence[Finding]) -> None:
    """Print mean and standard deviation over seeds; the best attack may differ between seeds."""
    setting = ("method", "threat_model", "way", "population", "nonmembers")
    for f in selected:
        kind = ("best_of",) if f["best_of"] else ("signal", "best_of")
        same = [g["value"] for g in rows if all(g[k] == f[k] for k in (*setting, *kind)) and g["value"] is not None]
        if len(same) > 1:
            label = " ".join(f[k] for k in setting[:4]) + (" best" if f["best_of"] else f" {signal_name(f['signal'])}")
            console.print(f"{label}: {mean(same):.3f} over {len(same)} seeds, sd {stdev(same):.3f}")


def _auroc(f: Finding) -> str:
    """The AUROC with its interval, or why there is none."""
    return f["status"] if f["value"] is None else f"{f['value']:.3f} [{f['low']:.3f}, {f['high']:.3f}]"


def _star(f: Finding) -> str:
    """The mark of intervals that hold for these clients only."""
    return " *" if THESE in f["interval"] else "  "


def _p_values(f: Finding) -> list[str]:
    """Two cells: the p-value, and "corrected p-value (number of scores it is corrected for)"; "n/a" twice without a
    test."""
    if f["p_adjusted"] is None:
        return ["n/a", "n/a"]
    return [p_value(f["p"]), f"{p_value(f['p_adjusted'])} ({f['family_n']:,})"]
