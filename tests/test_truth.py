"""Who trains on what cannot reach an attack: what its workers are handed has no field for it."""

import dataclasses
import shutil

import pytest

from fedaudit.command import cli
from fedaudit.machinery.progress import Progress
from fedaudit.pipeline import compute, workers
from fedaudit.pipeline.run import run
from fedaudit.trainers.protocols import AttackBench

pytestmark = pytest.mark.usefixtures("unsafe_but_quick", "without_pages")

LORA = (
    "--method fedrand --rounds 2 --clients 2 --per-round 1 --records 4 --reference 4 --novel 4 --test 2 --local-steps 1 "
    "--canaries 2 --attack loss,cosine"
)
PROMPTS = (
    "--method fedotp --rounds 2 --clients 2 --train 4 --test 1 --attack lira,cosine --shadows 4 --targets 1 "
    "--canaries 4 --observed-rounds 2"
)
QUIET = Progress(quiet=True)


class Gone:
    """The lists of training records, and what weighs 0 in them, when nothing may be trained any more."""

    def look(self, *_):
        raise AssertionError("something looked at who trains on what")

    __getitem__ = __iter__ = __len__ = __contains__ = __bool__ = look


def test_what_attacks_are_handed_has_no_place_for_it():
    assert {field.name for field in dataclasses.fields(AttackBench)} == {"learner", "candidates", "canaries"}


@pytest.mark.parametrize(
    "words",
    [pytest.param(LORA, id="adapters"), pytest.param(PROMPTS, id="prompts", marks=pytest.mark.slow)],  # quick: adapters
)
def test_a_whole_audit_with_it_gone(words, tmp_path, monkeypatch):
    """What is trained is on disk; attacked again by workers that have lost the lists, the findings are the same."""
    plan = cli.read_command([*words.split(), "--threads", "1", "--out", str(tmp_path)]).plan
    before = run(plan, QUIET).findings
    for folder in ("analyses", "answers", "reports"):
        shutil.rmtree(tmp_path / folder)
    benches = []

    def make_bench(*args, **more):
        benches.append(dataclasses.replace(whole(*args, **more), training=Gone(), left_out=Gone()))
        return benches[-1]

    whole = workers.make_bench
    monkeypatch.setattr(workers, "make_bench", make_bench)
    assert run(plan, QUIET).findings == before
    assert len(benches) == 1
    with pytest.raises(AssertionError, match="who trains on what"):
        compute.compute(dataclasses.replace(plan, seed=1), QUIET)  # a training needs them
