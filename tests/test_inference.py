"""Attacks on prompts of a small federation: the truth never reaches them, equal models are attacked once, and what is learnt by heart is found."""

import dataclasses
import itertools
import pickle
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from fedaudit.attacks.attacked_models import OTHERS, SHADOWS_ASKED, Target
from fedaudit.attacks.base import View
from fedaudit.attacks.facts import ATTACKS
from fedaudit.attacks.lira import LiRA
from fedaudit.attacks.messages.prompts import ReplayedMessages
from fedaudit.attacks.messages.rebuild import Rebuilt
from fedaudit.attacks.questions import classes
from fedaudit.audits import membership
from fedaudit.audits.comparisons import ScoredModel, ScoredRun
from fedaudit.command import cli
from fedaudit.contracts import maple_toy
from fedaudit.contracts.knowledge_toy import toy_seen
from fedaudit.machinery.progress import Progress
from fedaudit.machinery.store import claim
from fedaudit.pipeline import permitted, shadow_models, targets
from fedaudit.pipeline.analysis import audit, sort_audits, subject_of
from fedaudit.pipeline.attacks import attack_training, scoring_jobs
from fedaudit.pipeline.methods import method_of
from fedaudit.pipeline.plan import Cell
from fedaudit.pipeline.question_plan import QuestionPlan
from fedaudit.pipeline.scoring import Scorer
from fedaudit.pipeline.shadow_trainings import ShadowRecipe, recipe_of, shadows_of, simulate, train_banks
from fedaudit.pipeline.trainings import train_all
from fedaudit.pipeline.workers import Workshop
from fedaudit.terms.threat_models import ACTIVE_SERVER
from fedaudit.trainers import maple
from fedaudit.trainers.base import Schedule
from fedaudit.trainers.learners import METHODS
from fedaudit.trainers.prompts import Facts, PromptMethod, Settings
from fedaudit.trainers.protocols import Bench
from tests import asking_toy, prompt_toy
from tests.asking_toy import Found
from tests.toy import trained

ADVERSARIES = tuple(t for t in Facts().threat_models if t != ACTIVE_SERVER)  # none of the attacks here acts
WORDS = (
    "--method dpfpl --epsilon none --attack lira,cosine --train 3 --test 1 --clients 3 --rounds 3 --shadows 4 --canaries 12 "
    "--observed-rounds 2 --threads 1 --quiet"
)
QUIET = Progress(quiet=True)


pytestmark = pytest.mark.usefixtures("unsafe_but_quick")


@dataclass(frozen=True, eq=False)
class Lab:
    """A trained cell with its shadow models, and what a worker holds."""

    cell: Cell
    workshop: Workshop
    bench: Bench

    @property
    def federation(self) -> Any:
        return self.workshop.federation

    def trained(self, seed: int = 0, attacks: str = "", adversary: Any = None, **changes: Any) -> Cell:
        """The cell of a changed plan (attacks by name, fields of the adversary) on these records, with its shadows."""
        plan = self.cell.plan
        changes |= {"attacks": {name: ATTACKS[name].params() for name in attacks.split()}} if attacks else {}
        changes |= (
            {} if adversary is None else {"adversary": dataclasses.replace(plan.adversary, targets=1, **adversary)}
        )
        cell = Cell(dataclasses.replace(plan, **changes), self.cell.method, seed)
        train_all([cell], self.workshop, QUIET)
        train_banks([cell], self.workshop, QUIET)
        return cell

    def attack(self, cell: Cell) -> Found:
        return asking_toy.attacked(self.bench, anew(cell, self.federation))


def anew(cell: Cell, federation: Any, targets: int = 2) -> QuestionPlan:
    """What the adversaries of a cell ask about its first targets, as if nobody had asked yet."""
    asking, place = QuestionPlan.of(cell, federation), cell.plan.out / "anew" / str(next(PLACES))
    asked = {"targets": asking.targets[:targets]}
    return dataclasses.replace(asking, folder=place / "answers", bank_folder=place / "shadows", **asked)


PLACES = itertools.count()


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    plan = cli.read_command([*WORDS.split(), "--out", str(tmp_path_factory.mktemp("out"))]).plan
    with Workshop(plan, QUIET) as workshop:
        (bench,) = workshop.executor.map(lambda bench, _: bench, [None])
        made = Lab(plan.cells[0], workshop, bench)
        made.trained()
        yield made


@pytest.fixture(scope="module")
def watched(lab: Lab) -> Any:
    """What an attack on the cell found, models that LiRA attacked, each with its shadows, and who read messages."""
    lira, messages, honest = Counter[bytes](), list[str](), LiRA.score

    def score(attack: LiRA, seen: Any) -> Any:
        lira[seen.log_probs.tobytes() + seen.shadows.confidence.tobytes()] += 1
        return honest(attack, seen)

    def read(view: View, *args: Any) -> ReplayedMessages:
        messages.append(view.threat_model)
        return ReplayedMessages(view, *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LiRA, "score", score)
        patch.setattr(classes, "ReplayedMessages", read)
        return SimpleNamespace(found=lab.attack(lab.cell), lira=lira, messages=messages)


@pytest.fixture(scope="module")
def found(watched: Any) -> Found:
    return watched.found


def inverted(federation: Any) -> Any:
    """The same records, and everybody who was a member is held out."""
    clients = [dataclasses.replace(c, member=~c.member, canary_included=~c.canary_included) for c in federation.clients]
    return dataclasses.replace(federation, clients=tuple(clients))


class TestTruth:
    def test_scores_are_the_same_whoever_the_members_are(self, lab: Lab, found: Found) -> None:
        """Every table of the first target, exactly."""
        other = inverted(lab.federation)
        assert other.truth == {record: not member for record, member in lab.federation.truth.items()}
        again = asking_toy.attacked(lab.bench, anew(lab.cell, other, targets=1))[0]
        assert again.keys() == found[0].keys() == set(ADVERSARIES)
        for view, tables in found[0].items():
            assert again[view].keys() == tables.keys() == {"scores", "base", "facts", "shadow_targets"}
            for name, table in tables.items():
                pd.testing.assert_frame_equal(again[view][name], table, check_exact=True)

    def test_questions_and_scoring_jobs_hold_nothing_of_it(self, lab: Lab, found: Found) -> None:
        """With everything that their fields lead to they are the same bytes whoever the members are."""
        held = []
        for federation in (lab.federation, inverted(lab.federation)):
            asking = QuestionPlan.of(lab.cell, federation)
            for source in asking.sources:
                prompt = {"prompt": torch.zeros(1)}
                source.rebuilt["server"] = [Rebuilt(k, "rebuilt", prompt, None, None, None) for k in range(3)]
            asked = [question_set for target in asking.targets for question_set in asking.question_sets(target)]
            assert [question_set.threat_model for question_set in asked] == 2 * [*ADVERSARIES]
            views = [view for source in asking.sources for view in source.views.values()]
            questions = [*asking.replay_questions(asking.training)], [[*one.questions()] for one in asked]
            held.append(pickle.dumps([views, questions, scoring_jobs(asking, asked)]))
        assert held[0] == held[1]


class TestOnce:
    """What several attacks, adversaries or targets need is computed once."""

    def test_equal_models_are_attacked_once(self, watched: Any) -> None:
        """A target's prompt as its user and its owner have it, as the server rebuilds it, and the released one; with the shadows of
        either kind also the start of training and four shadows."""
        assert watched.lira.total() == 2 * (2 + 1 + 2 * (1 + 4))
        assert set(watched.lira.values()) == {1}
        for tables in watched.found.values():
            pd.testing.assert_frame_equal(tables["prompt-user"]["scores"], tables["owner"]["scores"])

    def test_messages_are_read_once_for_all_targets(self, watched: Any) -> None:
        assert watched.messages == ["server", "server"]  # of the training, and of its twin


class TestTables:
    def test_every_record_is_asked_about_by_every_adversary(self, lab: Lab, found: Found) -> None:
        for asked in targets.targets_of(lab.cell, lab.federation):
            for view, tables in found[asked.client].items():
                scores = tables["scores"]
                lira = ["lira/online", "lira/offline"]
                assert list(scores) == [*lira, *["cosine/mean", "cosine/max"] * (view == "server")]
                assert list(scores.index) == list(asked.records)
                assert list(tables["base"]) == list(scores)
                assert scores["lira/offline"].notna().sum() > 0.9 * len(scores)

    def test_members_of_pseudo_targets_are_those_of_the_shadows(self, lab: Lab, found: Found) -> None:
        """Some shadows in the attacked model's place, and for messages the federation that was simulated; reference records are in none."""
        recipe = recipe_of(lab.cell, lab.federation)
        for asked in targets.targets_of(lab.cell, lab.federation):
            shadows = shadows_of(lab.bench, recipe, asked.client).member
            number, method, client = shadow_models.SIMULATED, recipe.method, asked.client
            whole, seed = recipe.simulated(number), recipe.seed
            simulated = shadow_models.members(lab.bench, method, whole, client, seed=seed, shadows=[number])
            own = [*asked.candidates, *asked.reference]
            for view, tables in found[asked.client].items():
                shadow_targets = tables["shadow_targets"]
                expected = np.concatenate([shadows[:SHADOWS_ASKED], *[simulated] * (view == "server")])
                expected = np.pad(expected, ((0, 0), (0, len(asked.reference))))
                assert list(shadow_targets.index) == own * len(expected)
                assert (shadow_targets.member.to_numpy().reshape(expected.shape) == expected).all()

    def test_the_last_loss_of_a_trajectory_is_that_of_the_owners_prompt(self, lab: Lab, found: Found) -> None:
        """All clients take part in every round, so the last one's aggregate is in it; the first is of the public start."""
        attack = attack_training(lab.trained(attacks="loss", adversary={}), lab.workshop, QUIET)
        table = attack.tables()["trajectories"].query("client == 'client-00' and record == 'mean'")
        asked, owner, kinds = attack.question_plan.targets[0], found[0]["owner"]["facts"], attack.run.kinds(0)
        for kind in ("member", "held-out"):
            path = table[table.kind == kind].set_index("round").loss
            records = [record for record in asked.candidates if kinds[record] == kind]
            assert list(path.index) == [0, 1, 2, 3]
            assert path[3] == pytest.approx(owner.loss[records].mean(), abs=1e-5)
            assert path[0] == pytest.approx(owner.base_loss[records].mean(), abs=1e-5)


class TestShadowKinds:
    def test_whole_federations_take_the_shadow_clients_place(self, lab: Lab) -> None:
        cell = lab.trained(rounds=2, adversary={"shadow_kind": "federations"})
        assert {path.name for path in cell.bank_folder.iterdir()} == {f"federation-00{s}" for s in range(4)}
        found = lab.attack(cell)[0]
        assert found.keys() == set(ADVERSARIES)
        recipe = recipe_of(cell, lab.federation)
        shadows = shadows_of(lab.bench, recipe, 0)
        for s in range(4):
            torch.testing.assert_close(shadows.personal[s], recipe.simulated(s).released(0))
        twin = found["server"]["shadow_targets"].dropna(subset=["cosine/mean"]).member
        asked = lab.bench.candidates[0]
        assert twin[asked].tolist() == shadows.member[0].tolist()  # the first federation stands in for the attacked one

    def test_only_the_server_observes_messages(self, lab: Lab) -> None:
        """The others' attacks need no shadows, or are refused; there is no federation to compare attacks on messages with."""
        cell = lab.trained(rounds=2, adversary={"trajectory": "observed"})
        assert {path.name for path in cell.bank_folder.iterdir()} == {"client-000-from-000"}
        found = lab.attack(cell)[0]
        assert found.keys() == {"server"}
        assert list(found["server"]["scores"]) == ["lira/online", "lira/offline", "cosine/mean", "cosine/max"]
        assert list(found["server"]["base"]) == ["lira/online", "lira/offline"]
        assert "cosine/mean" not in found["server"]["shadow_targets"]
        assert recipe_of(cell, lab.federation).others[0].folder.path == cell.training_folder


def test_attacks_beside_others_score_as_they_do_alone(lab: Lab) -> None:
    """Of the same shadows some adversaries learn the outputs only, others also confidences over rounds and
    parameters."""
    names = "lira trajectory outputfree"
    together = lab.attack(lab.trained(rounds=2, attacks=names, adversary={"shadows": 4}))[0]
    for name in names.split():
        alone = lab.attack(lab.trained(rounds=2, attacks=name, adversary={"shadows": 4}))[0]
        assert alone.keys() <= together.keys()
        for view, tables in alone.items():
            for kind in ("scores", "base"):
                columns = list(tables[kind])
                pd.testing.assert_frame_equal(together[view][kind][columns], tables[kind], check_exact=True)


def test_the_first_message_names_its_batch_and_the_twin_is_its_control(lab: Lab) -> None:
    """Exact but for canaries of weight 0; base column and thresholds are of a federation that was simulated."""
    cell = lab.trained(attacks="decompose lira", adversary={"solved_rounds": 1})
    method, found = method_of(cell, lab.federation.sizes), lab.attack(cell)
    (asked,) = targets.targets_of(cell, lab.federation)
    assert not asked.complete  # some canaries weigh 0
    tables, client = found[asked.client]["server"], lab.federation.clients[asked.client]
    scores, listed = tables["scores"].decompose, [record.id for record in client.training_records]
    batch = method.messages.used_records(listed, client=asked.client, seed=cell.seed, rounds=[0], settings=None)
    first = batch - client.left_out
    assert set(scores.sort_values(ascending=False).index[: len(first)]) == first
    assert scores[list(asked.others)].isna().all()
    assert scores[list(asked.own)].notna().all()
    assert tables["batches"]["round"].tolist() == [0]
    assert tables["batches"].residual[0] < 1e-4
    twin = tables["base"].decompose[list(asked.own)]
    assert twin.notna().all()
    assert set(twin[twin > 0.5].index) != first
    shadow_targets = tables["shadow_targets"].dropna(subset=["decompose"])
    assert len(shadow_targets) == len(asked.own)
    # of the simulated federation the adversary knows who
    assert shadow_targets.member[shadow_targets.decompose > 0.5].all()


SEES = {
    "sums": "does not see sums of uploads (these do: server, active-server, clustering-server)",
    "broadcasts": "does not see broadcasts "
    "(these do: released-model, peer, server, active-server, clustering-server, colluding-users, owner)",
}
OBSERVED = "only the server observes the other clients' messages (--trajectory)"
SENDS, TRAINS = "this method sends nothing", "this method trains nothing"
ATTACKED = ("cosine", "slope", "loss", "lira")
USUAL: dict[str, dict[str, str]] = {  # why some of these do not run
    "prompt-user": {"cosine": SEES["sums"], "slope": SEES["broadcasts"]},
    "released-model": {"cosine": SEES["sums"]},
    "server": {},
    "owner": {"cosine": SEES["sums"]},
}
NOTHING_SENT = dict.fromkeys(ATTACKED, SENDS)
REFUSED = {
    "--method dpfpl": USUAL,
    "--method local": USUAL | {
        "released-model": NOTHING_SENT, "server": NOTHING_SENT, "owner": {"cosine": SEES["sums"], "slope": SENDS},
    },
    "--method zeroshot": dict.fromkeys(ADVERSARIES, dict.fromkeys(ATTACKED, TRAINS)),
    "--method dpfpl --trajectory observed": {
        name: why if name == "server" else why | {"lira": OBSERVED} for name, why in USUAL.items()
    },
}  # fmt: skip


@pytest.mark.parametrize("words", REFUSED)
def test_what_does_not_run_says_why(words: str) -> None:
    (cell,) = cli.read_command([*words.split(), "--attack", ",".join(ATTACKED), "--epsilon", "none"]).plan.cells
    for threat_model, why in REFUSED[words].items():
        sees = {text: f"the threat model {threat_model} {text}" for text in SEES.values()}
        expected = {attack: sees.get(text, text) for attack, text in (dict.fromkeys(ATTACKED) | why).items()}
        assert permitted.refusal_reasons(cell, threat_model) == expected, threat_model


@pytest.mark.parametrize(
    ("words", "targets"), [("loss", 5), ("loss,lira", 2), ("loss,lira --targets 3", 3), ("loss --targets 1", 1)]
)
def test_two_clients_are_attacked_where_each_takes_shadow_models(words: str, targets: int) -> None:
    plan = cli.read_command(f"--method dpfpl --clients 5 --no-twin --attack {words}".split()).plan
    assert plan.cells[0].targets == [*range(targets)]


def test_questions_are_about_own_candidates_reference_and_a_sample_of_the_others(lab: Lab) -> None:
    federation = lab.federation
    asked = targets.targets_of(lab.cell, federation)
    assert [question.client for question in asked] == [0, 1]
    for question in asked:
        own = federation.clients[question.client]
        strangers = [client for client in federation.clients if client is not own]
        others = {r.id for client in strangers for r in (*client.records, *client.reference)}
        assert list(question.candidates) == [r.id for r in (*own.records, *own.canaries)]
        assert list(question.reference) == [r.id for r in own.reference]
        assert set(question.others) <= others
        assert len(set(question.others)) == len(question.others) == min(OTHERS, len(others))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(targets, "OTHERS", 5)
        drawn, again = (targets.targets_of(lab.cell, federation)[0].others for _ in range(2))
        other_seed = Cell(dataclasses.replace(lab.cell.plan, seed=1), lab.cell.method, 1)
        assert len(drawn) == 5
        assert drawn == again
        assert drawn != targets.targets_of(other_seed, federation)[0].others


class TestOneRound:
    """A training of one round takes one batch: the other training records are neither members nor held out."""

    @staticmethod
    def audited(lab: Lab, batch: int, seed: int = 0) -> tuple[Cell, list[Any], dict[str, pd.DataFrame]]:
        settings = dataclasses.replace(lab.cell.plan.settings, batch=batch)
        cell = lab.trained(seed, "loss source", {}, rounds=1, settings=settings)
        attack = attack_training(cell, lab.workshop, QUIET)
        subject = subject_of(cell, attack.run, lab.workshop)
        for name in sort_audits(cell):
            subject = dataclasses.replace(subject, before={**subject.before, name: audit(cell, name, subject)})
        return cell, list(subject.before["membership"].findings), attack.tables()

    def test_members_are_those_of_the_coin_whatever_a_batch_held(self, lab: Lab) -> None:
        cell, findings, tables = self.audited(lab, 8)
        client = lab.federation.clients[0]
        seen = targets.trained_records(cell, lab.federation, 0)
        members = {r.id for r, inside in client.labelled_candidates if inside}
        assert seen < members
        table = tables["records"][tables["records"].threat_model == "owner"]
        kinds = {kind: set(of_kind.record) for kind, of_kind in table.groupby("kind")}
        candidates, canaries = ({r.id for r in records} for records in (client.records, client.canaries))
        out = {r.id for r, inside in client.labelled_candidates if not inside}
        assert kinds["member"] == members & candidates
        assert kinds["held-out"] == out & candidates
        assert kinds.get("canary", set()) == members & canaries
        assert kinds.get("left-out canary", set()) == out & canaries
        held_out = [f for f in findings if f.metric == "auroc" and f.nonmembers == "held-out"]
        expected = {"own members": len(members & candidates), "members that trained": len(seen & candidates)}
        assert {f.population: f.members for f in held_out} == expected
        assert {f.nonmembers_n for f in held_out} == {len(out & candidates)}
        for f in held_out:
            assert (f.z is None) == (f.population == "members that trained")
            assert f.verdict is None  # the report's, and of what depends on the coins none
            assert not (f.headline and f.z is None)

    def test_members_that_trained_are_not_measurable_where_no_batch_held_any(self, lab: Lab) -> None:
        """Its batch is a single record, a canary."""
        plan, client = lab.cell.plan, lab.federation.clients[0]
        single = dataclasses.replace(plan, settings=dataclasses.replace(plan.settings, batch=1))
        records, canaries = ([r.id for r in part] for part in (client.training_records, client.canaries))
        used = method_of(Cell(single, lab.cell.method, 0), lab.federation.sizes).messages.used_records
        asked: dict[str, Any] = {"client": 0, "rounds": [0], "settings": None}
        seed = next(s for s in range(99) if used(records, seed=s, **asked) <= {*canaries})
        _, findings, tables = self.audited(lab, 1, seed=seed)
        table = tables["records"]
        assert set(table.kind) == {"member", "held-out", "canary", "left-out canary", "reference", "other client"}
        own = [f for f in findings if f.metric == "auroc" and f.population == "members that trained"]
        assert own
        assert all(f.status.startswith("not measurable") and f.value is None and f.verdict is None for f in own)
        assert list(tables["attribution"].kind) == ["member", "held-out"]


RECORDS, KNOWN = 20, 6  # of each client
SIZES = 3 * (RECORDS + KNOWN,)
ROUNDS, SHADOWS = {"fedotp": 30, "dp2fl": 1}, 6  # of dual prompts, which take many steps in a round
SCORES = {"fedotp": "lira/online", "dp2fl": "loss"}  # dual prompts learn so much that no shadows are needed


def steps_of(name: str) -> tuple[Any, Any]:
    """A method and its learner at rates at which random pictures are learnt by heart."""
    plugin = METHODS[name]
    if plugin.facts.learner == "maple":
        dual = maple.Settings(prompt_length=4, batch=10, local_epochs=0, local_steps=60, rate=0.5)
        return plugin.make(plugin.params()), maple_toy.learner(dual, SIZES, test=1)
    settings = Settings(prompt_length=4, batch=10, global_rate=1, local_rate=1)
    return plugin.make(plugin.params(), settings=settings), prompt_toy.federation(SIZES, test=1).learner(settings)


def learnt_by_heart(name: str, path: Path) -> tuple[Bench, QuestionPlan]:
    """Two targets of three clients with random pictures and labels, trained for long, with the shadows of both if they are needed, and what the owner asks."""
    rounds, world = ROUNDS[name], prompt_toy.federation(SIZES, test=1)
    schedule, (method, learner) = Schedule(rounds, 3, 3, seed=1), steps_of(name)
    candidates, reference = ([ids[i] for ids in world.training] for i in (slice(RECORDS), slice(RECORDS, None)))
    drawn = [shadow_models.coins(3, 1, k, RECORDS) for k in range(3)]
    members = [[r for r, m in zip(*pair, strict=True) if m] for pair in zip(candidates, drawn, strict=True)]
    if isinstance(method, PromptMethod):
        method = method.protected(prompt_toy.NONE, schedule, [*map(len, members)])
    bench = Bench(learner, members, world.test, candidates=candidates)
    transcript = trained(path / "run", method, schedule, bench)
    asked = [Target(k, candidates[k], reference[k], reference[2]) for k in (0, 1)]
    attack = SCORES[name].partition("/")[0]
    views = {"owner": {attack: ATTACKS[attack].params()}}
    if attack == "loss":
        return bench, asking_toy.asking(path, "classes", method, transcript, asked, views)
    recipe = ShadowRecipe(method, schedule, path / "bank", None, False, True, SHADOWS, 1, 5, {})
    simulate(bench.attack_bench, (recipe, shadow_models.SIMULATED, True, rounds, True))
    for k in (0, 1):
        folder = claim(recipe.client(k, range(SHADOWS)))
        shadow_models.train_shadows(
            bench, method, recipe.others, k, folder, seed=5, shadows=range(SHADOWS), until=rounds, say=print
        )  # fmt: skip
    return bench, asking_toy.asking(path, "classes", method, transcript, asked, views, recipe)


@pytest.fixture(scope="module", params=ROUNDS)
def attacked(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ScoredRun:
    bench, job = learnt_by_heart(request.param, tmp_path_factory.mktemp("leak"))
    found = asking_toy.attacked(bench, job)
    used, rounds = job.method.messages.used_records, job.transcript.schedule.rounds
    same: dict[str, Any] = {"seed": 1, "rounds": [0, 1], "settings": bench.learner.settings}
    trained = {k: used(bench.training[k], client=k, **same) for k in found}
    run = ScoredRun(
        models=[ScoredModel("owner", "true state", k, rounds, **views["owner"]) for k, views in found.items()],
        signals={SCORES[request.param]: "attack"},
        headlines={"attack": (SCORES[request.param],)},
        few=True,
        blind={},
        records={asked.client: asked.candidates for asked in job.targets},
        reference={asked.client: asked.reference for asked in job.targets},
        others={k: [] for k in found},
        truth={r: r in trained[asked.client] for asked in job.targets for r in asked.candidates},
        group=dict.fromkeys((r for asked in job.targets for r in asked.records), "any"),
    )
    return blindly(run)


class TestPlantedLeak:
    """Random pictures with random labels can only be learnt by heart."""

    @staticmethod
    def row(run: ScoredRun) -> Any:
        words = {"run": "r", "method": "fedotp", "task": "toy", "seed": 0}
        found = membership.findings(run, membership.Params(), names=words, epsilon=lambda _: {})
        return next(f for f in found if f.metric == "auroc" and not f.best_of)

    def test_what_was_learnt_by_heart_is_found(self, attacked: ScoredRun) -> None:
        row = self.row(attacked)
        assert row.value > 0.7
        assert row.low > 0.5
        assert row.verdict in ("leak", "inconclusive")  # no coin decided, and records are few
        assert row.base_value < row.low

    def test_it_is_not_found_in_other_labels(self, attacked: ScoredRun) -> None:
        right = self.row(attacked)
        swapped = {r: not m for r, m in attacked.truth.items()}
        wrong = self.row(blindly(dataclasses.replace(attacked, truth=swapped)))
        assert wrong.value == pytest.approx(1 - right.value)
        assert wrong.high < 0.5
        rng = np.random.default_rng(0)
        coins = [{r: bool(rng.random() < 0.5) for r in attacked.truth} for _ in range(12)]
        chance = [self.row(blindly(dataclasses.replace(attacked, truth=truth))) for truth in coins]
        assert abs(np.mean([row.value for row in chance]) - 0.5) < 0.1
        assert sum(row.low > 0.5 for row in chance) <= 2


def blindly(run: ScoredRun) -> ScoredRun:
    """With a blind control that guesses."""
    rng = np.random.default_rng(1)
    return dataclasses.replace(run, blind={place: {r: rng.random() for r in row} for place, row in run.rows.items()})


def test_shadows_of_the_twins_own_federation_do_not_judge_it() -> None:
    knowledge, member = toy_seen(leak=1.0)
    trajectory = np.arange(len(knowledge.shadows.member)) % 3
    knowledge = dataclasses.replace(knowledge, shadows=dataclasses.replace(knowledge.shadows, trajectory=trajectory))
    questions: Any = SimpleNamespace(
        twin=SimpleNamespace(knowledge=lambda: knowledge), drawn=SimpleNamespace(read=lambda _: {"member": member}),
        target=SimpleNamespace(of_records=lambda values: values),
    )  # fmt: skip
    twin = Scorer._twin(None, questions, knowledge)
    assert {*twin[0].shadows.trajectory.tolist()} == {1, 2}
