"""One and several local steps of the prompt methods: against the slow oracle, the ledger against what the oracle wrote down while it noised,
epsilon against a second accountant, and what is refused."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fedaudit.attacks.base import View
from fedaudit.attacks.messages.prompts import ReplayedMessages
from fedaudit.audits.epsilon import ledger_of, privacy_table
from fedaudit.audits.tables.coverage import coverage_table
from fedaudit.command.cli import read_command
from fedaudit.pipeline.notes import cautions, limits
from fedaudit.privacy.accountant import noise_stds, provable
from fedaudit.privacy.ledger import Ledger
from fedaudit.privacy.settings import Privacy
from fedaudit.trainers.base import Schedule, generator
from fedaudit.trainers.prompts import Cohort, Facts, PromptMethod, Settings
from tests import prompt_oracle
from tests.gaussian import gaussian_epsilon, sampled_epsilon
from tests.prompt_toy import METHODS, NONE, PRIVACY, SETTINGS, close, federation, made, on_a_line, run

SCHEDULE = Schedule(rounds=2, clients=3, per_round=3, seed=1)
LOCAL = {
    "1 step": SETTINGS,
    "2 steps": dataclasses.replace(SETTINGS, local_steps=2),
    "3 steps": dataclasses.replace(SETTINGS, local_steps=3),
    "2 epochs": dataclasses.replace(SETTINGS, local_epochs=2),
}
WAYS = [way for way in PRIVACY if way != "batch, short"]
PARAMS: dict[str, dict[str, Any]] = {
    "dpfpl": {"rank": 2}, "fedpgp": {"rank": 2}, "fedprox": {"mu": 0.7}, "pfedme": {"inner": 2, "mixing": 0.8},
}  # fmt: skip
LEFT_OUT = frozenset({"0-1", "0-2", "0-7", "1-0", "1-5", "2-0"})
TRAINING = [name for name, plugin in METHODS.items() if plugin.facts.trains and not plugin.facts.on_shares]

pytestmark = pytest.mark.usefixtures("unsafe_but_quick")


def of(name: str, local: str, privacy: Privacy) -> PromptMethod:
    return made(name, PARAMS.get(name, {}), privacy, SCHEDULE, LOCAL[local])


# methods and ways to noise meet in tests/test_prompt_methods.py, over one local step
CASES = [
    pytest.param(
        name, local, privacy,
        # all three together; quick: two steps and two epochs with every method, and with every way to noise
        marks=() if local in ("2 steps", "2 epochs") and (i + several - j) % 6 == 0 else pytest.mark.slow,
    )
    for i, name in enumerate(TRAINING)
    for j, privacy in enumerate(WAYS)
    for several, local in enumerate(LOCAL)
]  # fmt: skip


@pytest.mark.parametrize(("name", "local", "privacy"), CASES)
def test_training_and_its_ledger_are_the_slow_oracles(tmp_path: Path, name: str, local: str, privacy: str) -> None:
    """Clients of 10, 6 and 3 records in batches of 4: in epochs they take 4, 2 and 2 steps, and train in groups. Over two
    steps some of the records weigh 0."""
    method, world = of(name, local, PRIVACY[privacy]), federation()
    if local == "2 steps":
        world = dataclasses.replace(world, left_out=LEFT_OUT)
    fast = run(tmp_path, method, world, SCHEDULE)
    oracle = prompt_oracle.oracle_of(name)(world, method.params, LOCAL[local], PRIVACY[privacy], SCHEDULE)
    prompt_oracle.same(fast, oracle.run())
    noised = math.isfinite(PRIVACY[privacy].epsilon)
    assert any("noise" in fast.round(r) for r in range(SCHEDULE.rounds)) == noised
    ledger = ledger_of(fast, method)
    if noised:
        agrees(ledger, oracle, PRIVACY[privacy], method)
    else:
        assert ledger.steps == ()
        assert provable(ledger, threat_model="owner", delta=1e-5).epsilon == math.inf


def agrees(ledger: Ledger, oracle: prompt_oracle.Slow, privacy: Privacy, method: PromptMethod) -> None:
    """Per client every release that the oracle noised is a mechanism of as many steps, as large; the server noises only what is central."""
    (step,) = ledger.steps
    assert {m.release for m in step if m.party == "server"} == set(method.central)
    far = 2 * oracle.settings.batch if privacy.clip == "batch" else 1  # what a record moves, in units of C / |B|
    listed = Counter((who, name, round(shift * far, 6)) for who, name, shift in oracle.drawn)
    ran: Counter[tuple[int | None, str, float]] = Counter()
    for m in step:
        by = {None: SCHEDULE.rounds} if m.party == "server" else {e.client: e.steps[0] for e in ledger.exposures}
        ran.update({(who, m.release, round(m.sensitivity / m.std, 6)): count for who, count in by.items()})
    assert ran == listed
    mu = math.hypot(*(m.sensitivity / m.std for m in step))
    for exposure in ledger.exposures:  # each client alone: the most exposed one may be in every sample
        alone = dataclasses.replace(ledger, exposures=(exposure,))
        told = {"threat_model": "owner", "delta": 1e-5}
        every, ran_so = (provable(alone, **told, every_step=each).epsilon for each in (True, False))
        assert every == pytest.approx(gaussian_epsilon(mu * math.sqrt(exposure.steps[0])), rel=0.01)
        if privacy.sampler == "poisson":
            rate = min(1.0, oracle.settings.batch / exposure.records)
            assert ran_so == pytest.approx(sampled_epsilon(mu, rate, exposure.steps[0]), rel=0.01)
        else:
            assert ran_so == pytest.approx(gaussian_epsilon(mu * math.sqrt(exposure.times)), rel=0.01)


@pytest.mark.parametrize("local", ["3 steps", "2 epochs"])
def test_in_epochs_a_record_is_in_no_more_steps_than_the_ledger_says(tmp_path: Path, local: str) -> None:
    method, world = of("promptfl", local, PRIVACY["record"]), federation()
    fast = run(tmp_path, method, world, SCHEDULE)
    learner = world.learner(method.settings)
    for exposure in ledger_of(fast, method).exposures:
        k = exposure.client
        used: Counter[str] = Counter()
        for r in range(SCHEDULE.rounds):
            client = world.clients(learner, seed=SCHEDULE.seed, r=r, earlier=range(r))[k]
            for s in range(method.steps(len(world.training[k]))):
                used.update(method.minibatch(client, s))
        assert max(used.values()) <= exposure.times
        assert sum(exposure.steps) == SCHEDULE.rounds * method.steps(len(world.training[k]))
        if local == "2 epochs":
            assert exposure.times == 2 * SCHEDULE.rounds
        rounds = range(SCHEDULE.rounds)
        told = {"seed": SCHEDULE.seed, "rounds": rounds, "settings": method.settings}
        assert method.messages.used_records(world.training[k], client=k, **told) == set(used)


@pytest.mark.parametrize("name", ["promptfl", "fedotp", "dpfpl"])  # that send prompts, gradients, and those of factors
def test_one_step_in_a_round_is_the_same_however_it_is_said(tmp_path: Path, name: str) -> None:
    """Clients whose records are one batch take one step in an epoch; the server then still noises nothing."""
    equal, batch = federation((10, 10, 10)), dataclasses.replace(SETTINGS, batch=10)
    one, other = (
        run(tmp_path / str(epochs), made(name, PARAMS.get(name, {}), NONE, SCHEDULE, settings), equal, SCHEDULE)
        for epochs, settings in ((1, dataclasses.replace(batch, local_epochs=1)), (0, batch))
    )
    for k in range(3):
        for tensor, expected in other.private(1, k).items():
            if tensor != "gradient":
                close(one.private(1, k)[tensor], expected)
    for tensor, expected in other.broadcast(2).items():
        close(one.broadcast(2)[tensor], expected)


@pytest.mark.parametrize("name", ["promptfl", "fedprox", "fedotp", "dpfpl"])
def test_what_the_server_rebuilds_is_exact_after_several_steps(tmp_path: Path, name: str) -> None:
    """Without noise, where the steps of a client's own part add up to what its upload says."""
    method = made(name, {"rank": 0} if name == "dpfpl" else {}, NONE, SCHEDULE, LOCAL["3 steps"])
    transcript, learner = run(tmp_path, method, federation(), SCHEDULE), federation().learner(LOCAL["3 steps"])
    messages = ReplayedMessages(View(transcript, "server"), method, learner)
    assert (coverage_table([messages.rebuilt(k) for k in range(3)], transcript).distance < 1e-5).all()


def test_the_server_counts_the_steps_of_pfedmes_epochs(tmp_path: Path) -> None:
    """By n_k: batches of 4 out of 10, 6 and 3 records are 2, 1 and 1 local steps an epoch; of one step theta is exact."""
    settings = dataclasses.replace(SETTINGS, local_epochs=1)
    method = made("pfedme", PARAMS["pfedme"], NONE, SCHEDULE, settings)
    transcript, learner = run(tmp_path, method, federation(), SCHEDULE), federation().learner(settings)
    messages = ReplayedMessages(View(transcript, "server"), method, learner)
    two, *one = coverage_table([messages.rebuilt(k) for k in range(3)], transcript).distance
    assert max(one) < 1e-5
    assert 1e-5 < two < 0.15


def test_fedprox_without_its_term_is_promptfl_to_the_last_digit(tmp_path: Path) -> None:
    made_of = {
        "plain": of("promptfl", "3 steps", PRIVACY["record"]),
        **{str(mu): made("fedprox", {"mu": mu}, PRIVACY["record"], SCHEDULE, LOCAL["3 steps"]) for mu in (0.0, 5.0)},
    }
    plain, same, held = (run(tmp_path / who, method, federation(), SCHEDULE) for who, method in made_of.items())
    assert torch.equal(same.broadcast(2)["p_G"], plain.broadcast(2)["p_G"])
    start = plain.broadcast(0)["p_G"]
    moved = [(t.upload(0, 0)["p_G"] - start).norm() for t in (held, plain)]
    assert moved[0] < 0.9 * moved[1]  # held near the global prompt


def test_fedprox_says_where_it_is_promptfl() -> None:
    params = METHODS["fedprox"].params
    assert "a round is one local step" in params(mu=0.1).caution(LOCAL["1 step"], None, 10)
    assert "mu = 0; give --mu" in params(mu=0.0).caution(LOCAL["2 steps"], None, 10)
    assert [params(mu=0.1).caution(LOCAL[several], None, 10) for several in ("2 steps", "2 epochs")] == ["", ""]
    words = "--method=fedprox,promptfl", "--attack=none"
    one, two = read_command([*words]).plan, read_command([*words, "--local-steps=2"]).plan
    assert cautions(one) == limits(one)[:1] == [params(mu=0.1).caution(LOCAL["1 step"], None, 10)]
    assert cautions(two) == []


def quadratic(inner: int, *, envelope: float, rates: tuple[float, float]) -> tuple[float, float]:
    """theta and w after one local step of pFedMe on f(theta) = theta^2 / 2 from w = 1, by hand."""
    theta = w = 1.0
    for _ in range(inner):
        theta -= rates[0] * (theta + envelope * (theta - w))
    return theta, w - rates[1] * envelope * (w - theta)


def test_pfedmes_fixed_points_on_a_quadratic(monkeypatch: pytest.MonkeyPatch) -> None:
    """argmin theta^2 / 2 + lambda / 2 (theta - w)^2 is lambda w / (1 + lambda), and w moves by eta times the envelope's gradient there."""
    monkeypatch.setattr("fedaudit.trainers.prompts.Step.gradient", lambda step, prompt: prompt[None])
    world = on_a_line([[(0.0, 0)] * 4])
    for inner, envelope in ((1, 3.0), (4, 3.0), (80, 3.0), (80, 1.0)):
        settings = Settings(prompt_length=1, batch=4, global_rate=0.05, local_rate=0.1)
        method = METHODS["pfedme"].make(METHODS["pfedme"].params(inner=inner, envelope=envelope), settings=settings)
        learner = world.learner(settings)
        start = {"p_G": torch.ones(1, 1)}
        (update,) = learner.work(method, [start], [start], world.clients(learner))
        theta, w = quadratic(inner, envelope=envelope, rates=(0.1, 0.05))
        assert update.private["theta"].item() == pytest.approx(theta, rel=1e-5)
        assert update.upload["p_G"].item() == pytest.approx(w, rel=1e-5)
        if inner == 80:
            assert theta == pytest.approx(envelope / (1 + envelope), rel=1e-5)
            assert w == pytest.approx(1 - 0.05 * envelope / (1 + envelope), rel=1e-5)
        back = method.messages.replay(start, start, update.upload, learner, generator(0, "replay"), [4])
        assert back["theta"].item() == pytest.approx(theta, rel=1e-4)
        assert method.prompt(start) is start["p_G"]  # who never took part has no prompt of its own


def test_momentum_by_hand() -> None:
    settings, world = dataclasses.replace(SETTINGS, local_steps=3, momentum=0.9), federation()
    learner, method = world.learner(settings), made("promptfl", {}, NONE, SCHEDULE, settings)
    expected = p = velocity = torch.zeros(3, 4, 16)
    for i, step in enumerate(Cohort(learner, world.clients(learner), method).steps()):
        g = torch.full_like(p, float(i + 1))
        velocity = 0.9 * velocity + g
        expected = expected - settings.global_rate * velocity
        p = step.descend(p, g, "p_G")
        assert torch.equal(p, expected)
    again = Cohort(learner, world.clients(learner), method)
    assert torch.equal(next(again.steps()).descend(p, p, "p_G"), p - settings.global_rate * p)  # each round begins anew


def private_cohort() -> Cohort:
    settings = dataclasses.replace(SETTINGS, local_steps=2)
    learner = federation().learner(settings)
    return Cohort(learner, federation().clients(learner), made("promptfl", {}, PRIVACY["record"], SCHEDULE, settings))


def noised(step: Any) -> Tensor:
    found: Tensor = step.noise(step.clip(step.gradient(torch.zeros(3, 4, 16)), "p_G"), "p_G")
    return found


def test_noise_that_the_ledger_could_not_count_is_refused() -> None:
    cohort = private_cohort()
    step = next(cohort.steps(1))
    noised(step)
    with pytest.raises(ValueError, match=r"p_G is noised twice in one step; take another step \(client.steps\)"):
        noised(step)
    with pytest.raises(ValueError, match="1 of the 2 steps of a round were taken"):
        _ = cohort.noised
    noised(next(cohort.steps(1)))
    assert [turn.steps for turn in cohort.noised.turns] == [2, 2, 2]
    with pytest.raises(ValueError, match=r"has 2 steps .*, and no more"):
        next(cohort.steps(1))
    cohort = private_cohort()
    first, second = cohort.steps()
    noised(first)
    second.clip(second.gradient(torch.zeros(3, 4, 16)), "p_G")
    with pytest.raises(ValueError, match="every step must noise the same releases"):
        _ = cohort.noised


def test_noise_is_that_of_the_client_with_the_most_to_hide() -> None:
    """Poisson: by whoever is sampled oftener or steps more; epochs: by who is in more of them. Nominal: the largest T."""

    def std(privacy: Privacy, steps: list[int], records: list[int]) -> float:
        return noise_stds(privacy, {"p_G": 1.0}, steps=steps, batch=4, records=records)["p_G"]

    for sampler in ("poisson", "epochs"):
        privacy = Privacy(epsilon=0.1, sigma="calibrated", sampler=sampler)  # a small one is quickly found
        assert std(privacy, [9, 3], [40, 10]) == max(std(privacy, [9], [40]), std(privacy, [3], [10])), sampler
    nominal = Privacy(epsilon=2)
    assert std(nominal, [9, 3], [40, 10]) == std(nominal, [9], [40])


def test_with_several_steps_the_server_sees_no_clear_gradient(tmp_path: Path) -> None:
    """One step: the gradient without noise, nothing is proven against the server. Several: every view counts all releases
    jointly."""
    found = {}
    for local in ("1 step", "2 steps"):
        method = of("dpfpl", local, PRIVACY["record"])
        ledger = ledger_of(run(tmp_path / local, method, federation(), SCHEDULE), method)
        table = privacy_table(ledger, method, PRIVACY["record"], Facts().threat_models)
        found[local] = table[table.whose == "own"].set_index("threat_model")
    several = found["2 steps"]
    assert math.isfinite(several.every_step["server"])
    assert several.every_step.nunique() == 1
    assert several.claimed["server"] == PRIVACY["record"].epsilon
    assert math.isinf(found["1 step"].provable["server"])
