"""Somebody's own run: the folder format, what is refused of it, and export as its inverse."""

import dataclasses
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from fedaudit.attacks.attacked_models import state_digest
from fedaudit.attacks.base import View
from fedaudit.command import cli
from fedaudit.command.argv import words_of
from fedaudit.external import export as export_module
from fedaudit.external.adapters import canonical
from fedaudit.external.export import export_run
from fedaudit.external.reading import read
from fedaudit.machinery.closure import closure
from fedaudit.machinery.errors import InputError
from fedaudit.machinery.store import claim
from fedaudit.pipeline.keys import training_modules
from fedaudit.tasks.base import Client, Federation, Record, client_name
from fedaudit.tasks.metrics import answer_scores, caption_scores
from fedaudit.trainers.base import Schedule
from fedaudit.trainers.learners import METHODS as PLUGINS
from fedaudit.trainers.learners import facts
from fedaudit.trainers.transcript import Transcript
from tests import small_run as small
from tests.asking_toy import Candidates, models
from tests.small_run import MODEL, PICTURE, RUN, UPLOAD, A, B, adapter, line, put
from tests.toy import toy_run
from tests.whole_runs import contents

DOCS = Path(__file__).parents[1] / "docs"
ADAPTERS, PROMPTS = (DOCS / "reference/run-folder.md").read_text().split("## Prompts\n")
ADAPTERS += (DOCS / "guides/own-runs.md").read_text()


def blocks_of(text: str) -> dict[str, str]:
    """Fenced blocks by the file that the line before them names."""
    return dict(re.findall(r"^`([\w.]+)`[^\n]*\n\n?```\w+\n(.*?)^```", text, re.DOTALL | re.MULTILINE))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return small.small_run(tmp_path / "my-run")


def test_what_read_finds(run):
    own = read(run)
    assert (own.method, own.task, own.seed, own.backbone) == ("mine", "photos", 0, "embedded")
    assert (own.trained.alpha, own.score, own.trained.rank, own.trained.targets) == (2.0, "captions", 1, ("q_proj",))
    assert (own.rounds, own.clients, own.cohorts) == (2, 3, ((0, 2), (2,)))
    assert (own.claimed, own.provable.partition(":")[0]) == ("not stated", "unknown")
    put(run / "run.json", RUN | {"score": "answers"})
    assert read(run).federation.score is answer_scores


def test_the_federation_of_a_folder(run):
    put(run / "reference.jsonl", [line("r1", 2), line("r0", 2), line("r2", 0)])
    put(run / "novel.jsonl", [line("v1"), line("v0")])
    put(run / "test.jsonl", [line("t")])
    put(run / "novel_test.jsonl", [line("u")])
    found = read(run).federation
    assert [client.name for client in found.clients] == ["client-00", "client-01", "client-02"]
    assert found.truth == {"m0": True, "o0": False, "m2": True, "n2": True, "o2": False}
    assert found.clients[1].records == () == found.clients[1].reference
    assert [r.id for r in found.clients[2].reference] == ["r1", "r0"], "in the file's order"
    more = [[r.id for r in part] for part in (found.novel, found.test, found.novel_test)]
    assert more == [["v1", "v0"], ["t"], ["u"]]
    records = found.records
    assert (records["m0"].prompt, records["o2"].prompt) == (small.PROMPT, "<image> other")
    assert (records["m2"].references, records["m0"].references) == (("one", "two"), ("a m0",))
    assert (records["o0"].group, records["m0"].group) == ("dogs", "")
    assert isinstance(records["m0"].picture, Path)
    assert np.array_equal(records["m0"].image, np.arange(12).reshape(2, 2, 3))
    assert found.score is caption_scores


def test_pictures_are_found_from_another_working_directory(run, monkeypatch, tmp_path):
    monkeypatch.chdir(run.parent)
    found = read(Path("my-run")).federation
    monkeypatch.chdir("/")
    assert found.records["m0"].image.shape == (2, 2, 3)


class TestOrder:
    def many(self, run: Path, **places: list[int]) -> list[str]:
        """Ids of the candidates of client 0, ten members and ten others; `places` are their positions."""
        for name, word in (("members", "member"), ("nonmembers", "other")):
            more = [{"position": p} for p in places[name]] if name in places else [{}] * 10
            put(run / f"{name}.jsonl", [*(line(f"{word}-{i}", 0, **more[i]) for i in range(10)), line(f"{word}-x", 2)])
        return [r.id for r in read(run).federation.clients[0].records]

    def test_positions_are_followed(self, run):
        order = self.many(run, members=list(range(0, 20, 2)), nonmembers=list(range(1, 20, 2)))
        assert order == [f"{word}-{i}" for i in range(10) for word in ("member", "other")]

    def test_without_positions_names_do_not_sort_members_to_the_front(self, run):
        """Attacks ask the first candidates more often; ids tell members apart, the order must not."""
        order = self.many(run)
        assert len({name.partition("-")[0] for name in order[:10]}) == 2
        assert self.many(run, members=list(range(10))) == order, "positions on one side only are ignored"
        for path in (run / "members.jsonl", run / "nonmembers.jsonl"):
            path.write_text("\n".join(reversed(path.read_text().splitlines())))
        assert [r.id for r in read(run).federation.clients[0].records] == order, "the order of the lines"


class TestNames:
    @pytest.mark.parametrize(
        ("given", "expected"),
        [
            ("layers.0.self_attn.q_proj.A", "layers.0.self_attn.q_proj.A"),
            ("base_model.model.model.language_model.layers.12.attn.q_proj.lora_A.weight", "layers.12.attn.q_proj.A"),
            ("base_model.model.layers.3.mlp.up_proj.lora_B.default.weight", "layers.3.mlp.up_proj.B"),
            ("model.layers.0.mlp.experts.7.w1.A", "layers.0.mlp.experts.7.w1.A"),
            ("transformer.h.3.attn.c_attn.lora_A.weight", "h.3.attn.c_attn.A"),
            ("layers.0.q_proj.own.B", "layers.0.q_proj.own.B"), ("layers.0.q_proj.weight", None),
            ("layers.0.q_proj.lora_magnitude_vector", None), ("q_proj.A", None), ("layers.0.A", None),
        ],
    )  # fmt: skip
    def test_by_hand(self, given, expected):
        assert canonical(given) == expected

    def test_a_run_in_peft_names_is_the_same_run(self, run, tmp_path):
        ours = transcript(run, tmp_path / "ours")
        for path in run.rglob("*.safetensors"):
            state = load_file(path)
            save_file({f"base_model.model.model.{n[:-2]}.lora_{n[-1]}.weight": t for n, t in state.items()}, path)
        assert_same_transcripts(ours, transcript(run, tmp_path / "theirs"), owners=False)


def transcript(run: Path, folder: Path) -> Transcript:
    own = read(run)
    own.write_transcript(claim(folder))
    return Transcript(claim(folder), Schedule(own.rounds, own.clients, max(map(len, own.cohorts)), own.seed))


def assert_same(one: dict[str, torch.Tensor] | None, other: dict[str, torch.Tensor] | None) -> None:
    assert (one is None) == (other is None)
    if one is not None and other is not None:
        assert one.keys() == other.keys()
        assert all(torch.equal(t, other[name]) and t.dtype == other[name].dtype for name, t in one.items())


def assert_same_transcripts(one: Transcript, other: Transcript, *, owners: bool = True) -> None:
    assert one.initial == other.initial
    for r in range(one.schedule.rounds + 1):
        assert_same(one.broadcast(r), other.broadcast(r))
    for r in range(one.schedule.rounds):
        a, b = one.round(r), other.round(r)
        for message in (*a["uploads"].values(), *b["uploads"].values()):
            message.pop("owner")
        assert a == b
        for client in one.cohort(r):
            assert_same(one.upload(r, client), other.upload(r, client))
            assert one.kept(r, client) == other.kept(r, client)
            if owners and r == one.participations(client)[-1]:
                assert one.own_model(r, client) is not None
                assert_same(one.own_model(r, client), other.own_model(r, client))


class TestTranscript:
    def test_what_tensors_tell_by_hand(self, run, tmp_path):
        """20 bytes a model: A is 2 numbers of 4 bytes, B is 3. Client 2 keeps B in the first round."""
        found = transcript(run, tmp_path / "out")
        assert found.initial == {"utility": {}}
        both = {"records": 2, "facts": {}, "bytes": 20, "kept": [], "owner": False}
        uploads = {"0": both | {"records": 1}, "2": both | {"bytes": 8, "kept": [B]}}
        about = {"round": 0, "cohort": [0, 2], "bytes_down": 40, "bytes_up": 28, "utility": {}}
        assert found.round(0) == about | {"uploads": uploads}
        for r in range(3):
            assert_same(found.broadcast(r), small.MODELS[r])
        assert_same(found.upload(0, 2), {A: adapter(20)[A]})
        assert found.own_model(1, 2) is None, "the folder does not hold it"

    def test_rounds_json_wins_over_what_tensors_tell(self, run, tmp_path):
        said = {"records": 7, "facts": {"half": "A"}, "kept": [B, "layers.0.q_proj.own.A"]}
        initial = {"utility": {"global": {"loss": 2.5}}}
        utility = {"global": {"loss": 1.5, "cider": None}}
        in_peft_names = said | {"kept": ["base_model.model.layers.0.q_proj.lora_B.weight", "layers.0.q_proj.own.A"]}
        first = {"uploads": {"2": in_peft_names}, "bytes_down": 1, "bytes_up": 2, "utility": utility}
        put(run / "rounds.json", {"initial": initial, "0": first})
        found = transcript(run, tmp_path / "out")
        assert found.initial == initial
        assert found.round(0)["uploads"]["2"] == said | {"bytes": 8, "owner": False}
        assert found.round(0)["uploads"]["0"]["records"] == 1
        assert (found.round(0)["bytes_down"], found.round(0)["bytes_up"], found.round(0)["utility"]) == (1, 2, utility)
        assert found.round(1)["bytes_down"] == 20

    @pytest.mark.parametrize("kept", [[], ["layers.0.q_proj.own.A"]])
    def test_what_an_upload_lacks_was_kept_whatever_is_said(self, kept, run, tmp_path):
        """Client 2 sent A alone: with B of its own it has a whole model, and A alone is none."""
        put(run / "rounds.json", {"0": {"uploads": {"2": {"kept": kept}}}})
        assert B in transcript(run, tmp_path / "out").kept(0, 2)

    def test_an_owner_counts_after_the_last_participation(self, run, tmp_path):
        true, of_another_rank = {A: adapter(30)[A], B: adapter(31)[B]}, {A: torch.ones(4, 2), B: torch.ones(3, 4)}
        put(run / "owners/client-02.safetensors", true)
        put(run / "owners/client-00.safetensors", of_another_rank)
        found = transcript(run, tmp_path / "out")
        assert_same(found.own_model(1, 2), true)
        assert found.own_model(0, 2) is None
        assert_same(found.own_model(0, 0), of_another_rank)
        assert "private/2/" + A not in found.folder.read_tensors("round-001.safetensors"), "the upload holds it"

    def test_a_message_without_tensors_and_one_in_half_precision(self, run, tmp_path):
        save_file({}, run / "uploads/round-000/client-00.safetensors")
        put(run / "uploads/round-001/client-02.safetensors", {n: t.to(torch.bfloat16) for n, t in adapter(30).items()})
        found = transcript(run, tmp_path / "out")
        assert (found.kept(0, 0), found.upload(0, 0)) == ([A, B], {})
        assert_same(found.upload(1, 2), adapter(30))
        assert found.round(1)["uploads"]["2"]["bytes"] == 10

    def test_resumed_equals_whole(self, run, tmp_path):
        """A file is lost, another damaged: only these are written again, and the bytes are the same."""
        own, folder = read(run), claim(tmp_path / "out")
        own.write_transcript(folder)
        before = {p.name: p.read_bytes() for p in folder.path.iterdir()}
        untouched = (folder.path / "round-001.safetensors").stat().st_mtime_ns
        folder.remove("round-000.json")
        (folder.path / "initial.safetensors").write_bytes(b"damaged")
        said: list[str] = []
        own.write_transcript(folder, say=said.append)
        assert {p.name: p.read_bytes() for p in folder.path.iterdir()} == before
        assert (folder.path / "round-001.safetensors").stat().st_mtime_ns == untouched
        assert [text for text in said if "initial.safetensors is damaged" in text] == said != []


class TestIdentity:
    def test_a_copy_elsewhere_has_the_same_hash(self, run, tmp_path):
        shutil.copytree(run, tmp_path / "copy")
        for name in ("README", "models/.DS_Store"):
            small.raw(name, b"counts for nothing")(tmp_path / "copy")
        assert read(tmp_path / "copy").sha256 == read(run).sha256

    @pytest.mark.parametrize("name", ["run.json", "members.jsonl", PICTURE, MODEL, "rounds.json"])
    def test_every_file_counts(self, run, name):
        put(run / "rounds.json", {"0": {"bytes_up": 1}})
        before = read(run).sha256
        if name == PICTURE:
            Image.fromarray(np.zeros((2, 2, 3), np.uint8)).save(run / name)
        elif name.endswith(".safetensors"):
            put(run / name, adapter(99))
        else:
            (run / name).write_bytes((run / name).read_bytes() + b"\n")
        assert read(run).sha256 != before


@pytest.mark.parametrize("module", ["run", "checkpoints"])
def test_importing_is_light(module):
    """The command line imports these before it knows what is asked for."""
    code = f"import sys, fedaudit.external.{module}; print({{'torch', 'numpy', 'PIL'}} & {{*sys.modules}})"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "set()"


@pytest.mark.parametrize("name", ["nowhere", "file"])
def test_no_such_folder(tmp_path, name):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=rf"{name}: no such folder; it should hold run.json, models, uploads"):
        read(tmp_path / name)


@pytest.mark.parametrize(
    ("damage", "words"),
    [(small.truncate(UPLOAD, -4), "safetensors"), (small.delete(UPLOAD), "No such file"), (small.pipe(UPLOAD), "FIFO")],
)
def test_a_file_that_is_damaged_after_its_header_was_read(run, tmp_path, damage, words):
    own = read(run)
    damage(run)
    with pytest.raises(InputError, match=rf"client-02\.safetensors cannot be read .*{words}"):
        assert own.remarks


@pytest.mark.parametrize("name", ["images", PICTURE, "models", MODEL, "uploads/round-000", "members.jsonl", "run.json"])
def test_linked_files_are_read_if_asked_for(run, name):
    before = read(run).sha256
    small.moved_out(name)(run)
    with pytest.raises(InputError, match="lies outside of the run's folder; only --linked-files allows that"):
        read(run)
    own = read(run, linked=True)
    assert [remark.check for remark in own.remarks] == ["pictures"], "its candidates have one picture"
    assert own.sha256 == before
    assert own.federation.records["m0"].image.shape == (2, 2, 3)


def test_pictures_elsewhere_are_read_if_asked_for(run):
    shutil.move(run / "images", run.parent / "pictures")
    for path in (str(run.parent / "pictures/x.png"), "../pictures/x.png"):
        for file in (run / "members.jsonl", run / "nonmembers.jsonl"):
            put(file, [json.loads(text) | {"image": path} for text in file.read_text().splitlines()])
        with pytest.raises(InputError, match=r"image .*pictures/x.png lies outside"):
            read(run)
        assert read(run, linked=True).federation.records["m0"].image.shape == (2, 2, 3)


def test_even_linked_files_must_be_regular(run):
    small.linked("images/x.png", "/dev/zero")(run)
    with pytest.raises(InputError, match=r"image images/x\.png cannot be read \(it is a FIFO, socket or device"):
        read(run, linked=True)


def test_links_inside_of_the_folder_and_to_the_folder_are_fine(run):
    before = read(run).sha256
    (run / "images").rename(run / "pictures")
    (run / "images").symlink_to("pictures")
    (run / MODEL).rename(run / "start")
    (run / MODEL).symlink_to("../start")
    (run.parent / "link").symlink_to("my-run")
    assert read(run).sha256 == read(run.parent / "link").sha256 == before


def test_the_command_takes_linked_files(run, tmp_path, capsys):
    small.moved_out("images")(run)
    words = ["--run", str(run), "--out", str(tmp_path / "out"), "--dry-run"]
    assert cli.main(words) == 2
    assert "members.jsonl line 1: image images/x.png lies outside" in capsys.readouterr().err
    given = words_of({"run": run, "linked_files": True})
    for asked in ([*words, "--linked-files"], given):
        assert cli.read_command(asked).plan.own.sha256 == read(run, linked=True).sha256


def test_lines_of_other_systems(run):
    """A byte-order mark and the line ends of Windows."""
    before = list(read(run).federation.records)
    for path in run.glob("*.jsonl"):
        path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n\r\n"))
    assert list(read(run).federation.records) == before
    assert read(run).lists["members"][1].where == f"{run / 'members.jsonl'} line 3"


@pytest.mark.parametrize("name", ["=1+2", "+1", "-1", "@a", "a/b", "..", "Ä b", "a,b", "'", "<b>", "O0"])
def test_ids_that_mean_something_elsewhere_are_read_as_they_are(run, name):
    """Nothing is called by an id; `O0` differs from another one in its case only."""
    small.add("members.jsonl", line(name, 1))(run)  # of a client that never took part
    assert [r.id for r in read(run).federation.clients[1].records] == [name]


SCHEDULE = Schedule(rounds=5, clients=5, per_round=2, seed=3)
SETTINGS: dict[str, dict[str, int]] = {"fedavg": {}, "fedrand": {}, "fedper": {"shared_layers": 1}, "fedpara": {}}
METHODS = {name: PLUGINS[name].make(PLUGINS[name].params(**own)) for name, own in SETTINGS.items()}


def record(name: str, n: int) -> Record:
    pixels = np.random.default_rng(n).integers(0, 256, (5, 4, 3), np.uint8)
    text, references = f"ein Bär, {n}", (f"ein Bär, {n}", "two\u2028lines\nof it")
    return Record(name, f"group {n % 3}", pixels, f"{n}: <image> “what?”", text, references)


def toy_federation() -> Federation:
    """As tests.toy trains: client k has k + 1 members `k-i`; among them held-out records, ids that sort all of them last."""
    rng, clients = np.random.default_rng(0), []
    for k in range(SCHEDULE.clients):
        member = rng.permutation([True] * (k + 1) + [False] * (k + 2))
        names, others = iter(f"{k}-{i}" for i in range(k + 1)), iter(f"z{k}-{i}" for i in range(k + 2))
        records = tuple(record(next(names if used else others), 10 * k + i) for i, used in enumerate(member))
        reference = (record(f"ref-{k}-b", 7), record(f"ref-{k}-a", 100 + k))
        clients.append(Client(client_name(k), records, reference, member))
    blank = dataclasses.replace(record("t/2", 5), references=())
    return Federation(tuple(clients), (record("nov", 1),), (record("t1", 2), blank), novel_test=(record("nt", 3),))


ABOUT = {
    "method": "fedper:shared_layers=1", "task": "captions", "seed": 3, "backbone": "embedded", "alpha": 16.0,
    "aggregation": "mean",
}  # fmt: skip
EPSILON = {"claimed": "8 at delta 1e-5", "provable": "12"}


def exported(original: Transcript, destination: Path, *, data=None, score="captions", epsilon=EPSILON, **about) -> Path:
    export_run(original, data or toy_federation(), destination, about=ABOUT | about, score=score, epsilon=epsilon)
    return destination


@pytest.fixture(scope="module", params=METHODS)
def original(request, tmp_path_factory) -> Transcript:
    folder = tmp_path_factory.mktemp(request.param)
    return toy_run(folder, METHODS[request.param], schedule=SCHEDULE, noise=0.1, layers=2)


@pytest.fixture(scope="module")
def again(original, tmp_path_factory):
    place = tmp_path_factory.mktemp("again")
    found = transcript(exported(original, place / "run"), place / "transcript")
    return read(place / "run"), found


class TestRoundTrip:
    def test_transcripts(self, original, again):
        """Clients of the toy learn nearly the same, so that uploads may be equal; nothing else is said of them."""
        own, found = again
        assert found.schedule == SCHEDULE
        assert_same_transcripts(original, found)
        assert {remark.check for remark in own.remarks} <= {"uploads"}

    def test_federations(self, again):
        before, after = toy_federation(), again[0].federation
        assert list(before.records) == list(after.records)
        assert list(before.truth.items()) == list(after.truth.items())
        for client, same in zip(before.clients, after.clients, strict=True):
            assert client.name == same.name
            assert [r.id for r in client.reference] == [r.id for r in same.reference]
        for one, other in zip(before.records.values(), after.records.values(), strict=True):
            assert np.array_equal(one.image, other.image)
            assert other.where.partition(" line ")[0].endswith(".jsonl")
            without = {"picture": b"", "where": ""}
            assert vars(one) | without == vars(other) | without

    def test_every_adversary_holds_the_same_models(self, original, again):
        """Weights, records and order by content: an attack's scores, and so the findings, cannot differ."""
        both = []
        for found, data in ((original, toy_federation()), (again[1], again[0].federation)):
            own = {k: [r.id for r in client.records] for k, client in enumerate(data.clients)}
            reference = {k: [r.id for r in client.reference] for k, client in enumerate(data.clients)}
            asked = Candidates(own, reference, [r.id for r in data.novel])
            held = [m for name in facts("lora").threat_models for m in models(View(found, name), asked)]
            both.append([(m.threat_model, m.way, m.client, m.round, m.records, state_digest(m.read())) for m in held])
        assert both[0] == both[1]
        assert {way for _, way, *_ in both[0]} >= {"final", "true state"}

    def test_exported_again_it_is_the_same_run(self, again, tmp_path):
        own, found = again
        epsilon = {"claimed": own.claimed, "provable": own.provable}
        second = exported(found, tmp_path / "second", data=own.federation, score=own.score, epsilon=epsilon)
        assert read(second).sha256 == own.sha256


@pytest.fixture(scope="module")
def plain(tmp_path_factory) -> Transcript:
    return toy_run(tmp_path_factory.mktemp("plain"), METHODS["fedavg"], schedule=SCHEDULE)


class TestExport:
    def test_what_run_json_says(self, plain, tmp_path):
        own = read(exported(plain, tmp_path / "run", score="answer_scores", alpha=3.5))
        assert (own.method, own.task, own.seed, own.backbone) == ("fedper:shared_layers=1", "captions", 3, "embedded")
        assert (own.trained.alpha, own.trained.rank, own.score, own.clients) == (3.5, 1, "answers", 5)
        assert {"claimed": own.claimed, "provable": own.provable} == EPSILON

    def test_a_claim_that_can_be_compared(self, run):
        claim = {"epsilon": 8, "delta": 1e-5, "unit": "record", "neighbours": "zero-out"}
        put(run / "run.json", RUN | {"format": 2, "claim": claim})
        assert read(run).claimed == "8 at delta 1e-05 for a record (zero-out)"
        for changes, message in (
            ({"claimed": "8"}, "claimed and claim say the same"),
            ({"claim": {"epsilon": 8}}, "run.json, claim lacks the key 'delta'"),
            ({"claim": claim | {"unit": "user"}}, 'claim: unit must be "record" or "client"'),
            ({"claim": claim | {"delta": 1}}, "delta must be a number from 0 to below 1"),
        ):
            put(run / "run.json", RUN | {"format": 2, "claim": claim} | changes)
            with pytest.raises(InputError, match=message):
                read(run)

    def test_a_score_that_the_format_cannot_name(self, plain, tmp_path):
        with pytest.raises(InputError, match="utility is scored by my_scores; valid are captions and answers"):
            exported(plain, tmp_path / "run", score="my_scores")

    def test_background_records_stay_at_home(self, plain, tmp_path):
        data = toy_federation()
        clients = (dataclasses.replace(c, background=(record(f"back-{c.name}", 9),)) for c in data.clients)
        exported(plain, tmp_path / "run", data=dataclasses.replace(data, clients=tuple(clients)))
        assert list(read(tmp_path / "run").federation.records) == list(data.records)

    def test_equal_pictures_are_stored_once(self, plain, tmp_path):
        run = exported(plain, tmp_path / "run")
        distinct = {r.image.tobytes() for r in toy_federation().records.values()}
        assert len(list((run / "images").iterdir())) == len(distinct) < len(toy_federation().records)

    def test_refuses_to_mix_runs_and_to_write_over_a_file(self, plain, tmp_path):
        (tmp_path / "run").mkdir()
        assert read(exported(plain, tmp_path / "run")).rounds == 5, "an empty folder will do"
        before = contents(tmp_path)
        with pytest.raises(InputError, match=r"--export-run .*run: not empty; name a folder that is empty"):
            exported(plain, tmp_path / "run")
        with pytest.raises(InputError, match=r"--export-run .*run.json: cannot be written \(File exists\)"):
            exported(plain, tmp_path / "run" / "run.json")
        assert contents(tmp_path) == before

    def test_a_full_disk(self, plain, tmp_path, monkeypatch):
        monkeypatch.setattr("os.replace", mock.Mock(side_effect=OSError(28, "No space left on device")))
        with pytest.raises(InputError, match=r"^--export-run .*: cannot be written \(No space left") as caught:
            exported(plain, tmp_path / "run")
        assert "--out" not in str(caught.value)

    def test_a_kill_leaves_nothing_that_is_read(self, plain, tmp_path, monkeypatch):
        """Killed before each of its writes in turn."""
        from fedaudit.external.export import _Destination

        put_all, writes = _Destination.write, []
        monkeypatch.setattr(_Destination, "write", lambda s, n, d, **k: (writes.append(n), put_all(s, n, d, **k)))
        exported(plain, tmp_path / "whole")
        assert writes[-1] == "run.json"
        for i in [*range(0, len(writes), 9), len(writes) - 1]:
            left = iter(range(i))

            def put_some(self, name, data, left=left, **more):
                if next(left, None) is None:
                    raise KeyboardInterrupt
                put_all(self, name, data, **more)

            monkeypatch.setattr(_Destination, "write", put_some)
            with pytest.raises(KeyboardInterrupt):
                exported(plain, tmp_path / f"killed-{i}")
            with pytest.raises(InputError, match=r"run\.json is missing"):
                read(tmp_path / f"killed-{i}")

    def test_owners_that_a_run_does_not_hold_are_left_out(self, run, tmp_path):
        put(run / "owners/client-02.safetensors", adapter(5))
        before = transcript(run, tmp_path / "t")
        out = exported(before, tmp_path / "out", data=read(run).federation)
        assert [p.name for p in (out / "owners").iterdir()] == ["client-02.safetensors"]
        assert_same_transcripts(before, transcript(out, tmp_path / "u"), owners=False)


@pytest.mark.parametrize("attack", ["gradnorm", "lira", "rmia", "quantile", "shadow"])
def test_attacks_that_a_run_of_adapters_does_not_allow(run, capsys, attack):
    assert cli.main(["--run", str(run), "--attack", attack]) == 2
    said = capsys.readouterr().err
    assert f"--attack {attack}" in said
    assert "maxrenyi" in said
    assert attack == "gradnorm" or "shadow models" in said


def test_the_key_of_a_run_covers_all_that_reads_it(run, tmp_path):
    """A change of the reader, or of what it imports, makes a stored transcript stale."""
    (cell,) = cli.read_command(["--run", str(run), "--out", str(tmp_path / "out")]).plan.cells
    writers = {"export.py", "split.py"}
    readers = {f"fedaudit/external/{path.name}" for path in Path(export_module.__file__).parent.glob("*.py")}
    assert readers - {f"fedaudit/external/{name}" for name in writers} <= {*closure(*training_modules(cell))}


class TestDocs:
    """What docs/reference/run-folder.md and docs/guides/own-runs.md show works as it stands."""

    def test_the_example_is_a_run(self, tmp_path, run):
        blocks = blocks_of(ADAPTERS)
        assert blocks.keys() >= {"run.json", "rounds.json", "members.jsonl", "nonmembers.jsonl", "reference.jsonl"}
        for name in (name for name in blocks if name.endswith(("json", "jsonl"))):
            (tmp_path / name).write_text(blocks[name])
        for r in range(2):
            put(tmp_path / f"models/round-{r:03d}.safetensors", adapter(r))
        put(tmp_path / "uploads/round-000/client-00.safetensors", {A: adapter(1)[A]})
        put(tmp_path / "uploads/round-000/client-01.safetensors", {B: adapter(1)[B]})
        (tmp_path / "images").mkdir()
        for name in re.findall(r"images/\w+\.png", "".join(blocks.values())):
            shutil.copy(run / PICTURE, tmp_path / name)
        own = read(tmp_path)
        assert (own.cohorts, own.clients) == (((0, 1),), 2)
        assert set(own.federation.truth.values()) == {True, False}

    def test_the_script_writes_a_run(self, tmp_path, monkeypatch):
        """With what peft gives: states that share memory with the one model that all clients train in."""
        from peft import LoraConfig, get_peft_model, get_peft_model_state_dict, set_peft_model_state_dict

        model = torch.nn.Module()
        model.layers = torch.nn.ModuleList([torch.nn.ModuleDict({"q_proj": torch.nn.Linear(4, 3)}) for _ in range(2)])
        adapted = get_peft_model(model, LoraConfig(r=2, target_modules=["q_proj"]))

        def train_client(server, k):
            set_peft_model_state_dict(adapted, server)
            with torch.no_grad():
                for name, weight in adapted.named_parameters():
                    if "lora" in name:
                        weight += k + 1
            return get_peft_model_state_dict(adapted)

        monkeypatch.chdir(tmp_path)
        (tmp_path / "my-run").mkdir()
        picture = "x.png"
        Image.fromarray(np.zeros((2, 2, 3), np.uint8)).save(tmp_path / "my-run" / picture)
        given = {
            "model": adapted, "rounds": 2, "cohort": lambda r: [r, r + 1], "train_client": train_client,
            "aggregate": lambda sent: next(iter(sent.values())),
            "trained_on": [(f"m{k}", k, picture, "yes") for k in range(3)],
            "held_out": [(f"o{k}", k, picture, "no") for k in range(3)],
        }  # fmt: skip
        start = {canonical(name): tensor.clone() for name, tensor in get_peft_model_state_dict(adapted).items()}
        script = blocks_of(ADAPTERS)["save_run.py"]
        assert len(script.splitlines()) <= 32
        exec(script, given)
        own = read(Path("my-run"))
        assert (own.trained.rank, own.trained.targets, own.cohorts) == (2, ("q_proj",), ((0, 1), (1, 2)))
        assert [r.check for r in own.remarks] == ["pictures", "weights"], "its server takes one client's state"
        again = transcript(Path("my-run"), tmp_path / "t")
        assert_same(again.broadcast(0), start)
        for r, first in enumerate([start, again.upload(0, 0)]):
            for k in (r, r + 1):
                assert_same(again.upload(r, k), {name: tensor + k + 1 for name, tensor in first.items()})
        assert_same(again.broadcast(1), again.upload(0, 0))
        assert_same(again.own_model(1, 1), again.upload(1, 1))
