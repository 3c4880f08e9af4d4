"""Shadow models: a shadow in the target's place does what the target did, and its members are really those that it was trained on."""

import dataclasses
import functools
import itertools
import math
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedaudit.machinery.store import claim
from fedaudit.pipeline import shadow_models, trainings
from fedaudit.pipeline.shadow_trainings import ShadowRecipe, simulate
from fedaudit.privacy.settings import Privacy
from fedaudit.trainers.base import Participation, Schedule
from fedaudit.trainers.prompts import Step
from fedaudit.trainers.protocols import Bench
from fedaudit.trainers.transcript import Transcript
from tests import prompt_toy

SEED = 6
PRIVATE = Privacy(epsilon=50.0)
TRAINED = [name for name, plugin in prompt_toy.METHODS.items() if plugin.facts.trains and not plugin.facts.on_shares]
RANK = {"dpfpl": {"rank": 2}, "fedpgp": {"rank": 2}}  # prompts here have four vectors
SCHEDULES = {
    "all": Schedule(rounds=3, clients=3, per_round=3, seed=1),
    "some": Schedule(rounds=5, clients=3, per_round=2, seed=1),  # the target is there at first and in the end
}
PRIVACIES = {"clear": prompt_toy.NONE, "private": PRIVATE}
CASES = [  # quick: every method once, DP-FPL with each of the two schedules and privacies; slow: all of them
    pytest.param(name, who, how, marks=() if (who, how) == pair or name == "dpfpl" else pytest.mark.slow)
    for name, pair in zip(TRAINED, itertools.cycle(itertools.product(SCHEDULES, PRIVACIES)))
    for who in SCHEDULES
    for how in PRIVACIES
]
TWO_ROUNDS = Schedule(rounds=2, clients=3, per_round=3, seed=1)
BLOCK = 2
CANARIES = frozenset({"0-6", "0-7", "0-8", "0-9", "1-4", "1-5", "2-2"})


@pytest.fixture
def short_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs of two rounds."""
    for module in (trainings, shadow_models):
        monkeypatch.setattr(module, "BLOCK", BLOCK)


def bench_of(world: prompt_toy.Federation, method: Any, canaries: frozenset[str] = CANARIES) -> Bench:
    learner, training = world.learner(method.settings), world.training
    return Bench(learner, training, world.test, candidates=training, canaries=canaries)


def recipe_at(path: Path, method: Any, schedule: Schedule, bench: Any = None, numbers: Any = (), **more: Any) -> Any:
    """A recipe of shadow models; the federations of these numbers are simulated."""
    recipe = dataclasses.replace(ShadowRecipe(method, schedule, path, None, True, True, 3, 1, SEED, {}), **more)
    for number in numbers:
        simulate(bench, (recipe, number, True, schedule.rounds, True))
    return recipe


def simulated(path: Path, method: Any, schedule: Schedule, bench: Bench) -> Transcript:
    number = shadow_models.SIMULATED
    return recipe_at(path, method, schedule, bench.attack_bench, [number]).simulated(number)


train_shadows = functools.partial(shadow_models.train_shadows, seed=SEED, say=print)


def shadows_at(path: Path, bench: Any, method: Any, others: Any, number: int, until: int) -> shadow_models.ShadowModels:
    """Shadows of the first client, trained to the end and read again."""
    folder, some = claim(path), range(number)
    train_shadows(bench, method, others, 0, folder, shadows=some, until=until)
    return shadow_models.shadows_of(bench, method, others, 0, {some: folder}, seed=SEED)


def watched_batches(patch: Any, world: Any, whose: Callable[[int, Any], int]) -> dict[int, set[str]]:
    """Seen from inside training: the records that enter a gradient with a weight; `whose` says whose they are by the
    place in the cohort and the participation there."""
    entered: dict[int, set[str]] = defaultdict(set)
    name = {tuple(row.tolist()): record for record, row in zip(world.ids, world.features, strict=True)}
    honest = Step.gradient

    def watched(cohort: Step, prompt: Any) -> Any:
        for i, client in enumerate(cohort.clients):
            rows = cohort.batch.images[:, i][cohort.batch.weights[:, i] > 0]
            entered[whose(i, client)] |= {name[tuple(row.tolist())] for row in rows}
        return honest(cohort, prompt)

    patch.setattr(Step, "gradient", watched)
    return entered


close = functools.partial(torch.testing.assert_close, atol=2e-5, rtol=2e-5)


def check_replayed(bench: Any, method: Any, along: list[Transcript], client: int, lists: Any) -> None:
    """With the others' recorded messages, a target's recomputed ones give each federation, round by round."""
    seeds = [one.schedule.seed for one in along]
    servers, owns = [one.broadcast(0) for one in along], list[Any]([{}] * len(along))
    for r in range(along[0].schedule.rounds):
        servers, owns = shadow_models._round(bench, method, along, client, r, servers, owns, lists, seeds)
        for one, server in zip(along, servers, strict=True):
            close({key: server[key] for key in one.broadcast(r + 1)}, one.broadcast(r + 1))
    for one, server, own in zip(along, servers, owns, strict=True):
        close(method.model(one.broadcast(0) | server | own)["prompt"], one.released(client)["prompt"])


@pytest.mark.parametrize(("name", "who", "how"), CASES)
def test_a_shadow_with_the_targets_members_and_chance_is_the_target(
    name: str, who: str, how: str, tmp_path: Path
) -> None:
    method = prompt_toy.made(name, RANK.get(name, {}), PRIVACIES[how], SCHEDULES[who])
    bench, client = bench_of(prompt_toy.federation(), method), 1 if who == "some" else 0
    others, asked = simulated(tmp_path, method, SCHEDULES[who], bench), bench.candidates[client]
    drawn = shadow_models.coins(SEED, shadow_models.SIMULATED, client, len(asked))
    members = [r for r, kept in zip(asked, drawn, strict=True) if kept or r in CANARIES]
    left_out = frozenset(r for r, kept in zip(asked, drawn, strict=True) if not kept and r in CANARIES)
    assert left_out
    assert len(others.participations(client)) == (2 if who == "some" else 3)
    check_replayed(bench, method, [others], client, [(members, left_out)])


def test_each_shadow_goes_along_its_own_trajectory(tmp_path: Path) -> None:
    """The targets of two federations, side by side as one problem."""
    method, numbers = prompt_toy.made("dpfpl", {"rank": 2}), [shadow_models.SIMULATED + i for i in (0, 1)]
    bench = bench_of(prompt_toy.federation(), method).attack_bench
    recipe = recipe_at(tmp_path, method, SCHEDULES["all"], bench, numbers)
    along = [recipe.simulated(number) for number in numbers]
    assert not torch.equal(along[0].broadcast(0)["p_G"], along[1].broadcast(0)["p_G"])  # where all take part
    check_replayed(bench, method, along, 1, [shadow_models._list(bench, 1, SEED, number) for number in numbers])


def test_shadows_are_dealt_evenly_and_keep_their_start_and_broadcasts(tmp_path: Path, short_blocks: None) -> None:
    schedule = Schedule(rounds=BLOCK + 1, clients=3, per_round=3, seed=1)
    method, world = prompt_toy.made("fedotp", {}, prompt_toy.NONE, schedule), prompt_toy.federation()
    bench = bench_of(world, method).attack_bench
    recipe = recipe_at(tmp_path, method, schedule, whole=False, trajectories=2)
    for number in recipe.federations:
        simulate(bench, (recipe, number, True, schedule.rounds, True))
    train_shadows(bench, method, recipe.others, 0, claim(tmp_path / "client"), shadows=range(5), until=BLOCK)
    found = shadows_at(tmp_path / "client", bench, method, recipe.others, 5, schedule.rounds)  # what was kept is read
    assert found.trajectory.tolist() == [0, 1, 0, 1, 0]
    assert shadow_models.sequence_rounds(schedule.rounds) == list(range(1, schedule.rounds + 1))
    along = [recipe.others[t] for t in found.trajectory]
    servers: list[Any] = [one.broadcast(0) for one in along]
    owns: list[Any] = [{}] * 5
    lists = [shadow_models._list(bench, 0, SEED, s) for s in range(5)]
    seeds = [shadow_models.simulated_schedule(schedule, SEED, s).seed for s in range(5)]
    for s, one in enumerate(along):
        torch.testing.assert_close(found.start[s], method.model(one.broadcast(0)))
    for r in range(schedule.rounds):
        servers, owns = shadow_models._round(bench, method, along, 0, r, servers, owns, lists, seeds)
        for s, one in enumerate(along):
            torch.testing.assert_close(found.sequence[s][r], method.model(one.broadcast(0) | servers[s]))
    for s in range(5):
        torch.testing.assert_close(found.sequence[s][-1], found.released[s])


@pytest.mark.parametrize("rounds", [1, 3, 20, 21, 100, 999])
def test_a_sequence_is_of_all_rounds_or_spread_over_them(rounds: int) -> None:
    found, number = shadow_models.sequence_rounds(rounds), min(rounds, shadow_models.SEQUENCE)
    assert (len(found), found[0], found[-1]) == (number, 1, rounds)
    assert number == 1 or max(np.diff(found)) - min(np.diff(found)) <= 1


def test_a_prompt_in_a_message_moves_with_the_shadows_own_server(tmp_path: Path) -> None:
    """PromptFL's clients send p_G after a step: what they add to the server's prompt is kept, and the average is the shadow's own."""
    method, world = prompt_toy.made("promptfl", {}), prompt_toy.federation()
    bench = bench_of(world, method)
    others = simulated(tmp_path, method, TWO_ROUNDS, bench)
    shift = torch.full_like(others.broadcast(0)["p_G"], 0.25)
    server = {"p_G": others.broadcast(0)["p_G"] + shift}
    asked = list(bench.candidates[0])
    moved, _ = shadow_models._round(bench, method, [others], 0, 0, [server], [{}], [(asked, frozenset())], [3])
    working = Participation(0, 0, 3, asked, bench.learner, [])
    (own,) = bench.learner.work(method, [server], [server], [working])
    recorded = others.uploads(0)
    sizes = [len(asked), *(others.round(0)["uploads"][str(k)]["records"] for k in (1, 2))]
    states = [own.upload["p_G"], recorded[1]["p_G"] + shift, recorded[2]["p_G"] + shift]
    expected = sum(n * state for n, state in zip(sizes, states, strict=True)) / sum(sizes)
    torch.testing.assert_close(moved[0]["p_G"], expected, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("sampler", ["epochs", "poisson"])
@pytest.mark.parametrize("rounds", [1, 3])
def test_every_member_was_in_a_batch(rounds: int, sampler: str, tmp_path: Path, monkeypatch: Any) -> None:
    schedule = Schedule(rounds=rounds, clients=3, per_round=3, seed=1)
    method = prompt_toy.made("dpfpl", {"rank": 2}, Privacy(epsilon=math.inf, sampler=sampler), schedule)
    world = prompt_toy.federation()
    entered = watched_batches(monkeypatch, world, lambda _, client: client.client)
    prompt_toy.run(tmp_path, method, world, schedule)
    for k, records in enumerate(world.training):
        asked = {"client": k, "seed": schedule.seed, "rounds": range(rounds), "settings": method.settings}
        assert method.messages.used_records(records, **asked) == entered[k]


def test_the_members_of_shadows_were_in_their_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    method, world = prompt_toy.made("fedotp", {}), prompt_toy.federation((24, 6, 3))
    bench, schedule = bench_of(world, method), TWO_ROUNDS
    others = simulated(tmp_path, method, schedule, bench)
    entered = watched_batches(monkeypatch, world, lambda s, _: s)
    found = shadows_at(tmp_path / "client", bench, method, [others], 6, until=2)
    for s, row in enumerate(found.member):
        assert {r for r, kept in zip(bench.candidates[0], row, strict=True) if kept} == entered[s]


def test_a_shadows_list_is_as_long_however_the_coins_of_its_canaries_fall() -> None:
    """As the target's: members as drawn, then every canary; those that were not drawn weigh 0."""
    bench = bench_of(prompt_toy.federation(), prompt_toy.made("fedotp", {})).attack_bench
    seen: set[str] = set()
    for s in range(20):
        for k, asked in enumerate(bench.candidates):
            drawn = {r for r, kept in zip(asked, shadow_models.coins(SEED, s, k, len(asked)), strict=True) if kept}
            listed, left_out = shadow_models._list(bench, k, SEED, s)
            assert listed == [r for r in asked if r in drawn | CANARIES]
            assert left_out == (CANARIES & set(asked)) - drawn
            seen |= left_out
    assert seen == CANARIES


def test_resumed_shadows_are_those_of_one_go(tmp_path: Path, short_blocks: None) -> None:
    schedule = Schedule(rounds=BLOCK + 1, clients=3, per_round=3, seed=1)
    method, world = prompt_toy.made("dpfpl", {"rank": 2}, PRIVATE, schedule), prompt_toy.federation()
    bench = bench_of(world, method)
    others = simulated(tmp_path, method, schedule, bench)

    def trained(path: Path, *stops: int) -> dict[str, bytes]:
        folder = claim(path)
        for until in stops:
            train_shadows(bench, method, [others], 1, folder, shadows=range(4), until=until)
        return {name: folder.read(name) for name in folder.names()}

    whole = trained(tmp_path / "whole", schedule.rounds)
    assert trained(tmp_path / "parts", BLOCK, schedule.rounds) == whole
    assert len(whole) == 1  # earlier files make room
    trained(tmp_path / "killed", BLOCK)
    killed = claim(tmp_path / "killed")
    for name, data in whole.items():  # killed when the last was written, and the one before not yet removed
        killed.write(name, data)
    assert len(killed.names()) == 2
    assert trained(tmp_path / "killed", schedule.rounds) == whole


def test_how_many_train_together_changes_nothing(tmp_path: Path) -> None:
    found, method = [], prompt_toy.made("dpfpl", {"rank": 2})
    for together in (2, 50):
        bench = bench_of(prompt_toy.federation(), method)
        prompt_toy.taking(together, bench.learner, method)
        others = simulated(tmp_path / str(together), method, TWO_ROUNDS, bench)
        found.append(shadows_at(tmp_path / f"client-{together}", bench, method, [others], 5, until=2))
    close(found[0].personal, found[1].personal)
    assert (found[0].member == found[1].member).all()


def test_shadows_in_two_parts_are_those_of_one(tmp_path: Path) -> None:
    """Where a learner does not take clients together they are as many jobs as there are trajectories."""
    method = prompt_toy.made("dpfpl", {"rank": 2})
    bench = bench_of(prompt_toy.federation(), method).attack_bench
    whole = recipe_at(tmp_path, method, TWO_ROUNDS, whole=False, shadows=5, trajectories=2)
    apart = dataclasses.replace(whole, together=False)
    assert (whole.parts, apart.parts) == ([range(5)], [range(3), range(3, 5)])
    for number in whole.federations:
        simulate(bench, (whole, number, True, 2, True))
    found = []
    for recipe in (whole, apart):
        parts = {some: claim(tmp_path / f"{recipe.together}" / f"{some[0]}") for some in recipe.parts}
        for some, folder in parts.items():
            train_shadows(bench, method, recipe.others, 0, folder, shadows=some, until=2)
        found.append(shadow_models.shadows_of(bench, method, recipe.others, 0, parts, seed=SEED))
    one, two = found
    assert one.trajectory.tolist() == two.trajectory.tolist() == [0, 1, 0, 1, 0]
    assert (one.member == two.member).all()
    assert len(one.sequence) == 5
    for name in ("start", "personal", "released", "sequence"):
        close(getattr(one, name), getattr(two, name))


def test_whole_federations_stand_in_for_shadow_clients(tmp_path: Path) -> None:
    schedule, world = TWO_ROUNDS, prompt_toy.federation()
    method = prompt_toy.made("fedpgp", {"rank": 2})
    bench = bench_of(world, method)
    recipe = recipe_at(tmp_path, method, schedule, bench.attack_bench, range(2))
    runs = [recipe.simulated(s) for s in range(2)]
    found = shadow_models.shadows_of_federations(bench, method, runs, 0, seed=SEED)
    for s, run in enumerate(runs):
        torch.testing.assert_close(found.personal[s], run.personal(schedule.rounds - 1, 0))
        assert (found.member[s] <= shadow_models.coins(SEED, s, 0, len(world.training[0]))).all()
        assert found.trajectory[s] == s
        for r, model in zip(shadow_models.sequence_rounds(schedule.rounds), found.sequence[s], strict=True):
            torch.testing.assert_close(model, method.model(run.broadcast(0) | run.broadcast(r)))
    assert len({one.schedule.seed for one in runs}) == 2


def test_coins_are_fair_and_independent() -> None:
    """Every record is in about half of 400 shadows, and no two records or shadows go together."""
    drawn = np.stack([shadow_models.coins(SEED, s, 0, 40) for s in range(400)])
    assert abs(drawn.mean() - 0.5) < 4 * 0.5 / math.sqrt(drawn.size)
    assert np.abs(drawn.mean(0) - 0.5).max() < 4.5 * 0.5 / math.sqrt(400)
    off = np.corrcoef(drawn.T)[~np.eye(40, dtype=bool)]
    assert np.abs(off).max() < 5 / math.sqrt(400)
    assert (shadow_models.coins(SEED, 0, 0, 40) != shadow_models.coins(SEED, 0, 1, 40)).any()
    assert all(shadow_models.coins(SEED, s, 0, 1).all() for s in range(20))  # a shadow is trained on something
