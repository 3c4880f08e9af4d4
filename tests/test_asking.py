"""Answers are kept by what was asked: another attack asks for what is missing; nothing after asking has a model."""

import ast
import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedaudit.attacks.answers import Classifications, Texts, public_records
from fedaudit.attacks.knowledge import Mixture
from fedaudit.attacks.tokens.signals import row_signals, stacked
from fedaudit.command import cli
from fedaudit.machinery import closure
from fedaudit.machinery.progress import Progress
from fedaudit.pipeline.attacks import attack_training
from fedaudit.pipeline.question_plan import QuestionPlan, read_rebuilt
from fedaudit.pipeline.run import run
from fedaudit.pipeline.workers import Workshop, federation_of

pytestmark = pytest.mark.usefixtures("unsafe_but_quick", "without_pages")

QUIET = Progress(quiet=True)
BOTH = "--rounds 2 --clients 2 --test 1 --threads 1 --targets 1 --quiet"
RUNS = {
    "LoRA": f"--method fedrand --per-round 2 --records 6 --reference 4 --novel 4 --local-steps 1 {BOTH}",
    "prompts": f"--method promptfl --epsilon none --train 4 {BOTH}",
}
SHADOWS = "--shadows 4"


def planned(words: str, out: Path) -> Any:
    return cli.read_command([*words.split(), "--out", str(out)]).plan


def audited(words: str, out: Path) -> Any:
    return run(planned(words, out), QUIET)


def kept(out: Path) -> dict[str, bytes]:
    return {p.relative_to(out).as_posix(): p.read_bytes() for p in sorted((out / "answers").rglob("*.safetensors"))}


@pytest.fixture(scope="module", params=RUNS)
def asked(request: Any, without_pages: None, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """A run under an attack by loss and by shadow models."""
    out = tmp_path_factory.mktemp("out")
    audited(f"{RUNS[request.param]} --attack loss,lira {SHADOWS}", out)
    return RUNS[request.param], out


@pytest.mark.parametrize("more", ["--attack loss", f"--attack rmia,loss {SHADOWS} --confidence 0.9"])
def test_what_was_asked_is_not_asked_again(more: str, asked: tuple[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """A part of the attacks, or in another order with another confidence and an attack that needs no more."""
    words, out = asked
    before = kept(out)
    assert before
    monkeypatch.setattr(Workshop, "executor", property(lambda workshop: pytest.fail("a model was loaded")))
    assert audited(f"{words} {more}", out).findings
    assert kept(out) == before


def test_a_new_attack_asks_for_what_is_missing(asked: tuple[str, Path]) -> None:
    """What clients sent, to whoever reads messages, also where no other attack does; what models say of records stays."""
    words, out = asked
    before = kept(out)
    found = [f for f in audited(f"{words} --attack cosine", out).findings if f["metric"] == "auroc"]
    after = kept(out)
    assert {name: after[name] for name in before} == before
    assert {Path(name).name.partition("-")[0] for name in after.keys() - before.keys()} == {"messages"}
    assert "cosine/mean" in {f["signal"] for f in found}
    assert any(f["value"] is not None for f in found)


def test_answers_are_named_by_what_was_asked_and_not_by_who_asked(asked: tuple[str, Path]) -> None:
    """The owner's true model of prompts is what the server rebuilds: equal weights have one answer."""
    words, out = asked
    plan = planned(f"{words} --attack loss", out)
    with Workshop(plan, QUIET) as workshop:
        attack = attack_training(plan.cells[0], workshop, QUIET)
    names: dict[str, set[str]] = {}
    for question_set in attack.question_sets:
        names.setdefault(question_set.model.name, set()).add(question_set.threat_model)
        for question in (question_set.model, question_set.base, question_set.public):
            assert not any(threat_model in question.name for threat_model in plan.trained.threat_models)
    if plan.trained.records == "classes":
        assert {"server", "owner"} in names.values()


def test_the_questions_of_an_attack_do_not_depend_on_its_company(asked: tuple[str, Path]) -> None:
    """Alone or among others, in whatever order, it asks the same of the same records."""
    words, out = asked
    questions = {}
    for attacks in ("loss", "loss,entropy", "entropy,loss"):
        plan = planned(f"{words} --attack {attacks}", out)
        asking = QuestionPlan.of(plan.cells[0], federation_of(plan))
        for source in asking.sources:
            for question in asking.replay_questions(source):
                source.rebuilt[question.view.threat_model] = read_rebuilt(question)
        sets = [one for target in asking.targets for one in asking.question_sets(target)]
        questions[attacks] = {question.name for one in sets for question in one.questions()}
    assert questions["loss"] == questions["loss,entropy"] == questions["entropy,loss"]
    assert questions["loss"]


class TestKept:
    def test_texts(self) -> None:
        logits = torch.randn(7, 11, generator=torch.Generator().manual_seed(0))
        signals = row_signals(logits, torch.arange(7))
        sizes, spans = np.array([3, 4]), [{"image": slice(0, 1), "caption": slice(1, 3)}, {"caption": slice(0, 4)}]
        texts = Texts(sizes, spans, ["a b", "ä"], [["<s>", "a", "b"], ["ä"]])
        again = public_records(texts.arrays())
        assert (again.spans, again.words, again.tokens, again.hard) == (spans, texts.words, texts.tokens, None)
        answers = again.answers({"exact": {"signals": stacked(signals)}})
        for field in dataclasses.fields(signals):
            here, there = getattr(signals, field.name), getattr(answers.signals(), field.name)
            np.testing.assert_equal(there, here)
        assert answers.loss[0] == pytest.approx(-signals.log_prob[1:3].mean())

    def test_classifications(self) -> None:
        log_probs = np.log(np.full((2, 3), 1 / 3))
        records = public_records(Classifications(np.array([0, 2]), log_probs).arrays())
        np.testing.assert_array_equal(records.hard, log_probs)
        np.testing.assert_allclose(records.answers({"exact": {"log_probs": log_probs}}).loss, np.log(3))

    @pytest.mark.parametrize("known", ["equal", "at most", "on average"])
    def test_messages_as_mixtures(self, known: str) -> None:
        mixture = Mixture(3, np.eye(2), np.ones(2), 7, 2.0, -1.0, 2.0, 5.5, known, True, 0.25, np.ones(2), np.ones(3))
        np.testing.assert_equal(vars(Mixture.of(mixture.arrays())), vars(mixture))


PIPELINE = Path(closure.source_file("fedaudit.pipeline.plan") or "").parent
# an attack is a file that declares parameters
ATTACKS = [path for path in (PIPELINE.parent / "attacks").glob("*.py") if "class Params" in path.read_text()]
MODELS = {"Classifier", "LanguageModel", "AdaptedModel", "Differentiable", "Learner"}  # what a model can be asked


def imported_names(path: Path) -> set[str]:
    nodes = (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom))
    return {alias.name for node in nodes for alias in node.names}


def test_after_asking_nobody_has_a_model() -> None:
    assert len(ATTACKS) > 10
    after = "scoring attacks question_set question_plan targets permitted analysis".split()
    files = [*(PIPELINE / f"{name}.py" for name in after), *ATTACKS]
    assert {path.name: models for path in files if (models := MODELS & imported_names(path))} == {}


def kinds_named(source: str) -> set[object]:
    """The kinds of records that a source asks for by name; a federation's classes are a name of its own."""
    asking = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Compare | ast.Subscript | ast.Match))
    return {c.value for node in asking for c in ast.walk(node) if isinstance(c, ast.Constant)} & {"texts", "classes"}


def test_no_file_of_the_pipeline_names_a_kind_of_records() -> None:
    for planted in ('x == "texts"', 'KINDS["classes"]', 'x in ("texts", "else")'):
        assert kinds_named(planted)
    found = {path.name: kinds_named(path.read_text()) for path in sorted(PIPELINE.glob("*.py"))}
    assert {name: kinds for name, kinds in found.items() if kinds} == {}


def test_no_answer_knows_an_attack() -> None:
    """A changed or a new attack asks nothing again: what asking reaches is in the key of the answers."""
    reached = closure.closure("fedaudit.pipeline.questions")
    assert {f"attacks/{path.name}" for path in ATTACKS} & set(reached) == set()
    assert not any(name.startswith("audits/") or "/tokens/scores" in name for name in reached)
