"""What the command prints of made-up findings in windows of several widths: kept as text in tests/windows/.

`python -m tests.terminal_windows` writes them anew; look at them, and at their difference, before you commit.
"""

import io
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from fedaudit.audits.findings import (
    MEASURED,
    MEASURED_GAUSSIAN,
    MEASURED_SCORES,
    THESE,
    WHOLE_RANKING,
    Finding,
    MeasuredEpsilon,
)
from fedaudit.command.terminal import show
from fedaudit.terms.verdicts import LEAK, NO_LEAK_FOUND, REVERSED
from tests.prompt_evidence import prompt_evidence

HERE = Path(__file__).parent / "windows"
WIDTHS = (80, 100, 120)
INF = float("inf")
SIZES = {"primary": 12, "secondary": 1260}

Said = tuple[list[dict[str, Any]], str | None]  # findings, and the attack


def row(
    place: str, signal: str, value: float | None, p: float | None, *, method: str = "fedrand", **more: Any
) -> Finding:
    """An AUROC of a place "threat model, way, population"; where coins decided with p-values, primary if not said."""
    threat_model, way, population = place.split(", ")
    reach = 0.0612
    ends = {"low": None, "high": None} if value is None else {"low": value - reach, "high": min(1.0, value + reach)}
    controls = {"base_value": 0.431, "blind_value": 0.492}
    tests: dict[str, Any] = {}
    if p is not None and value is not None:
        family = more.pop("family", "primary")
        adjusted = min(1.0, p * (1.25 if family == "primary" else 790))
        verdict = NO_LEAK_FOUND if adjusted > 0.05 else LEAK if value > 0.5 else REVERSED
        tests = {
            "z": 2.0, "t": 2.0, "part": WHOLE_RANKING, "p": p, "family": family, "family_n": SIZES[family],
            "p_adjusted": adjusted, "verdict": verdict,
        }  # fmt: skip
    return Finding(**{
        "run": method, "method": method, "task": "t", "seed": 0, "attack": "maxrenyi", "threat_model": threat_model,
        "way": way, "population": population, "nonmembers": "held-out", "signal": signal, "headline": True,
        "metric": "auroc", "value": value, "confidence": 0.95, "members": 28, "nonmembers_n": 30, "clients": 4,
        "interval": "clustered DeLong", **ends, **controls, **tests, **more,
    })  # fmt: skip


def lora() -> Said:
    """One method: a score reversed, two scores with long names, one that is not measurable, intervals of few clients."""
    few = f"DeLong, normal, {THESE}"
    alarm = "Control off: check the pipeline; the same attack on a model that learnt none of them has AUROC 0.912 (corrected p 0.001)."
    last, of_last = "released-model, final, last-round members", {"family": "secondary", "interval": few}
    rows = [
        row("released-model, final, all members", "renyi/2/10/caption", 0.631, 0.46),
        row("released-model, final, all members", "loss/base", 0.737, 0.0005),
        row(last, "renyi/2/10/caption", 0.529, 0.94, **of_last), row(last, "loss/base", 0.786, 0.001, **of_last),
        row("server, server-fill, own members", "renyi/2/10/caption", None, None, status="not measurable (1)"),
        row("server, server-fill, own members", "modrenyi/inf/instruction", 0.259, 0.0005, base_value=None),
        row("owner, true state, own members", "renyi/2/10/caption", 0.642, 0.09, alarm=alarm),
        row("owner, true state, own members", "loss/base", 1.0, 0.0005, family="secondary"),
    ]  # fmt: skip
    return [asdict(f) for f in rows], "maxrenyi"


def elsewhere() -> Said:
    """A training done elsewhere: no coin of ours, verdicts by controls."""
    words = ("confounded", "inconclusive", "no leak found", LEAK, REVERSED)
    places = ("released-model, final, all members", "server, literal, own members", "owner, true state, own members")
    rows = [
        row(place, signal, 0.3 + 0.1 * i, None, verdict=words[(i + j) % 5], method="mine-from-elsewhere")
        for i, place in enumerate(places)
        for j, signal in enumerate(("loss/base", "quantile/difficulty"))
    ]
    return [asdict(f) for f in rows], "loss,quantile"


def many() -> Said:
    """Several methods under many attacks, the best one of each place, over two seeds."""
    rows = [
        row(place, signal, 0.55 + 0.02 * i + 0.01 * seed, 0.02 / (1 + i), method=method, seed=seed, best_of=17, headline=False)
        for seed in (0, 1)
        for method in ("dpfpl:rank=8:residual=true:epsilon=0.1", "promptfl:epsilon=none")
        for i, (place, signal) in enumerate({
            "prompt-user, prompt, own members": "shadow", "released-model, final, members that trained": "trajectory/offline",
            "clustering-server, estimated, members given to others": "outputfree/projection",
            "owner, true state, canaries": "lira/online",
        }.items())
    ]  # fmt: skip
    return [asdict(f) for f in rows], "all"


def prompts() -> Said:
    """Accuracies and noise of several methods and budgets, with canaries of two of them."""
    levels = (("promptfl", INF), ("promptfl", 0.1), ("dpfpl", INF), ("dpfpl", 0.01))
    found = [f for method, level in levels for f in prompt_evidence(method, level).findings]
    return [*found, *canaries("promptfl:epsilon=0.1"), *canaries("dpfpl:rank=8:residual=true:epsilon=0.01")], None


def own_test_sets() -> Said:
    """Four splits, one of which a client gets right altogether."""
    found = prompt_evidence("fedpgp", 0.4).findings
    overall = next(f for f in found if f["metric"] == "accuracy/overall")
    return [*found, overall | {"metric": "accuracy/own_test", "value": 100.0, "low": 100.0, "high": 100.0}], None


def canaries(method: str) -> list[dict[str, Any]]:
    """Bounds on epsilon against two adversaries."""
    bound = MeasuredEpsilon(
        run=method, method=method, task="t", seed=0, metric=MEASURED, threat_model="prompt-user", way="prompt", attack="outputfree",
        signal="outputfree/projection", mechanism="", value=1.8234, confidence=0.95, ceiling=1.8234, delta=1e-5, clients=4,
        canaries=300, inserted=150, guesses=150, correct=149, claimed=0.1, provable=0.0898, p_claimed=1.0, p_provable=1.0,
        sentence="At least 1.82.",
    )  # fmt: skip
    gaussian = replace(bound, metric=MEASURED_GAUSSIAN, value=3.24, ceiling=3.24, mechanism="Gaussian")
    nothing: dict[str, Any] = {"claimed": "inf", "provable": "inf", "p_claimed": None, "p_provable": None}
    server = replace(bound, threat_model="clustering-server", signal="loss", **nothing)
    return [asdict(f) for f in (bound, gaussian, server)]


def messages() -> Said:
    """Bounds from messages beside long ones from guesses."""
    found = canaries("dpfpl:epsilon=8")
    wide = {"value": 10.234, "ceiling": 10.234, "guesses": 1500, "correct": 1499, "claimed": 8.0, "provable": 7.9712}
    from_messages = {"metric": MEASURED_SCORES, "mechanism": "Gaussian", "value": 6.7312}
    return [*(f | wide for f in found), found[0] | wide | from_messages | dict.fromkeys(("guesses", "correct"))], None


MADE: tuple[Callable[[], Said], ...] = (lora, elsewhere, many, messages, prompts, own_test_sets)
CASES = {made.__name__: made for made in MADE}


def printed(case: str, width: int) -> str:
    """What the command prints of a case in a window."""
    findings, attack = CASES[case]()
    out = io.StringIO()
    show(findings, attack, Console(width=width, file=out, markup=False, highlight=False))
    return "".join(f"{line.rstrip()}\n" for line in out.getvalue().splitlines())


def kept(case: str, width: int) -> Path:
    """The file that holds it."""
    return HERE / f"{case}-{width}.txt"


if __name__ == "__main__":
    for case in CASES:
        for width in WIDTHS:
            kept(case, width).write_text(printed(case, width), encoding="utf-8")
