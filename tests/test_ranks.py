"""Adapters of several ranks, and a base per round: each state that is read has the function that the files state."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from fedaudit.external.ranks import MOST
from fedaudit.external.reading import read
from fedaudit.external.run import OwnRun
from fedaudit.external.tensors import TensorFile
from fedaudit.machinery.errors import InputError
from fedaudit.machinery.store import claim
from fedaudit.trainers.base import State
from fedaudit.trainers.lora import Settings
from tests.small_run import MODEL, UPLOAD, A, B, Change, delete, edit, line, linked, put, small_run
from tests.small_run import replace as exchanged
from tests.test_recording import what_is_said

ALPHA, WIDTH, OUT = 6.0, 7, 5
LAYERS = ("layers.0.q_proj", "layers.1.v_proj")
OWN, GLOBAL = "own rank", "global rank"


def factors(seed: int, *ranks: int, layers: Iterable[str] = LAYERS) -> State:
    """Random factors, one rank per layer, or one for all."""
    rng = torch.Generator().manual_seed(seed)
    all_ranks = ranks if len(ranks) > 1 else ranks * len(LAYERS)
    state = {}
    for layer, rank in zip(layers, all_ranks, strict=False):
        state[f"{layer}.A"] = torch.randn(rank, WIDTH, generator=rng)
        state[f"{layer}.B"] = torch.randn(OUT, rank, generator=rng)
    return state


def halves(state: State, half: str) -> State:
    return {name: tensor for name, tensor in state.items() if name.endswith(half)}


def cut(state: State, rank: int) -> State:
    return {n: (t[:rank] if n.endswith("A") else t[:, :rank]).contiguous() for n, t in state.items()}


def update(state: Mapping[str, torch.Tensor], scale: float | Mapping[str, float]) -> dict[str, torch.Tensor]:
    """scale * B A by layer, in float64."""
    scales = scale if isinstance(scale, Mapping) else dict.fromkeys(LAYERS, scale)
    layers = sorted({name[:-2] for name in state})
    return {k: scales[k] * state[f"{k}.B"].double() @ state[f"{k}.A"].double() for k in layers}


def stated(state: State, scale: str, *, largest: int = 4, base: State | None = None) -> dict[str, torch.Tensor]:
    """What a file says: the update of each layer, and that of the base."""
    divisor = {k: state[f"{k}.A"].shape[0] if scale == OWN else largest for k in LAYERS}
    found = update(state, {k: ALPHA / divisor[k] for k in LAYERS})
    more = update(base or {}, 1.0)
    return {k: u + more.get(k, 0) for k, u in found.items()}


def function(own: OwnRun, state: State) -> dict[str, torch.Tensor]:
    """The update that the suite computes from a state."""
    assert {t.shape[0 if n.endswith(".A") else 1] for n, t in state.items()} == {own.trained.settings["rank"]}
    return update(state, own.trained.settings["alpha"] / own.trained.settings["rank"])


def same(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


def run_of(
    folder: Path, models: list[State], uploads: list[dict[int, State]], *, owners: dict[int, State] | None = None,
    bases: Mapping[int, State] | None = None, **about: Any,
) -> Path:  # fmt: skip
    run = small_run(folder / "run")
    for name in ("models", "uploads"):
        shutil.rmtree(run / name)
    for r, state in enumerate(models):
        put(run / f"models/round-{r:03d}.safetensors", state)
    for r, sent in enumerate(uploads):
        for k, state in sent.items():
            put(run / f"uploads/round-{r:03d}/client-{k:02d}.safetensors", state)
    for k, state in (owners or {}).items():
        put(run / f"owners/client-{k:02d}.safetensors", state)
    for r, state in (bases or {}).items():
        put(run / f"base/round-{r:03d}.safetensors", state)
    edit("run.json", format=2, alpha=ALPHA, **about)(run)
    return run


@pytest.mark.parametrize("scale", [OWN, GLOBAL])
class TestRanksPerClient:
    def test_models_uploads_and_owners(self, tmp_path: Path, scale: str) -> None:
        models = [factors(0, 4), factors(1, 3), factors(2, 2)]
        uploads = [{0: factors(3, 2), 2: factors(4, 6)}, {2: factors(5, 1)}]
        owners = {0: factors(6, 5), 2: factors(7, 1)}
        own = read(run_of(tmp_path, models, uploads, owners=owners, scale=scale))
        assert (own.trained.rank, own.trained.alpha) == (6, ALPHA)
        for file, state in zip(own.models, models, strict=True):
            same(function(own, file.load()), stated(state, scale))
        for sent, states in zip(own.uploads, uploads, strict=True):
            for k, file in sent.items():
                same(function(own, file.load()), stated(states[k], scale))
        same(function(own, own.private[0][0].load()), stated(owners[0], scale))
        same(function(own, own.private[1][2].load()), stated(owners[2], scale))

    def test_layers_of_different_ranks(self, tmp_path: Path, scale: str) -> None:
        models, sent = [factors(0, 4, 2), factors(1, 4, 2)], factors(2, 1, 3)
        own = read(run_of(tmp_path, models, [{0: sent, 2: models[1]}], scale=scale))
        divisor = {k: sent[f"{k}.A"].shape[0] if scale == OWN else models[0][f"{k}.A"].shape[0] for k in LAYERS}
        expected = update(sent, {k: ALPHA / divisor[k] for k in LAYERS})
        same(function(own, own.uploads[0][0].load()), expected)

    @pytest.mark.parametrize("half", ["A", "B"])
    def test_half_of_another_rank(self, tmp_path: Path, scale: str, half: str) -> None:
        """It acts beside the other half of the global model, whose further rows or columns meet zeros."""
        start, sent = factors(0, 4), halves(factors(1, 2), half)
        own = read(run_of(tmp_path, [start, factors(2, 4)], [{0: sent, 2: factors(3, 4)}], scale=scale))
        model = own.models[0].load() | own.uploads[0][0].load()
        same(function(own, model), stated(cut(start, 2) | sent, scale))

    def test_the_transcript_has_one_rank(self, tmp_path: Path, scale: str) -> None:
        uploads = [{0: factors(3, 2), 2: factors(4, 4)}]
        own = read(run_of(tmp_path, [factors(0, 4), factors(1, 4)], uploads, owners=uploads[0], scale=scale))
        own.write_transcript(claim(tmp_path / "out"))
        state = load_file(tmp_path / "out/round-000.safetensors")
        assert {tuple(t.shape) for t in state.values()} == {(4, WIDTH), (OUT, 4)}
        assert not [name for name in state if name.startswith("private")], "each client sent its whole model"


class TestPeft:
    """Ranks that peft's configuration states are those of the global model."""

    @pytest.mark.parametrize("root", [False, True])
    @pytest.mark.parametrize("scale", [OWN, GLOBAL])
    def test_scales_of_layers(self, tmp_path: Path, scale: str, *, root: bool) -> None:
        run, sent = run_of(tmp_path, [factors(0, 4, 2)] * 2, [{0: factors(1, 1, 3)}], scale=scale), factors(1, 1, 3)
        edit("run.json", alpha=None)(run)
        about = {
            "peft_type": "LORA", "r": 4, "lora_alpha": 6, "use_rslora": root, "rank_pattern": {"v_proj": 2},
            "alpha_pattern": {"v_proj": 10},
        }  # fmt: skip
        put(run / "adapter_config.json", about)
        own = read(run)
        ranks = {LAYERS[0]: 1 if scale == OWN else 4, LAYERS[1]: 3 if scale == OWN else 2}
        expected = {k: a / ranks[k] ** (0.5 if root else 1) for k, a in zip(LAYERS, (6, 10), strict=True)}
        same(function(own, own.uploads[0][0].load()), update(sent, expected))
        of_model = {k: a / r ** (0.5 if root else 1) for k, a, r in zip(LAYERS, (6, 10), (4, 2), strict=True)}
        same(function(own, own.models[0].load()), update(factors(0, 4, 2), of_model))

    def test_global_models_have_the_stated_rank(self, tmp_path: Path) -> None:
        run = run_of(tmp_path, [factors(0, 4), factors(1, 3)], [{0: factors(2, 4)}], scale=OWN)
        put(run / "adapter_config.json", {"peft_type": "LORA", "r": 4, "lora_alpha": 6})
        with pytest.raises(InputError, match=r"round-001.safetensors: .*\.A has rank 3, where .*config.json states 4"):
            read(run)


MODELS = [factors(0, 4), factors(1, 4), factors(2, 4)]
UPLOADS = [{0: factors(3, 4), 2: factors(4, 4)}, {2: factors(5, 4)}]


class TestBase:
    def run(self, folder: Path, bases: Mapping[int, State], **more: Any) -> Path:
        more = {"aggregation": "stacking", "models": MODELS, "uploads": UPLOADS} | more
        return run_of(folder, more.pop("models"), more.pop("uploads"), bases=bases, **more)

    def test_a_model_is_its_base_and_its_adapter(self, tmp_path: Path) -> None:
        bases = {1: factors(10, 3, 5), 2: factors(11, 9, 5)}
        owners = {0: factors(12, 2), 2: factors(13, 4)}
        own = read(self.run(tmp_path, bases, owners=owners))
        assert own.trained.rank == 9 + 4
        for r, file in enumerate(own.models):
            same(function(own, file.load()), stated(MODELS[r], GLOBAL, base=bases.get(r)))
        for r, sent in enumerate(own.uploads):
            for k, file in sent.items():
                same(function(own, file.load()), stated(UPLOADS[r][k], GLOBAL, base=bases.get(r)))
        same(function(own, own.private[0][0].load()), stated(owners[0], GLOBAL))
        same(function(own, own.private[1][2].load()), stated(owners[2], GLOBAL, base=bases[1]))

    @pytest.mark.parametrize("scale", [OWN, GLOBAL])
    def test_stacked_pairs_of_clients_of_different_ranks(self, tmp_path: Path, scale: str) -> None:
        """As in FLoRA: the server merges what was received, and sends out fresh adapters."""
        sent = {0: factors(3, 2), 2: factors(4, 3)}
        divisor = {0: 2, 2: 3} if scale == OWN else {0: 4, 2: 4}
        stack = {n: torch.cat([sent[k][n] for k in sent]) for n in halves(sent[0], "A")}
        for n in halves(sent[0], "B"):
            stack[n] = torch.cat([0.5 * ALPHA / divisor[k] * sent[k][n] for k in sent], 1)
        fresh = [factors(r, 4) | {n: torch.zeros(OUT, 4) for n in halves(sent[0], "B")} for r in (0, 1)]
        own = read(self.run(tmp_path, {1: stack}, models=fresh, uploads=[sent], scale=scale))
        uploads = [function(own, own.uploads[0][k].load()) for k in sent]
        mean = {k: (uploads[0][k] + uploads[1][k]) / 2 for k in LAYERS}
        same(function(own, own.models[1].load()), mean)
        said = {remark.check: remark.sentence for remark in own.remarks}
        assert said.keys() == {"pictures", "aggregation"}
        assert "could not be checked" in said["aggregation"]

    def test_a_half_some_layers_and_changes_beside_a_base(self, tmp_path: Path) -> None:
        sent, base, part = halves(factors(5, 4), "B"), factors(10, 3), factors(10, 3, layers=LAYERS[1:])
        own = read(self.run(tmp_path / "half", {1: base, 2: base}, uploads=[UPLOADS[0], {2: sent}]))
        model = own.models[1].load() | own.uploads[1][2].load()
        same(function(own, model), stated(MODELS[1] | sent, GLOBAL, base=base))
        own = read(self.run(tmp_path / "some", {2: part}))
        same(function(own, own.models[2].load()), stated(MODELS[2], GLOBAL, base=part))
        own = read(self.run(tmp_path / "changes", {0: base, 1: base, 2: base}))
        put(own.path / UPLOAD, {n: t - MODELS[1][n] for n, t in UPLOADS[1][2].items()})
        edit("run.json", uploads="changes")(own.path)
        own = read(own.path)
        same(function(own, own.received(1, own.models[1].load())[2]), stated(UPLOADS[1][2], GLOBAL, base=base))

    def test_it_belongs_to_the_run(self, tmp_path: Path) -> None:
        run = self.run(tmp_path, {2: factors(10, 3)})
        before = read(run)
        assert before.sha256
        put(run / "base/round-002.safetensors", factors(11, 3))
        assert "base/round-002.safetensors" in before.digests
        assert read(run).sha256 != before.sha256

    def test_rounds_that_were_not_kept(self, tmp_path: Path) -> None:
        bases = {1: factors(10, 3), 2: factors(11, 3)}
        run = self.run(tmp_path, bases, gaps=True)
        delete("models/round-000.safetensors")(run)
        delete("uploads/round-000")(run)
        for name in ("members", "nonmembers"):
            put(run / f"{name}.jsonl", [line(f"{name}-2", 2)])
        own = read(run)
        assert not any(u.any() for u in function(own, own.models[0].load()).values()), "the start is the backbone"
        same(function(own, own.models[1].load()), stated(MODELS[1], GLOBAL, base=bases[1]))


class TestMeans:
    """What a server does that fills factors up with zeros and takes their mean."""

    def run(self, folder: Path, scale: str, change: Any = lambda states: states) -> Path:
        rng = torch.Generator().manual_seed(9)
        models, uploads = [factors(0, 4)], []
        for _ in range(2):
            start, sent = models[-1], {}
            for k, rank in {0: 4, 2: 2}.items():
                sent[k] = cut({n: t + 0.1 * torch.randn(t.shape, generator=rng) for n, t in start.items()}, rank)
            uploads.append(sent)
            models.append({n: filled(sent[0][n], t) / 3 + 2 * filled(sent[2][n], t) / 3 for n, t in start.items()})
        models[-1] = change(models[-1])
        return run_of(folder, models, uploads, scale=scale)

    @pytest.mark.parametrize("scale", [OWN, GLOBAL])
    def test_a_wrong_one_is_found_and_another_model_refused(self, tmp_path: Path, scale: str) -> None:
        """Wrong is one factor of one layer: it is of another size than the mean."""
        assert what_is_said(self.run(tmp_path / "right", scale)).keys() == {"pictures", "start"}
        wrong = self.run(tmp_path / "wrong", scale, lambda s: s | {f"{LAYERS[0]}.B": 1.1 * s[f"{LAYERS[0]}.B"]})
        assert f"most of all in {LAYERS[0]}.B" in what_is_said(wrong)["aggregation"]
        other = self.run(tmp_path / "other", scale, lambda _: factors(8, 4))
        assert "does not follow" in what_is_said(other)["refused"]

    def test_exchanged_uploads_are_said(self, tmp_path: Path) -> None:
        run = self.run(tmp_path, GLOBAL)
        one, other = (run / f"uploads/round-001/client-{k:02d}.safetensors" for k in (0, 2))
        kept = one.read_bytes()
        one.write_bytes(other.read_bytes())
        other.write_bytes(kept)
        assert "client 0's file fits the records of client 2" in what_is_said(run)["weights"]


def filled(tensor: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    whole = torch.zeros_like(like)
    whole[: tensor.shape[0], : tensor.shape[1]] = tensor
    return whole


def pair(rank: int, *, width: int = 2, out: int = 3) -> State:
    return {A: torch.ones(rank, width), B: torch.ones(out, rank)}


TWO = edit("run.json", format=2)
STACKING = edit("run.json", format=2, aggregation="stacking")


def all_of(*changes: Change) -> Change:
    return lambda run: [change(run) for change in changes]


REFUSED: dict[str, tuple[Change, str]] = {
    "an upload of another rank": (exchanged(UPLOAD, pair(2)),
        rf'client-02.safetensors: {A} has rank 2 where the global model .*round-000.safetensors\) has 1; where ranks differ, '
        r'run.json \("format": 2\) must say what alpha is divided by: "scale", "own rank" or "global rank"'),
    "a model of another rank": (
        exchanged("models/round-001.safetensors", pair(2)), rf'round-001.safetensors: {A} has rank 2 .*"scale"'),
    "layers of several ranks": (
        exchanged(MODEL, pair(1) | {"layers.1.q_proj.A": torch.ones(2, 2), "layers.1.q_proj.B": torch.ones(3, 2)}),
        'all layers of a run have one rank, unless .*"scale"'),
    "scale in format 1": (edit("run.json", scale=OWN), r'the key .scale. needs "format": 2'),
    "another scale": (edit("run.json", format=2, scale="rank"), 'scale must be "own rank" or "global rank", not "rank"'),
    "a scale of prompts": (
        edit("run.json", format=2, kind="prompts", classes=["a"], scale=OWN, alpha=None, prompt=None),
        "unknown key 'scale'"),
    "factors of two ranks": (
        all_of(edit("run.json", format=2, scale=OWN), exchanged(UPLOAD, {A: torch.ones(2, 2), B: torch.ones(3, 3)})),
        f"client-02.safetensors: {A} has rank 2 and {B} has 3; the factors of a layer have one rank"),
    "a model's factors of two ranks": (
        all_of(edit("run.json", format=2, scale=OWN), exchanged(MODEL, {A: torch.ones(2, 2), B: torch.ones(3, 3)})),
        f"round-000.safetensors: {A} has rank 2 and {B} has 3"),
    "an upload of another width": (all_of(edit("run.json", format=2, scale=OWN), exchanged(UPLOAD, pair(2, width=3))),
        rf"{A} has shape \[2, 3\] where the global model has \[1, 2\]"),
    "changes of another rank": (
        all_of(edit("run.json", format=2, scale=OWN, uploads="changes"), exchanged(UPLOAD, pair(2))),
        rf"client-02.safetensors: {A} is a change of rank 2 of a model of rank 1 .*uploads are states"),
    "a base in format 1": (exchanged("base/round-001.safetensors", pair(2)), r'my-run/base: a base needs "format": 2'),
    "a base and a mean": (
        all_of(TWO, exchanged("base/round-001.safetensors", pair(2)), exchanged("base/round-002.safetensors", pair(2))),
        '"aggregation" must name the rule: "stacking", or "other"'),
    "a base and a partial mean": (
        all_of(edit("run.json", format=2, aggregation="partial mean"), exchanged("base/round-002.safetensors", pair(2))),
        "takes no mean that could be checked"),
    "a base of no round": (all_of(STACKING, exchanged("base/round-003.safetensors", pair(2))),
        "base/round-003.safetensors has no model: .*models/round-003.safetensors is missing"),
    "a base that vanishes": (all_of(STACKING, exchanged("base/round-001.safetensors", pair(2))),
        "base/round-002.safetensors is missing; what was merged before round 1 is still in the model"),
    "a base of another layer": (
        all_of(STACKING, exchanged("base/round-002.safetensors", {"layers.9.q_proj.A": torch.ones(1, 2)})),
        "base/round-002.safetensors: layers.9.q_proj.A is not in the global model"),
    "half a base": (all_of(STACKING, exchanged("base/round-002.safetensors", {A: torch.ones(1, 2)})),
        f"base/round-002.safetensors: {A} is there without {B}; a base has both"),
    "a base of another width": (all_of(STACKING, exchanged("base/round-002.safetensors", pair(2, out=4))),
        rf"base/round-002.safetensors: {B} has shape \[4, 2\] where the global model has \[3, 1\]"),
    "a base of two ranks": (
        all_of(STACKING, exchanged("base/round-002.safetensors", {A: torch.ones(1, 2), B: torch.ones(3, 2)})),
        "base/round-002.safetensors: .* the factors of a layer have one rank"),
    "a base of no numbers": (
        all_of(STACKING, exchanged("base/round-002.safetensors", {A: torch.ones(1, 2) / 0, B: torch.ones(3, 1)})),
        f"base/round-002.safetensors: {A} holds NaN or infinite"),
    "a strange file": (
        all_of(STACKING, exchanged("base/merged.safetensors", pair(2))), "base/merged.safetensors is not expected here"),
    "a base of a large rank": (all_of(STACKING, exchanged("base/round-002.safetensors", pair(4096))),
        "my-run: the adapters of the run, with their base, have rank 4097, 4096 at most; a base can be written as"),
    "a base elsewhere": (
        all_of(STACKING, linked("base/round-002.safetensors", "/etc/hostname")), "lies outside of the run's folder"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_refused_by_name(tmp_path: Path, name: str) -> None:
    run = small_run(tmp_path / "my-run")
    change, message = REFUSED[name]
    change(run)
    with pytest.raises(InputError, match=message):
        assert read(run).remarks


def test_a_learner_has_no_larger_rank() -> None:
    with pytest.raises(ValueError, match=f"{MOST}"):
        Settings(rank=MOST + 1)
    assert Settings(rank=MOST).rank == MOST


def test_a_run_of_one_rank_is_read_as_before(tmp_path: Path) -> None:
    """A scale changes nothing, and without one nothing is stacked."""
    run = small_run(tmp_path / "run")
    TWO(run)
    plain = read(run)
    assert {type(file) for file in plain.files} == {TensorFile}
    edit("run.json", scale=OWN)(run)
    stacked = read(run)
    assert (stacked.trained.alpha, stacked.trained.rank) == (plain.trained.alpha, plain.trained.rank)
    for one, other in zip(plain.files, stacked.files, strict=True):
        torch.testing.assert_close(one.load(), other.load(), rtol=0, atol=0)
