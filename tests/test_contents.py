"""What first messages hold: the gradients of embeddings, numbers of records by class, planted batches, and what is not solved."""

import functools
import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import torch.nn.functional as F
from scipy.optimize import approx_fprime, least_squares

import fedaudit
from fedaudit.attacks.answers import ClassAnswers
from fedaudit.attacks.attacked_models import Target
from fedaudit.attacks.base import View
from fedaudit.attacks.contents import Contents, Params
from fedaudit.attacks.gradients import text_products
from fedaudit.attacks.knowledge import SolvedBatch
from fedaudit.attacks.messages.contents import (
    References,
    Start,
    _solved,
    compositions,
    descend,
    equations,
    improve,
    refusal,
    solve_contents,
)
from fedaudit.attacks.messages.prompts import ReplayedMessages
from fedaudit.contracts.knowledge_toy import toy_seen
from fedaudit.pipeline.contents import judged
from fedaudit.privacy.settings import Privacy
from fedaudit.trainers.base import Participation, Schedule
from fedaudit.trainers.prompts import PromptMethod
from tests.prompt_toy import METHODS, NONE, PRIVACY, SETTINGS, Federation, federation, made, run, with_noise

pytestmark = pytest.mark.usefixtures("unsafe_but_quick")
PARAMS: dict[str, dict[str, Any]] = {"dpfpl": {"rank": 2}, "fedpgp": {"rank": 2}}
SOLVED = [n for n, p in METHODS.items() if not p.facts.on_shares and made(n, PARAMS.get(n, {})).sends]
ONCE = Schedule(rounds=1, clients=3, per_round=3, seed=1)
CLIENT = 0


@functools.cache
def world() -> Federation:
    """A hundred known non-members (the test pictures) beside the clients' records; pictures of a class are alike, and differ in four directions."""
    plain, g = federation(test=100), torch.Generator().manual_seed(0)
    labels, width = torch.tensor([plain.labels[record] for record in plain.ids]), plain.features.shape[1]
    centres, directions = torch.randn(len(plain.classes), width, generator=g), torch.randn(4, width, generator=g)
    spread = torch.randn(len(labels), 4, generator=g) @ directions + 0.1 * torch.randn(len(labels), width, generator=g)
    return replace(plain, features=F.normalize(1 + 0.5 * centres[labels] + 0.3 * spread, dim=-1))


def start_and_known(name: str) -> tuple[Start, References, Any]:
    """The public start of a method, its references, and a function from records to their gradients there."""
    method, learner = made(name, PARAMS.get(name, {})), world().learner()
    state = method.start(learner.initial(torch.Generator().manual_seed(0)))
    start = Start(*text_products(learner, method.prompt(state)), learner.scale)

    def gradients(records: Any) -> np.ndarray:
        (found,) = learner.sent_gradients(method, state, records)
        return found.flatten(1).double().numpy()

    records = world().test
    pictures, labels = learner.images(records).double().numpy(), learner.labels(records).numpy()
    return start, References(pictures, labels, gradients(records)), gradients


@pytest.mark.parametrize("name", SOLVED)
def test_the_model_of_gradients_is_what_clients_compute(name: str) -> None:
    start, known, _ = start_and_known(name)
    basis = np.eye(known.embeddings.shape[1])
    found = start.gradients(start.back(basis), basis, known.embeddings, known.labels)
    np.testing.assert_allclose(found, known.gradients, atol=1e-5 * np.abs(known.gradients).max())


@pytest.mark.parametrize("seed", range(6))
def test_compositions_are_the_best_of_all(seed: int) -> None:
    rng = np.random.default_rng(seed)
    classes, size = 3 + seed % 2, 5
    columns = rng.standard_normal((9, classes))
    sent = columns @ rng.multinomial(size, np.ones(classes) / classes) / size + 0.1 * rng.standard_normal(9)
    every = [one for one in itertools.product(range(size + 1), repeat=classes) if sum(one) == size]
    every.sort(key=lambda one: np.linalg.norm(columns @ one / size - sent))
    np.testing.assert_array_equal(compositions(columns, sent, size, most=5), every[:5])
    np.testing.assert_array_equal(compositions(columns[:, :1], sent, 3), [[3]])


class TestFit:
    def test_its_jacobian_and_its_least_squares(self) -> None:
        """Against finite differences, and scipy's solver from the same start."""
        start, known, _ = start_and_known("promptfl")
        fits, *_ = equations(start, known, known.gradients[:3].mean(0), 3)
        labels, rng = known.labels[:3], np.random.default_rng(0)
        for fit in fits[:2]:
            z = 0.3 * fit.spread * rng.standard_normal((3, len(fit.spread)))
            slow = approx_fprime(z.ravel(), lambda flat, z=z, fit=fit: fit.residuals(flat.reshape(z.shape), labels))
            np.testing.assert_allclose(fit.jacobian(z, labels), slow, atol=1e-5 * np.abs(slow).max())
            cost, _ = descend(fit, z, labels)
            slow = least_squares(lambda flat, z=z, fit=fit: fit.residuals(flat.reshape(z.shape), labels), z.ravel())
            assert cost < 1.05 * 2 * slow.cost

    def test_references_of_one_class_leave_no_other_to_try(self) -> None:
        """A client of one class: so has each of as many clients as classes."""
        start, known, _ = start_and_known("promptfl")
        (fit, *_), *_ = equations(start, known, known.gradients[:3].mean(0), 3)
        cost, z = descend(fit, np.zeros((3, len(fit.spread))), np.zeros(3, int))
        again, same, _ = improve(fit, cost, z, np.zeros(3, int), [0])
        assert again == cost
        np.testing.assert_array_equal(same, z)

    def test_a_batch_that_lies_in_the_directions_leaves_nothing(self) -> None:
        """The message's own embeddings, in coordinates of all directions but one, are a solution but for the prior."""
        start, known, _ = start_and_known("promptfl")
        fits, *_ = equations(start, known, known.gradients[:3].mean(0), 3)
        inside = np.abs(np.random.default_rng(0).standard_normal((3, len(fits[-1].spread)))) * fits[-1].spread
        units = fits[-1].units(inside)[0]
        records = start.gradients(start.back(fits[-1].basis), fits[-1].basis, units, known.labels[:3])
        again, *_ = equations(start, known, records.mean(0), 3)
        rest = again[-1].residuals(inside, known.labels[:3])[: len(again[-1].sent)]
        assert np.linalg.norm(rest) < 1e-3 * np.linalg.norm(again[-1].sent)


def first_message(name: str, path: Path, method: PromptMethod | None = None) -> tuple[dict[str, Any], Federation, Any]:
    """What a server solves of the first client's message, the world, and the learner."""
    method, found = method or made(name, PARAMS.get(name, {}), NONE, ONCE), world()
    transcript = run(path, method, found, ONCE)
    learner = found.learner(method.settings)
    target = Target(CLIENT, found.training[CLIENT], found.test)
    read = ReplayedMessages(View(transcript, "server"), method, learner, found.training)
    return read.round(CLIENT, 0, target.records, ("contents",), len(target.own), True), found, learner


@pytest.mark.parametrize("name", ["promptfl", "dpfpl"])
def test_a_batch_is_found_among_all_pictures_and_another_one_is_not(name: str, tmp_path: Path) -> None:
    """Its records come first or nearly so; control: as many other records, judged by the same solved embeddings."""
    said, found, learner = first_message(name, tmp_path)
    solved = SolvedBatch(said["contents/labels"], said["contents/embeddings"])
    pictures, labels = learner.images(found.ids).double().numpy(), learner.labels(found.ids).numpy()
    method = made(name, PARAMS.get(name, {}), NONE, ONCE)
    batch = method.minibatch(Participation(CLIENT, 0, 1, found.training[CLIENT], None, ()), 0)
    own, other = (
        judged(solved, pictures, labels, [found.ids.index(record) for record in records])
        for records in (batch, found.training[1][: len(batch)])
    )
    assert own.label_right.sum() >= len(batch) - 1
    assert own["rank"].median() <= 5
    assert other["rank"].median() > 10


def test_planted_batches_are_solved_and_repeat() -> None:
    """Messages of known pictures: the classes and embeddings; equal to the bit when solved again."""
    start, known, gradients = start_and_known("promptfl")
    records, learner = world().training[CLIENT][:3], world().learner()
    first, again = (solve_contents(start, known, gradients(records).mean(0), 3) for _ in range(2))
    np.testing.assert_array_equal(first.embeddings, again.embeddings)
    pictures, labels = learner.images(records).double().numpy(), learner.labels(records).numpy()
    rows = judged(first, pictures, labels, range(3))
    assert rows.label_right.all()
    assert rows.cosine.min() > 0.8


def test_scores_by_hand() -> None:
    """An unsolved message says nothing."""
    seen, _ = toy_seen(leak=1.0)
    angles = np.array([0.0, 90.0, 180.0, 0.0])
    pictures = np.column_stack([np.cos(np.radians(angles)), np.sin(np.radians(angles))])
    solved = SolvedBatch(np.array([0, 0, 1]), np.array([[0.8, 0.6], [0.6, 0.8], [-1.0, 0.0]]))
    answers = ClassAnswers(seen.log_probs[:4], np.array([0, 0, 1, 2]))
    seen = replace(seen, answers=answers, contents=solved, embeddings=pictures)
    np.testing.assert_allclose(Contents(Params()).score(seen)["contents"], [0.8, 0.8, 1.0, -1.0])
    assert np.isnan(Contents(Params()).score(replace(seen, contents=None))["contents"]).all()


def test_judged_by_hand() -> None:
    """Classes are matched before cosines; a record that is matched with none has no rank."""
    pictures = np.array([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8], [0.8, 0.6]])
    solved = SolvedBatch(np.array([1, 0]), np.array([[1.0, 0.0], [0.0, 1.0]]))
    rows = judged(solved, pictures, np.array([0, 1, 0, 0]), [0, 1, 3])
    assert rows.solved.tolist()[:2] == pytest.approx([np.nan, 0], nan_ok=True)
    assert rows.label_right.tolist() == pytest.approx([np.nan, 1, 1], nan_ok=True)
    assert rows.cosine.tolist() == pytest.approx([np.nan, 0, 0.6], nan_ok=True)
    assert rows["rank"].tolist() == pytest.approx([np.nan, 4, 3], nan_ok=True)


class TestRefusals:
    @pytest.mark.parametrize(
        ("name", "params", "settings", "privacy", "why"),
        [
            ("promptfl", {}, {"local_steps": 2}, NONE, "several local steps"),
            ("fedotp", {"match": "ot"}, {}, NONE, "patches"),
            ("promptfl", {}, {"class_contexts": True}, NONE, "one context"),
            ("promptfl", {}, {}, PRIVACY["record"], "add noise"),
            ("dpfpl", {"rank": 2}, {}, PRIVACY["poisson"], "unknown sizes"),
        ],
    )
    def test_each_has_its_clause(self, name: str, params: Any, settings: Any, privacy: Privacy, why: str) -> None:
        assert why in (refusal(made(name, params, privacy, settings=replace(SETTINGS, **settings))) or "")

    def test_none_of_a_plain_run_or_of_the_servers_own_noise(self) -> None:
        assert {name: refusal(made(name, PARAMS.get(name, {}))) for name in SOLVED} == dict.fromkeys(SOLVED)
        assert refusal(made("dpfpl", {"rank": 2}, PRIVACY["record"])) is None

    @pytest.mark.parametrize("privacy", ["record", "batch"])
    def test_a_clipped_message_is_not_solved(self, privacy: str, tmp_path: Path) -> None:
        short = replace(PRIVACY[privacy], clip_norm=1e-3)
        method = with_noise(made("dpfpl", {"rank": 2}, NONE, ONCE), short, dict.fromkeys(("p_G", "u", "v"), 1e-4))
        said, *_ = first_message("dpfpl", tmp_path, method)
        assert said == {}


@pytest.mark.slow  # a whole run on many pictures; quick: every part of it, above
def test_through_the_whole_door(tmp_path: Path) -> None:
    """Pictures are found among all of the data set, and those of another client are not."""
    quick = {"rounds": 1, "clients": 2, "seeds": 1, "quiet": True, "train": 180, "out": str(tmp_path)}
    audited = fedaudit.audit(method="promptfl", epsilon="none", twin=False, attack="contents", **quick)
    assert {"contents"} == {*audited.findings[audited.findings.metric == "auroc"].signal}
    (path,) = tmp_path.rglob("contents.csv")
    table = pd.read_csv(path)
    assert len(table) == 16
    assert (table["rank"] == 1).sum() >= 8
    assert (table.control == 1).sum() == 0


def test_equations_that_tell_nothing_of_a_number_are_solved() -> None:
    """A row and column of zeros, and two equal ones, which a Cholesky factor alone refuses."""
    square = np.array([[2.0, 2.0, 0.0], [2.0, 2.0, 0.0], [0.0, 0.0, 0.0]])
    np.testing.assert_allclose(square @ _solved(square, np.array([1.0, 1.0, 0.0])), [1, 1, 0], atol=1e-6)
    np.testing.assert_allclose(_solved(np.eye(3) * 4, np.arange(3.0)), np.arange(3) / 4)
