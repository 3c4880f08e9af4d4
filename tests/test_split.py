"""Coins before a training elsewhere: fair, independent, committed to, and checked when the run comes back."""

import collections
import dataclasses
import hashlib
import hmac
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from scipy.stats import binomtest

from fedaudit.audits import claim as claim_audit
from fedaudit.audits.comparisons import ScoredModel, ScoredRun
from fedaudit.audits.subject import DELTA, Subject
from fedaudit.command import cli
from fedaudit.external.coins import Coins, commitment_of, draw
from fedaudit.external.reading import read
from fedaudit.external.split import LEAST, split
from fedaudit.machinery.errors import InputError
from tests.small_run import edit, put
from tests.test_prompt_runs import exported

SEED = bytes(range(16))
CLASSES = ("cat", "dog", "owl")


def candidates(place: Path, *, clients: int = 2, each: int = 30, **more: object) -> Path:
    """Lines of `each` records of each client, in turn of three classes, with a picture each."""
    place.mkdir(parents=True, exist_ok=True)
    lines = []
    for i in range(clients * each):
        Image.fromarray(np.full((3, 4, 3), i, np.uint8)).save(place / f"p{i}.png")
        lines.append({"id": f"r{i}", "client": i % clients, "image": f"p{i}.png", "class": CLASSES[i % 3], **more})
    return listed(place, lines)


def listed(place: Path, lines: list[dict[str, Any]]) -> Path:
    put(place / "candidates.jsonl", lines)
    return place / "candidates.jsonl"


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


class TestCoins:
    def test_a_coin_is_a_bit_of_an_hmac_and_fair(self) -> None:
        coins = Coins(SEED, "", frozenset(), "natural", 0)
        assert coins.of("r7") == bool(hmac.new(SEED, b"coin\0r7", hashlib.sha256).digest()[0] & 1)
        flipped = np.array([coins.of(f"record-{i}") for i in range(4000)])
        assert binomtest(int(flipped.sum()), 4000).pvalue > 1e-4
        pairs = collections.Counter(zip(flipped[:-1].tolist(), flipped[1:].tolist(), strict=True))
        assert min(pairs.values()) > 900, "neighbours' coins are independent"
        other = np.array([Coins(SEED[::-1], "", frozenset(), "natural", 0).of(f"record-{i}") for i in range(4000)])
        assert abs(int((flipped == other).sum()) - 2000) < 130
        assert len({draw(SEED, purpose, "r") for purpose in ("coin", "reference", "chosen", "order")}) == 4

    def test_the_commitment_is_of_seed_and_records_in_any_order(self) -> None:
        lines = ["b", "a"]
        by_hand = hashlib.sha256(SEED)
        for line in ("a", "b"):
            by_hand.update(hashlib.sha256(line.encode()).digest())
        assert commitment_of(SEED, lines) == commitment_of(SEED, lines[::-1]) == by_hand.hexdigest()
        assert len({commitment_of(SEED, some) for some in (["ab"], ["a", "b"], ["b"], [])}) == 4


WRONG: dict[str, tuple[Callable[[list[dict[str, Any]]], list[dict[str, Any]]], dict[str, Any], str]] = {
    "too few": (lambda lines: lines[: LEAST + 1], {}, f"records without those for reference, and coins need {LEAST}"),
    "nothing": (lambda lines: [], {}, "it has 0 records"),
    "an id twice": (lambda lines: [*lines, lines[0] | {"class": "owl"}], {}, "the id 'r0' is taken"),
    "no class in one": (
        lambda lines: [*lines, {k: v for k, v in lines[0].items() if k != "class"}],
        {},
        "candidates.jsonl line 61 lacks the key 'class', which other lines have",
    ),
    "no picture": (lambda lines: [lines[0] | {"image": "none.png"}, *lines[1:]], {}, "image none.png is missing"),
    "an unknown key": (lambda lines: [lines[0] | {"lable": 1}, *lines[1:]], {}, "unknown key 'lable'"),
    "too many canaries": (lambda lines: lines, {"canaries": 50}, "--canaries 50: at most 48 records can be canaries"),
}  # fmt: skip


class TestSplit:
    def test_every_record_is_dealt_once_by_its_coin(self, tmp_path: Path) -> None:
        done = split(candidates(tmp_path / "in"), tmp_path / "out", seed=SEED)
        lists = {name: lines_of(tmp_path / "out" / f"{name}.jsonl") for name in done.counts}
        every = [line for lines in lists.values() for line in lines]
        assert sorted(line["id"] for line in every) == sorted(f"r{i}" for i in range(60))
        coins = Coins(SEED, "", frozenset(), "natural", 0)
        assert all(coins.of(line["id"]) for line in lists["members"])
        assert not any(coins.of(line["id"]) for line in lists["nonmembers"])
        per_stratum = collections.Counter((line["client"], line["class"]) for line in lists["reference"])
        assert set(per_stratum.values()) == {2}, "a fifth of ten records of each client's class"
        for line in every:
            pixel = np.asarray(Image.open(tmp_path / "out" / line["image"]))[0, 0, 0]
            assert (line["id"], line["client"]) == (f"r{pixel}", int(pixel) % 2)
        assert done.counts == {name: len(lines) for name, lines in lists.items()}

    def test_two_splits_differ_and_a_seed_is_of_128_bits(self, tmp_path: Path) -> None:
        source = candidates(tmp_path / "in")
        for name in "ab":
            split(source, tmp_path / name)
        seeds = {json.loads((tmp_path / name / "coins.json").read_text())["seed"] for name in "ab"}
        assert [len(bytes.fromhex(seed)) for seed in seeds] == [16, 16]

    def test_copies_are_one_record_before_the_coin(self, tmp_path: Path) -> None:
        source = candidates(tmp_path / "in")
        lines = lines_of(source)
        copy = lines[0] | {"id": "again", "client": 1}
        same_picture = lines[1] | {"id": "other-class", "class": "owl"}
        torn = lines[1]["id"]
        done = split(listed(source.parent, [*lines, copy, same_picture]), tmp_path / "out", seed=SEED)
        ids = [line["id"] for name in done.counts for line in lines_of(tmp_path / "out" / f"{name}.jsonl")]
        assert (done.merged, done.two_classes) == (1, 2)
        assert not {"again", "other-class", torn} & {*ids}
        assert len(ids) == len(lines) - 1
        assert "1 copies of other records" in " ".join(done.sentences)
        assert "2 records were left out: pictures under two classes, of which none is right" in done.sentences

    @pytest.mark.parametrize("kind", ["mislabelled", "ood", "natural"])
    def test_canaries_are_spread_over_clients_and_made_before_the_coin(self, tmp_path: Path, kind: str) -> None:
        source = candidates(tmp_path / "in")
        done = split(source, tmp_path / "out", canaries=9, canary_kind=kind, seed=SEED)
        about = json.loads((tmp_path / "out" / "coins.json").read_text())
        dealt = [line for name in ("members", "nonmembers") for line in lines_of(tmp_path / "out" / f"{name}.jsonl")]
        made = [line for line in dealt if line["id"] in about["canaries"]]
        assert (done.canaries, len(made), about["canary_kind"]) == (9, 9, kind)
        assert sorted(collections.Counter(line["client"] for line in made).values()) == [4, 5]
        before = {line["id"]: line for line in lines_of(source)}
        shapes = {np.asarray(Image.open(tmp_path / "out" / line["image"])).std() > 0 for line in made}
        assert shapes == {kind == "ood"}, "pictures of nothing have no single colour"
        if kind != "ood":
            assert {line["class"] != before[line["id"]]["class"] for line in made} == {kind == "mislabelled"}

    def test_texts_without_clients(self, tmp_path: Path) -> None:
        source = candidates(tmp_path / "in", clients=1)
        lines = [{"image": line["image"], "text": f"text {i % 7}"} for i, line in enumerate(lines_of(source))]
        split(listed(source.parent, lines), tmp_path / "out", canaries=4, seed=SEED)
        dealt = [line for name in ("members", "nonmembers") for line in lines_of(tmp_path / "out" / f"{name}.jsonl")]
        assert all(line.keys() == {"id", "image", "text"} for line in dealt)

    @pytest.mark.parametrize("name", WRONG)
    def test_what_is_wrong_is_said_and_nothing_is_written(self, tmp_path: Path, name: str) -> None:
        change, more, message = WRONG[name]
        source = candidates(tmp_path / "in")
        listed(source.parent, change(lines_of(source)))
        with pytest.raises(InputError, match=message):
            split(source, tmp_path / "out", seed=SEED, **more)
        assert not list((tmp_path / "out").glob("*")) if (tmp_path / "out").exists() else True

    def test_the_command(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        source, out = candidates(tmp_path / "in"), tmp_path / "out"
        assert cli.main(["--split", str(source), "--out", str(out), "--canaries", "4"]) == 0
        said = capsys.readouterr().out
        assert f"commitment: {json.loads((out / 'coins.json').read_text())['commitment']}" in said
        for words, message in (
            (["--out", str(out)], "there is something already"),
            ([], "needs --out"),
            (["--out", str(tmp_path / "b"), "--method", "fedavg"], "--method: has no place beside --split"),
            (["--out", str(tmp_path / "b"), "--reference-share", "2"], "must lie between 0 and 0.9"),
            (["--out", str(tmp_path / "b"), "--canary-kind", "big"], "canary_kind must be"),
        ):
            assert cli.main(["--split", str(source), *words]) == 2
            assert message in capsys.readouterr().err


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of prompts whose lists are those of a split; nobody may change it."""
    place = tmp_path_factory.mktemp("coined")
    run, _ = exported("promptfl", place)
    edit("run.json", classes=list(CLASSES))(run)
    for name in ("members", "nonmembers", "reference", "test"):
        (run / f"{name}.jsonl").unlink()
    split(candidates(place / "in", clients=3, each=12), place / "dealt", canaries=12, seed=SEED)
    return shutil.copytree(place / "dealt", run, dirs_exist_ok=True)


@pytest.fixture
def coined(good: Path, tmp_path: Path) -> Path:
    return shutil.copytree(good, tmp_path / "run")


def moved(run: Path) -> None:
    first, *rest = lines_of(run / "nonmembers.jsonl")
    put(run / "nonmembers.jsonl", rest)
    put(run / "members.jsonl", [*lines_of(run / "members.jsonl"), first])


def first_of(name: str, **values: object) -> Callable[[Path], None]:
    def change(run: Path) -> None:
        first, *rest = lines_of(run / f"{name}.jsonl")
        put(run / f"{name}.jsonl", [first | values, *rest])

    return change


def dropped(name: str) -> Callable[[Path], None]:
    return lambda run: put(run / f"{name}.jsonl", lines_of(run / f"{name}.jsonl")[1:])


def repainted(run: Path) -> None:
    line = lines_of(run / "members.jsonl")[0]
    Image.fromarray(np.full((3, 4, 3), 200, np.uint8)).save(run / line["image"])


CHANGED: dict[str, tuple[Callable[[Path], None], str]] = {
    "a record moved to the other side": (moved, r"members\.jsonl line \d+: the coin of r\d+ says nonmembers"),
    "a member left out": (dropped("members"), "commits to other records than members.jsonl"),
    "a reference record left out": (dropped("reference"), "commits to other records"),
    "another class": (first_of("members", **{"class": "owl", "group": None}), "unknown key 'group'|commits to other"),
    "another client": (first_of("nonmembers", client=2), "commits to other records|says"),
    "another picture": (repainted, "commits to other records"),
    "another seed": (edit("coins.json", seed="00" * 16), "the coin of"),
    "another commitment": (edit("coins.json", commitment="00" * 32), "commits to other records"),
    "a seed of fewer bits": (edit("coins.json", seed="00"), "seed must be 32 hexadecimal digits"),
    "canaries that are none": (edit("coins.json", canaries=["nobody"]), "coins.json, canaries: nobody is no candidate"),
    "no kind": (edit("coins.json", canary_kind="odd"), 'canary_kind must be "mislabelled" or "ood" or "natural"'),
}


class TestReadBack:
    def test_canaries_are_apart_and_who_was_left_out_was_absent(self, coined: Path) -> None:
        own = read(coined)
        assert own.coins is not None
        assert (own.coins.kind, len(own.coins.canaries)) == ("mislabelled", 12)
        members = {line["id"] for line in lines_of(coined / "members.jsonl")}
        for client in own.federation.clients:
            assert {r.id for r in client.canaries} <= own.coins.canaries
            assert len(client.canaries) == 4
            assert not {r.id for r in client.records} & own.coins.canaries
            assert {r.id for r in client.training_records} == members & {*client.candidates}
            assert client.left_out == frozenset()
        assert "coins.json" in own.texts
        assert set(own.federation.coins) == {name for c in own.federation.clients for name in c.candidates}

    @pytest.mark.parametrize("name", CHANGED)
    def test_lists_that_were_changed_afterwards_are_refused(self, coined: Path, name: str) -> None:
        change, message = CHANGED[name]
        change(coined)
        with pytest.raises(InputError, match=message):
            read(coined)

    def test_order_and_positions_may_change(self, coined: Path) -> None:
        lines = [line | {"position": i} for i, line in enumerate(lines_of(coined / "members.jsonl")[::-1])]
        put(coined / "members.jsonl", lines)
        assert read(coined).coins is not None


CLAIM = {"epsilon": 1.0, "delta": 1e-5, "unit": "record", "neighbours": "add or remove"}


class TestClaim:
    def found(self, right: float, claim: dict[str, object]) -> Any:
        """The bound of an adversary that is right about a share of its guesses about 1,000 canaries."""
        rng = np.random.default_rng(0)
        coins = {f"r{i}": bool(coin) for i, coin in enumerate(rng.random(1000) < 0.5)}
        sides = np.where([*coins.values()], 1, -1) * np.where(rng.random(1000) < right, 1, -1)
        frame = pd.DataFrame({"loss": sides * rng.random(1000)}, [*coins])
        about: Any = {"headlines": {"loss": ("loss",)}, "signals": {"loss": "loss"}, "blind": {}, "reference": {0: []}}
        models = [ScoredModel("prompt-user", "prompt", 0, 1, frame)]
        scored = ScoredRun(models=models, records={0: [*coins]}, truth=coins, **about)
        subject = Subject(
            transcript=None, method=None, privacy=None, threat_models=["prompt-user"],
            names={"run": "r", "method": "m", "task": "t", "seed": 0}, attacked=scored, canaries={0: coins},
            said={"claimed": "1", "provable": "unknown", "measured": "not checked"}, claim=claim,
        )  # fmt: skip
        result = claim_audit.claim(subject, claim_audit.Params())
        (found,) = result.findings
        said = dataclasses.replace(subject, before={"claim": result}).claims("prompt-user")
        assert said["measured"].startswith(f"at least {found.value:.3g}")
        return found

    def test_right_guesses_refute_a_claim_and_guesses_at_random_none(self) -> None:
        found, chance = self.found(1.0, CLAIM), self.found(0.5, CLAIM)
        assert (found.claimed, found.delta, found.canaries, found.guesses) == (1.0, 1e-5, 1000, 200)
        assert found.value > 2 > 0.5 > chance.value
        assert found.p_claimed < 1e-3 < 0.05 < chance.p_claimed
        assert found.p_provable is None

    @pytest.mark.parametrize("neighbours", ["replace", "zero-out"])
    def test_a_claim_of_another_relation(self, neighbours: str) -> None:
        found = self.found(1.0, CLAIM | {"neighbours": neighbours})
        assert (found.p_claimed is None) == (neighbours == "replace")

    def test_a_run_without_a_claim_has_a_bound(self) -> None:
        found = self.found(1.0, {})
        assert (found.p_claimed, found.delta) == (None, DELTA)
        assert found.value > 2
