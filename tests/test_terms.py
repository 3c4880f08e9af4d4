"""The vocabulary: every word has what its readers ask for, and is the text itself."""

import copy
import json
import pickle

import pandas as pd
import pytest

from fedaudit.terms.held_models import AT_THE_END, FRESHEST
from fedaudit.terms.sentences import SAID
from fedaudit.terms.term import find
from fedaudit.terms.threat_models import SERVER, STRONGEST, THREAT_MODELS


def test_a_word_is_the_text_that_files_hold(tmp_path):
    assert (SERVER, f"{SERVER}", json.dumps([SERVER]), {"server": 1}[SERVER]) == ("server", "server", '["server"]', 1)
    table = pd.DataFrame({"threat_model": [SERVER, "owner"]})
    assert table.threat_model.eq("server").tolist() == table.threat_model.eq(SERVER).tolist() == [True, False]
    table.to_parquet(tmp_path / "table")
    assert pd.read_parquet(tmp_path / "table").threat_model.tolist() == ["server", "owner"]


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda term: pickle.loads(pickle.dumps(term))])
def test_a_copy_of_a_word_knows_the_same(copied):
    assert (copied(SERVER), copied(SERVER).sees, copied(SERVER).name) == (SERVER, SERVER.sees, "server")


def test_a_word_stays_as_it_is():
    with pytest.raises(AttributeError, match="sees of server stays as it is"):
        SERVER.sees = frozenset()


def test_a_word_is_found_by_its_text():
    assert find(THREAT_MODELS, "server", "threat model").sees == SERVER.sees
    with pytest.raises(ValueError, match=r"threat model must be one of prompt-user, .*, owner, not hacker"):
        find(THREAT_MODELS, "hacker", "threat model")


def test_every_threat_model_has_its_sentences_and_its_places():
    assert [*SAID] == [*THREAT_MODELS]
    assert sorted(STRONGEST) == sorted(THREAT_MODELS)
    assert all(model.attacks in SAID[model].who for model in THREAT_MODELS)


def test_every_model_of_the_end_of_training_has_its_freshness():
    assert sorted(FRESHEST) == sorted(AT_THE_END)
