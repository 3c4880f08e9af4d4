"""The files that `--new` writes, by kind: NAME stands for the plugin's name, Title for that of its class."""

from __future__ import annotations

_METHOD = '''\
"""Title: FedAvg whose server goes only a part of the way to the mean of its clients (Reddi et al. 2021, algorithm 1).

theta <- theta + s (mean of what clients send - theta), weighted by their numbers of records; s = 1 is FedAvg.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from fedaudit.machinery.parameters import Parameters, number
from fedaudit.trainers.base import Method, Participation, Site, State, Update, Upload, mean_by_records
from fedaudit.trainers.learners import MethodFacts


class Facts(MethodFacts):
    learner = "lora"  # what it trains: adapters


@dataclass(frozen=True)
class Params(Parameters):
    server_step: float = number(0.5, "part of the way that the server goes to the clients' mean", above=0, most=2)


@dataclass(frozen=True)
class Title(Method[Participation]):
    params: Params

    def update(self, server: State, own: State, client: Participation) -> Update:
        trained = client.train(server)
        return Update(upload=trained, private=trained)

    def aggregate(self, server: State, uploads: Sequence[Upload], site: Site) -> State:
        mean = mean_by_records(uploads)
        return {name: server[name] + self.params.server_step * (mean[name] - server[name]) for name in server}
'''

_METHOD_TEST = '''\
"""The method NAME: a round by hand, and the contracts of every method."""

from pathlib import Path

import torch

from fedaudit.contracts.check import broken_contracts, load
from fedaudit.trainers.base import Site, Upload

FOLDER = Path(__file__).parents[1]
Title = load(FOLDER, "method", "NAME")


def test_a_round_by_hand():
    """One client with one record sends 4, one with three sends 8: their mean is 7, half the way to it from 1 is 4."""
    from fedaudit.trainers.NAME import Params

    uploads = [Upload(0, 1, {"A": torch.tensor([4.0])}), Upload(1, 3, {"A": torch.tensor([8.0])})]
    server = Title(Params(server_step=0.5)).aggregate({"A": torch.tensor([1.0])}, uploads, Site(0, 0))
    assert server["A"].tolist() == [4.0]


def test_it_keeps_the_contracts():
    assert broken_contracts(FOLDER, "method", "NAME") == []
'''

_ATTACK = '''\
"""Title: members have a low loss, of which a part is put down to the record being easy for the public model.

NAME    w (loss under the public start) - (loss under the attacked model): with w = 0 this is the loss attack
        (Yeom et al. 2018), with w = 1 it is how far training lowered the loss.

Needs the attacked model only.
"""

from dataclasses import dataclass

from fedaudit.attacks.facts import AttackFacts
from fedaudit.attacks.knowledge import Attack, Floats, Knowledge
from fedaudit.machinery.parameters import Parameters, number


class Facts(AttackFacts):
    records = ("texts", "classes")
    signals = (("NAME", "NAME", "the loss beside a part of the public model's"),)


@dataclass(frozen=True)
class Params(Parameters):
    NAME_weight: float = number(0.5, "weight of the loss under the public start in NAME", least=0, most=1)


class Title(Attack):
    def __init__(self, params: Params) -> None:
        self.params = params

    def score(self, knowledge: Knowledge) -> dict[str, Floats]:
        return {"NAME": self.params.NAME_weight * knowledge.base.loss - knowledge.loss}
'''

_ATTACK_TEST = '''\
"""The attack NAME: against a loop over records, and the contracts of every attack."""

from pathlib import Path

import numpy as np

from fedaudit.contracts.check import broken_contracts, load
from fedaudit.contracts.knowledge_toy import toy_seen

FOLDER = Path(__file__).parents[1]
Title = load(FOLDER, "attack", "NAME")


def test_it_equals_the_loop_over_records():
    from fedaudit.attacks.NAME import Params

    knowledge, _ = toy_seen(leak=1.0)
    found = Title(Params(NAME_weight=0.25)).score(knowledge)["NAME"]
    for i, label in enumerate(knowledge.labels):
        expected = knowledge.log_probs[i, label] - 0.25 * knowledge.base.log_probs[i, label]
        np.testing.assert_allclose(found[i], expected, atol=1e-12)


def test_it_keeps_the_contracts():
    assert broken_contracts(FOLDER, "attack", "NAME") == []
'''

_AUDIT = '''\
"""Title: how high members rank among the records of their client, on average, beside what chance has.

A rank is a share: 1 for the highest score among the n records of a client, 1 / n for the lowest. If nothing tells the m
members of n records, their ranks sum to m (n + 1) / 2n, with variance m (n - m) (n + 1) / 12 n^2 (Wilcoxon 1945).
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.stats import norm

from fedaudit.audits.comparisons import comparisons
from fedaudit.audits.facts import AuditFacts
from fedaudit.audits.findings import OfRun
from fedaudit.audits.subject import Result, Subject
from fedaudit.machinery.parameters import Parameters, number
from fedaudit.terms.nonmembers import HELD_OUT


class Facts(AuditFacts):
    needs = ("attacks",)  # it runs where something is attacked


@dataclass(frozen=True)
class Params(Parameters):
    NAME_level: float = number(0.95, "level of the interval of chance in NAME", above=0, below=1)


@dataclass(frozen=True, kw_only=True)
class Title(OfRun):
    metric: str
    threat_model: str
    way: str
    population: str
    signal: str
    value: float  # mean rank of members
    low: float  # the interval of chance, by the normal law
    high: float


def NAME(subject: Subject, params: Params) -> Result:
    """A finding for each adversary, population and headline score, against held-out records of the same clients."""
    run, findings = subject.attacked, []
    against = [c for c in comparisons(run) if c.nonmembers == HELD_OUT] if run else []
    for c, signal in ((c, signal) for c in against for signal in run.headline if signal in c.scores):
        found = pd.DataFrame({"client": c.client, "member": c.member, "score": c.scores[signal].to_numpy()}).dropna()
        rank = found.groupby("client").score.rank(pct=True)
        n, m = found.groupby("client").member.size(), found.groupby("client").member.sum()
        mean, variance = (m * (n + 1) / (2 * n)).sum(), (m * (n - m) * (n + 1) / (12 * n**2)).sum()
        if variance == 0:  # only members, or nobody
            continue
        low, high = np.array(norm.interval(params.NAME_level, mean, np.sqrt(variance))) / m.sum()
        findings.append(
            Title(
                **subject.names, metric="NAME", threat_model=c.threat_model, way=c.way, population=c.population,
                signal=signal, value=float(rank[found.member].mean()), low=float(low), high=float(high),
            )
        )  # fmt: skip
    return Result(findings)
'''

_AUDIT_TEST = '''\
"""The audit NAME: its ranks in a small run by a loop, and the contracts of every audit."""

from pathlib import Path

import pytest

from fedaudit.audits.comparisons import comparisons
from fedaudit.contracts.audits import small_run
from fedaudit.contracts.check import broken_contracts, load
from fedaudit.terms.nonmembers import HELD_OUT

FOLDER = Path(__file__).parents[1]
NAME = load(FOLDER, "audit", "NAME")


def test_it_equals_the_loop_over_records(tmp_path):
    from fedaudit.audits.NAME import Params

    subject = small_run("classes", tmp_path)
    findings = NAME(subject, Params()).findings
    assert findings
    of_same_clients = [c for c in comparisons(subject.attacked) if c.nonmembers == HELD_OUT]
    against = {(c.threat_model, c.way, c.population): c for c in of_same_clients}
    for finding in findings:
        c = against[finding.threat_model, finding.way, finding.population]
        rows = [*zip(c.client, c.member, c.scores[finding.signal], strict=True)]
        places = []
        for client, member, score in rows:
            own = [other for k, _, other in rows if k == client]
            below, ties = sum(other < score for other in own), sum(other == score for other in own)
            places += [(below + (ties + 1) / 2) / len(own)] if member else []
        assert finding.value == pytest.approx(sum(places) / len(places))
        assert 0 < finding.low < finding.high


def test_it_keeps_the_contracts():
    assert broken_contracts(FOLDER, "audit", "NAME") == []
'''

PLUGINS = {"method": _METHOD, "attack": _ATTACK, "audit": _AUDIT}
TESTS = {"method": _METHOD_TEST, "attack": _ATTACK_TEST, "audit": _AUDIT_TEST}
