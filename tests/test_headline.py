"""The first sentence of a page says what the verdicts say, on findings that are made up for every kind of answer."""

from typing import Any

import pytest

from fedaudit.audits.findings import WHOLE_RANKING
from fedaudit.reports.headline import NOT_MEASURED, Headline, headline, times
from fedaudit.terms.sentences import SENTENCES
from fedaudit.terms.verdicts import VERDICTS

LEAK, REVERSED, CONFOUNDED, INCONCLUSIVE, NO_LEAK = VERDICTS
EIGHT = "of the 8 highest within clients, 8 were members, where 4.0 are expected; as a whole the ranking is near chance"


def auroc(value: float | None, verdict: str | None, **more: Any) -> dict[str, Any]:
    """A headline AUROC that coins decided."""
    return {
        "value": value, "verdict": verdict, "signal": "loss", "family": "primary", "family_n": 5, "part": WHOLE_RANKING,
        "t": None if value is None else 20 * (value - 0.5), "p_adjusted": 0.001 if verdict == LEAK else 0.5,
        "detectable": 0.67, "detectable_named": 8, "best_of": None,
    } | more  # fmt: skip


def one(**threats: list[dict[str, Any]]) -> Headline:
    return headline({"FedAvg": {name.replace("_", "-"): rows for name, rows in threats.items()}})


def elsewhere(value: float, verdict: str, **more: Any) -> dict[str, Any]:
    """A headline AUROC that controls decided, of a run trained elsewhere."""
    return auroc(value, verdict, family=None, t=None, part=None, detectable_named=None, **more)


COULD = "a score that picks the member out of a pair 67 times in 100, or names 8 members, would have been found with a"
COULD += " power of 80 %"
QUIET = auroc(0.52, NO_LEAK)


def tells(who: str, often: str, how: str = "") -> str:
    known = f"{who} can tell who was in FedAvg's training data"
    return f"{known}, and picks the member out of a pair {often} times in 100 (guessing: 50){how}."


BEFORE = "By the loss, the strongest score that was named beforehand."
DIFFER = "members and non-members differ in more than membership"

ONE: dict[str, tuple[dict[str, list[dict[str, Any]]], str, list[str]]] = {
    "a leak": ({"server": [auroc(0.731, LEAK)]}, tells("The server", "73"), [BEFORE]),
    "two adversaries": (
        {"released_model": [auroc(0.64, LEAK)], "server": [auroc(0.73, LEAK)]},
        "Anyone with the released model and the server can tell who was in FedAvg's training data, and the server picks "
        "the member out of a pair 73 times in 100 (guessing: 50).",
        [BEFORE],
    ),
    "a leak to one of two": (
        {"released_model": [QUIET], "server": [auroc(0.73, LEAK)]}, tells("The server", "73"),
        [BEFORE, f"No leak found: anyone with the released model; {COULD}."],
    ),
    "the owner beside others": (
        {"server": [auroc(0.6, LEAK)], "owner": [auroc(0.94, LEAK)]}, tells("The server", "60"),
        [BEFORE, "The holder of a client's true model (the upper bound) picks the member out of a pair 94 times in 100 "
                 "(guessing: 50)."],
    ),
    "the owner alone": (
        {"server": [QUIET], "owner": [auroc(0.94, LEAK)]},
        "Only the holder of a client's true model (the upper bound) was shown to tell who was in FedAvg's training data, "
        "and picks the member out of a pair 94 times in 100 (guessing: 50).",
        [BEFORE, f"No leak found: the server; {COULD}."],
    ),
    "named beforehand before what was picked": (
        {"server": [auroc(0.9, LEAK, family="secondary", signal="entropy"), auroc(0.7, LEAK)]},
        tells("The server", "70"), [BEFORE],
    ),
    "picked scores alone": (
        {"server": [auroc(0.9, LEAK, family="secondary", family_n=948), QUIET]}, tells("The server", "90"),
        ["By the loss, which was not named beforehand: its p is corrected for all 948 such scores."],
    ),
    "named records": (
        {"server": [auroc(0.53, LEAK, part=EIGHT)]},
        "The server can name members of FedAvg's training data: of the 8 highest within clients, 8 were members, where "
        "4.0 are expected.",
        [BEFORE],
    ),
    "named records and a ranking": (
        {"server": [auroc(0.53, LEAK, part=EIGHT, t=9.0)], "peer": [auroc(0.6, LEAK)]},
        "The server and another client can tell who was in FedAvg's training data, and another client picks the member "
        "out of a pair 60 times in 100 (guessing: 50).",
        [BEFORE],
    ),
    "highest scores and the ranking": (
        {"server": [auroc(0.94, LEAK, part=EIGHT.partition(";")[0])]}, tells("The server", "94"), [BEFORE],
    ),
    "a reversed score": (
        {"server": [auroc(0.2, REVERSED)]}, tells("The server", "80", ", by the lower score"), [BEFORE],
    ),
    "none": (
        {"released_model": [QUIET], "server": [auroc(0.49, NO_LEAK)]},
        f"Nobody was shown to tell who was in FedAvg's training data; {COULD}.", [],
    ),
    "none, the weakest test counts": (
        {"released_model": [QUIET], "server": [auroc(0.49, NO_LEAK, detectable=0.81, detectable_named=None)]},
        "Nobody was shown to tell who was in FedAvg's training data; a score that picks the member out of a pair 81 "
        "times in 100 would have been found with a power of 80 %.",
        [],
    ),
    "none, trained elsewhere": (
        {"released_model": [elsewhere(0.52, NO_LEAK, detectable=0.57)]},
        "Nobody was shown to tell who was in FedAvg's training data; a score that picks the member out of a pair 57 times "
        "in 100 would just have been told from guessing.",
        [],
    ),
    "a leak elsewhere, of several attacks": (
        {"server": [elsewhere(0.8, LEAK, best_of=4)]}, tells("The server", "80"),
        ["By the loss, the best of 4 attacks, its interval corrected for picking it."],
    ),
    "confounded": (
        {"server": [elsewhere(0.8, CONFOUNDED)]}, f"Nothing can be said about leaks of FedAvg: {DIFFER}.", [],
    ),
    "confounded beside none": (
        {"server": [elsewhere(0.8, CONFOUNDED)], "released_model": [QUIET]},
        f"Nobody was shown to tell who was in FedAvg's training data; {COULD}.",
        [f"The server: nothing can be said, as {DIFFER}."],
    ),
    "inconclusive": (
        {"server": [auroc(0.5, INCONCLUSIVE, detectable=None)]},
        "Undecided, for leaks of FedAvg: no score can be told from luck or a control, or none differs between records.", [],
    ),
    "not measurable": (
        {"server": [auroc(None, None, detectable=None)]},
        "Not measured: no headline score has a number for leaks of FedAvg.", [],
    ),
    "not measured beside a leak": (
        {"server": [auroc(0.99995, LEAK)], "owner": []}, tells("The server", "over 99"),
        [BEFORE, "The holder of a client's true model (the upper bound): not measured, as no headline score has a number."],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", ONE)
def test_the_first_sentence_of_one_run(case: str) -> None:
    threats, sentence, rest = ONE[case]
    assert one(**threats) == Headline(sentence, rest)


def several(**runs: dict[str, Any]) -> Headline:
    """The headline of a page of several runs, each with one finding about the server."""
    return headline({run: {"server": [row]} for run, row in runs.items()})


def test_the_first_sentence_of_several_runs() -> None:
    some = several(FedAvg=auroc(0.81, LEAK), FedRand=QUIET, FedPer=auroc(0.7, LEAK))
    said = "in FedAvg, the server picks the member out of a pair 81 times in 100 (guessing: 50)."
    assert some.sentence == f"2 of 3 runs leak; at most, {said}"
    assert some.rest == [BEFORE, f"No leak found: FedRand; {COULD}."]
    assert several(FedAvg=auroc(0.81, LEAK), FedRand=QUIET).sentence == f"1 of 2 runs leaks: {said}"
    assert several(A=auroc(0.6, LEAK), B=auroc(0.7, LEAK)).sentence.startswith("Both runs leak; at most, in B, ")
    assert several(A=auroc(0.53, LEAK, part=EIGHT), B=QUIET).sentence == (
        "1 of 2 runs leaks: in A, the server can name members: of the 8 highest within clients, 8 were members, where "
        "4.0 are expected."
    )
    quiet = several(A=QUIET, B=QUIET, C=auroc(0.9, CONFOUNDED), D=auroc(None, None))
    assert quiet.sentence == f"Nobody was shown to tell members from others in any of 4 runs; {COULD}."
    nothing, number = f"C: nothing can be said, as {DIFFER}.", f"D: {NOT_MEASURED}, as no headline score has a number."
    assert quiet.rest == [nothing, number]
    found = headline({run: {"server": [QUIET], "owner": [auroc(v, LEAK)]} for run, v in (("A", 0.7), ("B", 0.8))})
    assert found.sentence.startswith("Only the holder of a client's true model (the upper bound) was shown to tell")
    assert ", in 2 of 2 runs; in B, " in found.sentence
    assert headline({"FedAvg": {}}) is None


def test_names_and_values_in_words() -> None:
    assert all(words.short[0].islower() and not words.short.endswith((".", ",")) for words in SENTENCES.values())
    values = {0.5: "50", 0.504: "50.4", 0.731: "73", 0.996: "over 99", 1.0: "100", 0.0: "0", 0.002: "under 1"}
    assert {value: times(value) for value in values} == {v: f"{said} times in 100" for v, said in values.items()}
