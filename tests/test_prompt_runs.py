"""Runs of prompts: exported and read back, or recorded by other code, with what its files and run.json must say."""

import dataclasses
import functools
import json
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

import fedaudit
from fedaudit.contracts.method_worlds import CLIENTS, ROUNDS, WORLDS
from fedaudit.external.export import export_run
from fedaudit.external.prompts import Prompts
from fedaudit.external.reading import read
from fedaudit.external.single import Flags, find_single, read_checkpoint_run
from fedaudit.machinery.errors import InputError
from fedaudit.machinery.faults import sentences
from fedaudit.machinery.store import claim
from fedaudit.tasks.base import Client, Federation, Record, client_name
from fedaudit.tasks.metrics import answer_scores
from fedaudit.trainers.base import Schedule, State
from fedaudit.trainers.learners import METHODS
from fedaudit.trainers.transcript import Transcript
from tests import small_run
from tests.prompt_toy import NAMES
from tests.small_run import Change, delete
from tests.test_ownrun import EPSILON, PROMPTS, assert_same_transcripts, blocks_of

LEARNERS = ("prompts", "maple")
PLUGINS = {name: p for name, p in METHODS.items() if p.facts.learner in LEARNERS and p.facts.trains}
KEPT = tempfile.TemporaryDirectory()  # which ends with the process
pytestmark = pytest.mark.usefixtures("unsafe_but_quick")


def record(name: str, label: str) -> Record:
    rng = np.random.default_rng(sum(map(ord, name)))
    return Record(name, label, rng.integers(0, 255, (6, 5, 3), dtype=np.uint8), "<image>", label, (label,))


def data_of(training: tuple[tuple[str, ...], ...]) -> Federation:
    """Pictures of the clients' training records, and as many that are held out."""
    clients = []
    for k, ids in enumerate(training):
        names = [*ids, *(f"out-{k}-{i}" for i in range(len(ids)))]
        records = tuple(record(name, NAMES[i % len(NAMES)]) for i, name in enumerate(names))
        member = np.array([name in ids for name in names])
        clients.append(Client(client_name(k), records, (record(f"reference-{k}", NAMES[0]),), member, classes=NAMES))
    return Federation(tuple(clients), (), (record("t", NAMES[0]),), score=answer_scores, classes=NAMES)


@functools.cache
def trained(name: str) -> Any:
    world = WORLDS[PLUGINS[name].facts.learner]()
    return world, world.make(PLUGINS[name])


@functools.cache
def kept(name: str) -> tuple[Path, Transcript]:
    world, method = trained(name)
    place = Path(KEPT.name, name)
    original = world.run(method, place / "transcript")
    about = {
        "method": "ours", "task": "toys", "seed": 0, "aggregation": method.aggregation, "kind": "prompts",
        "backbone": "vit", "classes": list(NAMES), "rule": {"method": name, **dataclasses.asdict(method.params)},
        "recipe": dataclasses.asdict(world.learner.settings),
    }  # fmt: skip
    data = data_of(world.training)
    export_run(original, data, place / "run", about=about, score="answer_scores", epsilon=EPSILON)
    return place / "run", original


def exported(name: str, place: Path) -> tuple[Path, Transcript]:
    """(The folder of a toy run of a method; its transcript, which nobody may change)."""
    run, original = kept(name)
    return shutil.copytree(run, place / "run"), original


def same(one: State, other: State) -> bool:
    return one.keys() == other.keys() and all(torch.equal(tensor, other[key]) for key, tensor in one.items())


def transcript_of(run: Path, place: Path, method: Any) -> Transcript:
    own = read(run)
    own.write_transcript(claim(place))
    return Transcript.of(claim(place), Schedule(own.rounds, own.clients, own.clients, own.seed), method)


@pytest.mark.parametrize("name", PLUGINS)
def test_an_exported_run_is_the_same_run_with_the_same_method(name: str, tmp_path: Path) -> None:
    run, original = exported(name, tmp_path)
    world, method = trained(name)
    again = transcript_of(run, tmp_path / "again", method)
    assert_same_transcripts(original, again)
    for r in range(ROUNDS):
        assert same(original.revealed(r), again.revealed(r))
        assert same(original.held_shares(r), again.held_shares(r))
        assert all(same(original.own_part(r, k), again.own_part(r, k)) for k in range(CLIENTS))
    own = read(run)
    assert isinstance(own.trained, Prompts)
    assert PLUGINS[name].own(own.trained.params) == method.params
    assert own.trained.settings == dataclasses.asdict(world.learner.settings)
    assert own.repeatable
    assert [remark.check for remark in own.remarks] == ["aggregation"] * (method.aggregation != "mean")
    before, after = data_of(world.training), own.federation
    assert after.classes == NAMES
    assert [c.candidates for c in after.clients] == [c.candidates for c in before.clients]
    assert [r.group for r in after.records.values()] == [r.group for r in before.records.values()]


edit = functools.partial(small_run.edit, "run.json")


def tensors(pattern: str, change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]) -> Change:
    def rewrite(run: Path) -> None:
        for path in sorted({*run.glob(pattern)}):
            save_file({name: tensor.contiguous() for name, tensor in change(load_file(path)).items()}, path)

    return rewrite


models = functools.partial(tensors, "models/*.safetensors")


def both(*changes: Change) -> Change:
    return lambda run: [change(run) for change in changes]


def renamed(**names: str) -> Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]:
    return lambda state: {names.get(name, name): tensor for name, tensor in state.items()}


class TestRunsOfOtherCode:
    FOREIGN: Mapping[str, tuple[str, Change, str, dict[str, object]]] = {
        "shared contexts": ("promptfl", delete("private"), "promptfl", {}),
        "contexts called ctx": (
            "promptfl", both(delete("private"), tensors("*/**/*.safetensors", renamed(p_G="prompt_learner.ctx"))),
            "promptfl", {},
        ),
        "shared and own contexts": (
            "fedotp", both(
                tensors("private/**/*.safetensors", renamed(p_L="ctx")), models(lambda state: {"ctx": state["p_G"]}),
                edit(uploads="states", aggregation="other"),
            ), "fedotp", {"match": "sum"},
        ),
        "own factors": ("fedpgp", edit(aggregation="other"), "fedpgp", {"rank": 8, "mu": 0.0}),
        "own contexts alone": ("local", delete("uploads"), "local", {}),
    }  # fmt: skip

    @pytest.mark.parametrize("name", FOREIGN)
    def test_the_names_of_tensors_tell_by_which_rule_they_are_read(self, name: str, tmp_path: Path) -> None:
        method, change, rule, params = self.FOREIGN[name]
        run, _ = exported(method, tmp_path)
        both(change, edit(rule=None, recipe=None))(run)
        own = read(run)
        assert isinstance(own.trained, Prompts)
        assert (own.trained.rule, own.trained.settings["prompt_length"]) == (rule, 9)
        assert {name: getattr(own.trained.params, name) for name in params} == params
        assert not own.repeatable
        assert own.trained.untold == "run.json states no recipe of the training"
        assert own.remarks is not None
        reader = PLUGINS[rule].make(own.trained.params)
        found = transcript_of(run, tmp_path / "again", reader)
        assert found.own_model(ROUNDS - 1, 0) is not None
        assert found.model(found.broadcast(0))["prompt"].shape == (9, 16)

    def test_contexts_of_classes_tell_by_their_shape(self, tmp_path: Path) -> None:
        run, _ = exported("promptfl", tmp_path)
        delete("private")(run)
        expanded = tensors("*/**/*.safetensors", lambda state: {"ctx": state["p_G"].expand(5, 9, 16)})
        both(edit(rule=None, recipe=None), expanded)(run)
        own = read(run)
        assert (own.trained.settings["class_contexts"], own.trained.settings["prompt_length"]) == (True, 9)
        assert own.remarks == []

    def test_an_unrecorded_start_of_own_contexts_is_zero(self, tmp_path: Path) -> None:
        run, original = exported("fedotp", tmp_path)
        models(lambda state: {"p_G": state["p_G"]})(run)
        found = transcript_of(run, tmp_path / "again", trained("fedotp")[1])
        assert torch.equal(found.broadcast(0)["p_L"], torch.zeros_like(original.broadcast(0)["p_L"]))

    def test_steps_of_another_optimiser_are_not_repeated(self, tmp_path: Path) -> None:
        run, _ = exported("promptfl", tmp_path)
        edit(recipe={"optimizer": "adam", "batch": 4})(run)
        own = read(run)
        assert (own.repeatable, own.trained.settings["batch"]) == (False, 4)
        edit(recipe={"optimizer": "sgd", "global_rate": 1})(run)
        own = read(run)
        assert (own.repeatable, own.trained.settings["global_rate"]) == (True, 1.0)

    def test_the_start_token_is_read_and_class_names_of_the_training_are_not(self, tmp_path: Path) -> None:
        run, _ = exported("promptfl", tmp_path)
        token = torch.randn(5, 1, 16)
        tensors("*/**/*.safetensors", lambda state: state | {"token_prefix": token, "token_suffix": token + 1})(run)
        own = read(run)
        assert torch.equal(own.trained.start_token.load()["token_prefix"], token)
        assert all(set(file.shapes) <= {"p_G"} for file in own.files)


class TestChecks:
    def test_a_gradient_is_the_step_that_the_server_takes(self, tmp_path: Path) -> None:
        run, _ = exported("fedotp", tmp_path)
        assert "gradient" in read(run).uploads[0][0].shapes
        assert read(run).remarks == []
        more("recipe", global_rate=0.2)(run)
        (remark,) = read(run).remarks
        assert remark.check == "aggregation"

    def test_uploads_that_are_changes_are_recognised(self, tmp_path: Path) -> None:
        run, original = exported("promptfl", tmp_path)
        for r in range(ROUNDS):
            before = original.broadcast(r)["p_G"]
            tensors(f"uploads/round-{r:03d}/*", lambda state, b=before: {"p_G": state["p_G"] - b})(run)
        with pytest.raises(InputError, match='add "uploads": "changes"'):
            assert read(run).remarks
        edit(uploads="changes")(run)
        assert read(run).remarks == []

    def test_nothing_was_trained(self, tmp_path: Path) -> None:
        run, original = exported("local", tmp_path)
        assert read(run).remarks == []
        start = original.broadcast(0)["p_L"]
        tensors("private/**/*.safetensors", lambda state: {"p_L": start})(run)
        with pytest.raises(InputError, match="nothing was trained"):
            assert read(run).remarks


def more(name: str, **values: object) -> Change:
    def change(run: Path) -> None:
        about = json.loads((run / "run.json").read_text())
        edit(**{name: about.get(name, {}) | values})(run)

    return change


def first_line(name: str, **values: object) -> Change:
    def change(run: Path) -> None:
        first, *rest = map(json.loads, (run / name).read_text().splitlines())
        line = {key: value for key, value in (first | values).items() if value is not None}
        small_run.put(run / name, [line, *rest])

    return change


WRONG: Mapping[str, tuple[Change, str]] = {
    "a rule that is no method": (edit(rule={"method": "promptfll"}), r"run\.json, rule: promptfll is no method .*did you mean 'promptfl'"),
    "a rule of adapters": (edit(rule={"method": "fedrand"}), "rule: fedrand is no method whose files are prompts"),
    "a parameter that the rule lacks": (more("rule", rank=3), "rule: unknown key 'rank'; valid are none"),
    "a recipe with an unknown key": (more("recipe", lr=0.1), "recipe: unknown key 'lr'; valid are .*global_rate"),
    "a recipe with a wrong value": (more("recipe", batch=0), "recipe: batch must be at least 1"),
    "a recipe with a wrong type": (more("recipe", batch="8"), "recipe: batch must be as 8, not '8'"),
    "noise with an unknown key": (edit(privacy={"sigmas": 1}), "privacy: unknown key 'sigmas'"),
    "no classes": (edit(classes=None), "lacks the key 'classes'"),
    "a class twice": (edit(classes=["cat", "cat"]), "classes must be a list of different names"),
    "keys of adapters": (edit(alpha=16), "unknown key 'alpha'"),
    "a record of another class": (first_line("members.jsonl", **{"class": "wolf"}), r'members\.jsonl line 1: class must be "cat" or'),
    "a record without class": (first_line("members.jsonl", **{"class": None}), "members.jsonl line 1 lacks the key 'class'"),
    "a record with a text": (first_line("members.jsonl", text="cat"), "members.jsonl line 1: unknown key 'text'"),
    "a context twice": (tensors("models/*0.safetensors", lambda s: s | {"ctx": s["p_G"] + 1}), "are both p_G; each tensor once"),
    "models of several shapes": (tensors("models/*1.safetensors", lambda s: {"p_G": s["p_G"][:3]}), r"p_G has shape \[3, 16\], where .*\[9, 16\]"),
    "a prompt that is none": (models(lambda s: {"p_G": s["p_G"][0]}), r"a prompt of shape \[16\]; valid are \[b, d\]"),
    "contexts of other classes": (
        both(edit(rule=None), models(lambda s: {"p_G": s["p_G"].expand(7, 9, 16)})), "contexts of 7 classes, .* 5",
    ),
    "tensors that tell no rule": (both(edit(rule=None), models(lambda s: {"x": s["p_G"]})), "holds x; valid are a"),
    "whole numbers of another kind": (models(lambda s: {"p_G": s["p_G"].to(torch.int8)}), "p_G is I8"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_refused_in_one_sentence(name: str, tmp_path: Path) -> None:
    change, message = WRONG[name]
    run, _ = exported("promptfl", tmp_path)
    change(run)
    with pytest.raises(InputError, match=message) as caught:
        read(run)
    assert all("\n" not in sentence for sentence in sentences(caught.value))


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A checkpoint as Dassl saves it, and lists with two pictures each."""
    (tmp_path / "prompt_learner").mkdir()
    state = {"ctx": torch.nn.Parameter(torch.randn(4, 16)), "token_prefix": torch.randn(1, 1, 16).repeat(5, 1, 1)}
    torch.save({"state_dict": state, "epoch": 50}, tmp_path / "prompt_learner" / "model.pth.tar-50")
    for name, label in (("members", "cat"), ("nonmembers", "dog")):
        files = [f"{name}-{i}.png" for i in range(2)]
        for file in files:
            Image.fromarray(record(file, label).picture).save(tmp_path / file)
        small_run.put(tmp_path / f"{name}.jsonl", [{"image": file, "class": label} for file in files])
    (tmp_path / "names.txt").write_text("\n".join(NAMES))
    return tmp_path


def flags(place: Path, **changes: str | None) -> Flags:
    named = {"members": f"{place}/members.jsonl", "nonmembers": f"{place}/nonmembers.jsonl", "classes": None}
    return Flags(False, *(named | changes).values())


class TestOneCheckpoint:
    @pytest.mark.parametrize("place", ["", "prompt_learner/model.pth.tar-50"])
    def test_it_is_what_a_client_keeps(self, checkpoint: Path, tmp_path: Path, place: str) -> None:
        assert find_single(checkpoint / place) is read_checkpoint_run
        own = read_checkpoint_run(checkpoint / place, flags(checkpoint))
        assert (own.rounds, own.clients, own.cohorts, own.trained.rule) == (1, 1, ((0,),), "local")
        assert own.trained.classes == ("cat", "dog"), "those of the lists"
        assert own.trained.start_token.load()["token_prefix"].shape == (16,)
        assert (own.remarks, own.repeatable) == ([], False)
        own.write_transcript(claim(tmp_path / "t"))
        found = Transcript.of(claim(tmp_path / "t"), Schedule(1, 1, 1, 0), PLUGINS["local"].make(own.trained.params))
        saved = torch.load(checkpoint / "prompt_learner/model.pth.tar-50", weights_only=True)["state_dict"]["ctx"]
        assert torch.equal(found.released(0)["prompt"], saved)
        assert not found.broadcast(0)["p_L"].any()
        assert sum(own.federation.truth.values()) == 2

    def test_lists_are_needed_and_classes_where_those_do_not_have_all(self, checkpoint: Path) -> None:
        own = read_checkpoint_run(checkpoint, flags(checkpoint, classes=f"{checkpoint}/names.txt"))
        assert own.trained.classes == NAMES
        (checkpoint / "names.txt").write_text("cat\n\ncat\n")
        with pytest.raises(InputError, match=r"names.txt: must hold a list of different names"):
            read_checkpoint_run(checkpoint, flags(checkpoint, classes=f"{checkpoint}/names.txt"))
        with pytest.raises(InputError, match="one model needs its lists of records; --members is missing"):
            read_checkpoint_run(checkpoint, flags(checkpoint, members=None))

    def test_checkpoints_may_stand_for_the_files_of_a_run(self, tmp_path: Path) -> None:
        run, original = exported("promptfl", tmp_path)
        for path in [*run.glob("models/*"), *run.glob("uploads/*/*")]:
            torch.save({"state_dict": {"ctx": load_file(path)["p_G"]}}, path.with_suffix(".pth.tar"))
            path.unlink()
        again = transcript_of(run, tmp_path / "again", trained("promptfl")[1])
        assert read(run).remarks == []
        assert all(torch.equal(original.broadcast(r)["p_G"], again.broadcast(r)["p_G"]) for r in range(ROUNDS + 1))


def test_the_example_of_the_docs_is_a_run(tmp_path: Path) -> None:
    blocks = blocks_of(PROMPTS)
    (tmp_path / "images").mkdir()
    for name in "ab":
        Image.fromarray(record(name, "cat").picture).save(tmp_path / f"images/{name}.png")
    for name in ("models/round-000", "models/round-001", "uploads/round-000/client-01"):
        small_run.put(tmp_path / f"{name}.safetensors", {"ctx": torch.randn(4, 16)})
    (tmp_path / "run.json").write_text(blocks["run.json"])
    (tmp_path / "members.jsonl").write_text(blocks["members.jsonl"])
    held_out = json.loads(blocks["members.jsonl"]) | {"id": "0002", "image": "images/b.png"}
    small_run.put(tmp_path / "nonmembers.jsonl", [held_out])
    own = read(tmp_path)
    assert (own.trained.rule, own.trained.classes, own.backbone) == ("promptfl", ("abyssinian", "beagle"), "ViT-B-16")
    assert (own.repeatable, own.trained.settings["global_rate"]) == (True, 0.002)


def test_prompts_of_another_width_are_of_another_model(tmp_path: Path) -> None:
    run, _ = exported("promptfl", tmp_path)
    width = trained("promptfl")[0].learner.clip.width
    with pytest.raises(InputError, match=f"its prompts are vectors of {width} numbers, .* CLIP have 96; name"):
        fedaudit.audit(run=str(run), attack="loss", out=str(tmp_path / "out"), quiet=True)
