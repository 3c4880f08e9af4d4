"""docs/glossary.md: at most 60 terms in order, each once; threat models and verdicts are among them."""

from fedaudit.terms.threat_models import THREAT_MODELS
from fedaudit.terms.verdicts import VERDICTS
from tests.doc_blocks import table

TERMS = [row[0] for row in table("docs/glossary.md", "term", "meaning")]


def test_terms_stand_once_and_in_order() -> None:
    assert len(TERMS) <= 60
    assert sorted({*TERMS}, key=str.lower) == TERMS


def test_the_vocabulary_of_findings_is_explained() -> None:
    assert {*map(str, THREAT_MODELS), *map(str, VERDICTS)} <= {*TERMS}
