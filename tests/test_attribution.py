"""Whose record it is, as a table: by hand, over ways of rebuilding, without anything to tell apart."""

import dataclasses
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.stats import binomtest, t

from fedaudit.attacks.knowledge import Rounds
from fedaudit.attacks.source import record_owner
from fedaudit.audits.comparisons import ScoredRun
from fedaudit.audits.tables.attribution import COLUMNS, attribution_table
from tests.prompt_scores import made_up

TARGETS, OWNERS = 5, 4
CONFIDENCE = 0.95


def named(owner: Any, *, way: str = "rebuilt", owners: int = OWNERS, few: bool = False) -> ScoredRun:
    """Targets whose every record is given to the client that `owner` tells of its own one and whether it is a member."""
    run = made_up(0, targets=TARGETS, each=10, shadows=0, others=0, held=(("server", way), ("owner", "true state")))

    def facts(model: Any) -> pd.DataFrame | None:
        if model.threat_model == "owner":
            return None
        given = [owner(model.client, run.truth.get(r, False)) for r in model.scores.index]
        return pd.DataFrame({"owner": given, "owners": owners}, model.scores.index)

    models = [dataclasses.replace(model, facts=facts(model)) for model in run.models]
    return dataclasses.replace(run, models=models, few=few)


def members_of_all_but_the_last(client: int, member: bool) -> int:
    return client if member and client < TARGETS - 1 else (client + 1) % TARGETS


def test_shares_by_hand() -> None:
    """Members of four of five targets are given to them, nothing else is."""
    found = attribution_table(named(members_of_all_but_the_last), CONFIDENCE)
    assert list(found) == COLUMNS
    table, mean = found.set_index(["client", "kind"]), "mean of 5 clients"
    assert list(table.index[:3]) == [(mean, "member"), (mean, "held-out"), ("client-00", "member")]
    for k in range(TARGETS):
        for kind, right in (("member", 10 * (k < TARGETS - 1)), ("held-out", 0)):
            row = table.loc[f"client-{k:02d}", kind]
            interval = binomtest(right, 10).proportion_ci(CONFIDENCE)
            assert (row.accuracy, row.n, row.chance) == (right / 10, 10, 1 / OWNERS)
            assert (row.low, row.high) == (interval.low, interval.high)
    row, half = table.loc[mean, "member"], t.ppf(0.975, 4) * np.std([1, 1, 1, 1, 0], ddof=1) / 5**0.5
    assert (row.accuracy, row.n, row.chance) == (pytest.approx(0.8), 50, 1 / OWNERS)
    assert (row.low, row.high) == (pytest.approx(0.8 - half), 1.0)
    found = attribution_table(named(members_of_all_but_the_last, few=True), CONFIDENCE)
    assert sorted(set(found.client)) == [f"client-{k:02d}" for k in range(TARGETS)]


def test_the_freshest_way_that_reaches_half_of_the_clients_stands_for_the_server() -> None:
    newest, filled = (named(members_of_all_but_the_last, way=way) for way in ("newest", "server-fill"))
    one, two = ([m for m in run.models if m.threat_model == "server"] for run in (newest, filled))
    for reached, way in ((TARGETS, "newest"), (3, "newest"), (2, "server-fill")):
        run = dataclasses.replace(newest, models=[*one[:reached], *two])
        assert set(attribution_table(run, CONFIDENCE).way) == {way}


@pytest.mark.parametrize("owners", [0, 1])
def test_where_a_record_can_have_one_owner_only_nothing_is_told(owners: int) -> None:
    assert attribution_table(named(members_of_all_but_the_last, owners=owners), CONFIDENCE).empty
    run = named(members_of_all_but_the_last)
    assert attribution_table(dataclasses.replace(run, models=[]), CONFIDENCE).empty


def test_owners_are_those_that_sent_something_about_which_the_record_was_asked() -> None:
    """The second of three clients sent nothing, and the last record was never asked about."""
    loss = np.array([[[1.0, 2.0, np.nan], [np.nan] * 3, [2.0, 1.0, np.nan]]])
    found = {name: values.tolist() for name, values in record_owner(Rounds(0, loss, loss)).items()}
    assert found == {"owner": [0, 2, -1], "owners": [2, 2, 0]}
