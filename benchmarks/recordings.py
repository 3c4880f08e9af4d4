"""Ways to record a run wrongly, or unusually, and what an audit says of each: `python -m benchmarks.recordings`.

Each is one change of a run that `--export-run` wrote: FedAvg, all clients in each round, different numbers of records.
The command exports such a run of the built-in model, audits every recording of it, and prints the server's AUROC, the
verdict and what was said; `tests/test_recording.py` makes the same changes to a toy run. A run that is recorded rightly
must get the numbers of the run itself and no remark, and no other may lose its leak without one.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

import fedaudit

State = dict[str, torch.Tensor]
Change = Callable[[Path], object]  # of a run's folder

# what is said (the remark's `check`), or REFUSED, or one of both, or RIGHT: equal numbers and nothing said
REFUSED, RIGHT = "refused", "right"


@dataclass(frozen=True)
class Recording:
    """A change of a right recording and what is expected of an audit."""

    change: Change
    expected: str
    words: str = ""  # words that the sentence must hold
    by_model: bool = False  # whether only the model itself tells


def models(run: Path) -> list[Path]:
    return sorted((run / "models").iterdir())


def rounds(run: Path) -> list[list[Path]]:
    """Paths of the uploads of each round, by client."""
    return [sorted(folder.iterdir()) for folder in sorted((run / "uploads").iterdir())]


def rewrite(path: Path, change: Callable[[State], State]) -> None:
    save_file({name: tensor.contiguous() for name, tensor in change(load_file(path)).items()}, path)


def edit(name: str, **values: object) -> Change:
    """Set keys of a JSON file."""

    def change(run: Path) -> None:
        (run / name).write_text(json.dumps(json.loads((run / name).read_text()) | values))

    return change


def both(*changes: Change) -> Change:
    def change(run: Path) -> None:
        for one in changes:
            one(run)

    return change


def uploads(change: Callable[[State, State], State], *, last: bool = False) -> Change:
    """Replace each upload, in all rounds or the last, by `change(upload, model before it)`."""

    def apply(run: Path) -> None:
        for r, paths in list(enumerate(rounds(run)))[-1 if last else 0 :]:
            before = load_file(models(run)[r])
            for path in paths:
                rewrite(path, lambda sent, before=before: change(sent, before))

    return apply


def difference(sent: State, before: State) -> State:
    return {name: tensor - before[name] for name, tensor in sent.items()}


def cast(dtype: torch.dtype) -> Change:
    def change(run: Path) -> None:
        for path in run.rglob("*.safetensors"):
            rewrite(path, lambda state: {name: tensor.to(dtype) for name, tensor in state.items()})

    return change


def permuted(*, last: bool = False) -> Change:
    """The file of client k is called by client k + 1, in all rounds or the last."""

    def change(run: Path) -> None:
        for paths in rounds(run)[-1 if last else 0 :]:
            content = [path.read_bytes() for path in paths]
            for path, data in zip(paths, content[-1:] + content[:-1], strict=True):
                path.write_bytes(data)

    return change


def late(*, last: bool = False) -> Change:
    """Models are those of one round before, in all rounds or only the last."""

    def change(run: Path) -> None:
        paths = models(run)
        content = [path.read_bytes() for path in paths]
        for r in [len(paths) - 1] if last else range(len(paths) - 1, 0, -1):
            paths[r].write_bytes(content[r - 1])

    return change


def late_uploads(run: Path) -> None:
    """Uploads are those of one round before; the first round keeps its own."""
    all_paths = rounds(run)
    content = [[path.read_bytes() for path in paths] for paths in all_paths]
    for paths, earlier in zip(all_paths[1:], content, strict=False):
        for path, data in zip(paths, earlier, strict=True):
            path.write_bytes(data)


def one_client(run: Path) -> None:
    """Each global model is the state of the first client."""
    for r, paths in enumerate(rounds(run)):
        shutil.copy(paths[0], models(run)[r + 1])


def shared_memory(run: Path) -> None:
    """All uploads of a round are the last client's."""
    for paths in rounds(run):
        for path in paths[:-1]:
            shutil.copy(paths[-1], path)


def untrained(run: Path) -> None:
    for path in [*models(run)[1:], *(path for paths in rounds(run) for path in paths)]:
        shutil.copy(models(run)[0], path)


def still(run: Path) -> None:
    for path in models(run)[1:]:
        shutil.copy(models(run)[0], path)


def missing_client(run: Path) -> None:
    """The upload of one client is missing in the last round."""
    path = rounds(run)[-1][-1]
    path.unlink()
    notes = json.loads((run / "rounds.json").read_text())
    del notes[str(len(rounds(run)) - 1)]["uploads"][str(int(path.stem[7:]))]
    (run / "rounds.json").write_text(json.dumps(notes))


# the server's change, from the clients' changes, its own change, and what it was in the round before
Step = Callable[[list[State], State, State], State]


def served(step: Step) -> Change:
    """Another server: each round's change of the model is `step`; clients' changes stay what they are."""

    def change(run: Path) -> None:
        old = [load_file(path) for path in models(run)]
        new, moved = old[0], difference(old[0], old[0])
        for r, paths in enumerate(rounds(run)):
            sent = [difference(load_file(path), old[r]) for path in paths]
            for path, one in zip(paths, sent, strict=True):
                save_file({n: new[n] + one[n] for n in one}, path)
            moved = step(sent, difference(old[r + 1], old[r]), moved)
            new = {n: new[n] + moved[n] for n in new}
            save_file(new, models(run)[r + 1])

    return change


def momentum(sent: list[State], own: State, last: State) -> State:
    return {n: own[n] + 0.5 * last[n] for n in own}


def half_step(sent: list[State], own: State, last: State) -> State:
    return {n: 0.5 * own[n] for n in own}


def plain_mean(sent: list[State], own: State, last: State) -> State:
    return {n: torch.stack([state[n] for state in sent]).mean(0) for n in own}


def noise(run: Path) -> None:
    """Noise on every global model."""
    generator = torch.Generator().manual_seed(0)
    for path in models(run)[1:]:
        rewrite(path, lambda s: {n: t + 0.01 * torch.randn(t.shape, generator=generator) for n, t in s.items()})


def counts(change: Callable[[list[int]], list[int]]) -> Change:
    """Change the numbers of records that rounds.json states."""

    def apply(run: Path) -> None:
        notes = json.loads((run / "rounds.json").read_text())
        for r in range(len(rounds(run))):
            sent = notes[str(r)]["uploads"]
            for client, n in zip(sent, change([sent[k]["records"] for k in sent]), strict=True):
                sent[client]["records"] = n
        (run / "rounds.json").write_text(json.dumps(notes))

    return apply


def warm_start(run: Path) -> None:
    """B is not zero before training: all models and uploads have the same part more."""
    for path in [*models(run), *(path for paths in rounds(run) for path in paths)]:
        rewrite(path, lambda s: {n: t + 0.01 if n.endswith(".B") else t for n, t in s.items()})


def stale(run: Path) -> None:
    """One tensor of the last global model is that of the model before."""
    before, last = models(run)[-2:]
    name = next(n for n in sorted(load_file(last)) if n.endswith(".B"))
    rewrite(last, lambda state: state | {name: load_file(before)[name]})


def unsent(run: Path) -> None:
    """No upload of the last round holds one of the tensors, and the global model has a new one."""
    name = next(n for n in sorted(load_file(models(run)[0])) if n.endswith(".B"))
    for path in rounds(run)[-1]:
        rewrite(path, lambda state: {n: t for n, t in state.items() if n != name})


def shuffled(run: Path) -> None:
    """The folders of the first and the last round's uploads are exchanged."""
    first, *_, last = sorted((run / "uploads").iterdir())
    first.rename(run / "kept")
    last.rename(first)
    (run / "kept").rename(last)


def renamed(rename: Callable[[str], str]) -> Change:
    def change(run: Path) -> None:
        for path in run.rglob("*.safetensors"):
            rewrite(path, lambda state: {rename(name): tensor for name, tensor in state.items()})

    return change


def peft_name(name: str, *, prefix: str = "base_model.model.model.language_model.", adapter: str = "") -> str:
    return f"{prefix}{name[:-2]}.lora_{name[-1]}{adapter}.weight"


def lists(name: str, change: Callable[[list[dict[str, object]]], list[dict[str, object]]]) -> Change:
    def apply(run: Path) -> None:
        path = run / f"{name}.jsonl"
        lines = change([json.loads(line) for line in path.read_text().split("\n") if line])
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))

    return apply


def members_again(run: Path) -> None:
    """Half of the held-out records are members under another id."""
    members = [json.loads(line) for line in (run / "members.jsonl").read_text().split("\n") if line]

    def change(lines: list[dict[str, object]]) -> list[dict[str, object]]:
        of_client = {k: iter([m for m in members if m["client"] == k]) for k in {line["client"] for line in lines}}
        for line in lines[::2]:
            if copy := next(of_client[line["client"]], None):
                line |= {key: value for key, value in copy.items() if key not in ("id", "position")}
        return lines

    lists("nonmembers", change)(run)


def same_pictures(run: Path) -> None:
    """A few held-out records have a member's picture, and texts of their own."""
    members = [json.loads(line) for line in (run / "members.jsonl").read_text().split("\n") if line]
    lists("nonmembers", lambda lines: [line | {"image": members[0]["image"]} for line in lines[:2]] + lines[2:])(run)


def named(run: Path) -> None:
    """Clients have 64-bit node ids, in files, lists and rounds.json; the list of names gives them their numbers."""
    clients = sorted({path.stem[7:] for paths in rounds(run) for path in paths})
    names = {int(k): str(2**63 + 7919 * (len(clients) - i)) for i, k in enumerate(clients)}
    for path in [*(path for paths in rounds(run) for path in paths), *run.glob("owners/*")]:
        path.rename(path.with_name(f"client-{names[int(path.stem[7:])]}.safetensors"))
    for name in ("members", "nonmembers", "reference"):
        if (run / f"{name}.jsonl").exists():
            lists(name, lambda lines: [line | {"client": names[int(str(line["client"]))]} for line in lines])(run)
    notes = json.loads((run / "rounds.json").read_text())
    for r in range(len(rounds(run))):
        notes[str(r)]["uploads"] = {names[int(k)]: note for k, note in notes[str(r)]["uploads"].items()}
    (run / "rounds.json").write_text(json.dumps(notes))
    edit("run.json", clients=[*names.values()])(run)


def nobody_came(run: Path) -> None:
    """A further round, in which all clients failed: the model stays as it is."""
    last = len(rounds(run))
    shutil.copy(models(run)[-1], run / f"models/round-{last + 1:03d}.safetensors")
    edit("rounds.json", **{str(last): {"failed": [0, 1]}})(run)


def last_round_only(run: Path) -> None:
    """Only what the last round began with, what was sent in it, and what came out of it."""
    for path in [*models(run)[:-2], *sorted((run / "uploads").iterdir())[:-1]]:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    edit("run.json", gaps=True)(run)


def no_second_round(run: Path) -> None:
    """Neither the model that the second round began with nor what was sent in it."""
    models(run)[1].unlink()
    shutil.rmtree(run / "uploads/round-001")
    edit("run.json", gaps=True)(run)


def half_rank(run: Path) -> None:
    """The first client has half of the rank; the server fills its factors up with zeros and takes the mean."""
    notes = json.loads((run / "rounds.json").read_text())
    for r, paths in enumerate(rounds(run)):
        records = {int(k): note["records"] for k, note in notes[str(r)]["uploads"].items()}
        share = records[int(paths[0].stem[7:])] / sum(records.values())
        sent = load_file(paths[0])
        half = rank_of(sent) // 2
        kept = {n: t[:half] if n.endswith(".A") else t[:, :half] for n, t in sent.items()}
        padded = {n: torch.zeros_like(t) for n, t in sent.items()}
        for n, t in kept.items():
            padded[n][: t.shape[0], : t.shape[1]] = t
        lost = difference(sent, padded)
        rewrite(paths[0], lambda _, kept=kept: kept)
        rewrite(models(run)[r + 1], lambda s, lost=lost, share=share: {n: t - share * lost[n] for n, t in s.items()})


def rank_of(state: State) -> int:
    return next(tensor.shape[0] for name, tensor in state.items() if name.endswith(".A"))


def merged(run: Path) -> None:
    """Each global model is merged into the backbone. Clients send the pairs of what they changed: twice the rank."""
    alpha = json.loads((run / "run.json").read_text())["alpha"]
    old = [load_file(path) for path in models(run)]
    for r, paths in enumerate(rounds(run)):
        for path in paths:
            rewrite(path, lambda sent, start=old[r]: {
                n: torch.cat([t, start[n]] if n.endswith(".A") else [t, -start[n]], 0 if n.endswith(".A") else 1)
                for n, t in sent.items()
            })  # fmt: skip
    (run / "base").mkdir()
    for path, model in zip(models(run), old, strict=True):
        scale = alpha / rank_of(model)
        save_file({n: t * (scale if n.endswith(".B") else 1) for n, t in model.items()}, run / "base" / path.name)
        save_file({n: torch.zeros_like(t) if n.endswith(".B") else t for n, t in model.items()}, path)


def without_losses(run: Path) -> None:
    """rounds.json says nothing of how well models do."""
    notes = json.loads((run / "rounds.json").read_text())
    (run / "rounds.json").write_text(json.dumps({r: note | {"utility": {}} for r, note in notes.items()}))


def left_open(run: Path) -> None:
    """One more round began, and was never closed."""
    stage = run / ".recorder" / "round-009" / "uploads"
    stage.mkdir(parents=True)
    (stage / "client-00.safetensors").touch()


def first_factors(run: Path) -> None:
    """In the first round all clients send matrices A alone, as a round of FedRand may be, and B stays zero."""
    paths, start = rounds(run)[0], load_file(models(run)[0])
    for path in paths:
        rewrite(path, lambda sent: {n: t for n, t in sent.items() if n.endswith(".A")})
    moved = load_file(models(run)[1])
    rewrite(models(run)[1], lambda after: {n: t if n.endswith(".A") else start[n] for n, t in after.items()})
    lost = difference(moved, load_file(models(run)[1]))
    for r, sent in enumerate(rounds(run)[1:], 1):  # the later rounds go on from there
        for path in (*sent, models(run)[r + 1]):
            rewrite(path, lambda state: {n: t - lost[n] if n in lost else t for n, t in state.items()})


CHANGES = edit("run.json", uploads="changes")
RECORDINGS = {
    "as exported": Recording(lambda run: None, RIGHT),
    "bfloat16": Recording(cast(torch.bfloat16), RIGHT),
    "float16": Recording(cast(torch.float16), RIGHT),
    "names of peft": Recording(renamed(peft_name), RIGHT),
    "another adapter name": Recording(renamed(lambda n: peft_name(n, adapter=".client_0")), RIGHT),
    "changes, stated": Recording(both(uploads(difference), CHANGES), RIGHT),
    "changes": Recording(uploads(difference), REFUSED, '"uploads": "changes"'),
    "changes, in the last round": Recording(uploads(difference, last=True), REFUSED, '"uploads": "changes"'),
    "changes with the other sign": Recording(
        uploads(lambda sent, before: difference(before, sent)), REFUSED, "write states less starts"
    ),
    "states, said to be changes": Recording(CHANGES, REFUSED, "does not follow"),
    "clients permuted": Recording(permuted(), "weights", "client 0's file fits the records of"),
    "clients permuted in the last round": Recording(permuted(last=True), "weights", "client 0's file fits the records of"),
    "models a round late": Recording(late(), "rounds", "earlier"),
    "the last model a round late": Recording(late(last=True), "models", "does not change in round"),
    "uploads a round late": Recording(late_uploads, "rounds or refused"),
    "rounds of uploads exchanged": Recording(shuffled, REFUSED, "does not follow"),
    "states before training": Recording(uploads(lambda sent, before: before), REFUSED, "before training"),
    "states that share memory": Recording(shared_memory, "uploads", "byte-identical"),
    "the model of one client": Recording(one_client, "weights"),
    "factors A alone in the first round": Recording(first_factors, RIGHT),
    "clients by 64-bit names": Recording(named, RIGHT),
    "a round in which all clients failed": Recording(nobody_came, RIGHT),
    "without the second round": Recording(no_second_round, "gaps", "1 is 2"),
    "the last round only": Recording(last_round_only, "gaps"),
    "nothing trained": Recording(untrained, REFUSED, "nothing was trained"),
    "a global model that never changes": Recording(still, "models", "does not change"),
    "a client is missing in the last round": Recording(missing_client, "aggregation"),
    "numbers of records of other clients": Recording(counts(lambda n: n[1:] + n[:1]), "weights", "'s file fits the records of"),
    "wrong numbers of records": Recording(counts(lambda n: [1 + 50 * (i == 0) for i in range(len(n))]), "weights"),
    "server step of one half": Recording(served(half_step), "aggregation"),
    "server step of one half, named": Recording(both(served(half_step), edit("run.json", aggregation="partial mean")), RIGHT),
    "server momentum": Recording(served(momentum), "aggregation"),
    "server momentum, named": Recording(
        both(served(momentum), edit("run.json", aggregation="server momentum")), "aggregation", "could not be checked"
    ),
    "noise on the models": Recording(noise, "aggregation"),
    "a warm start": Recording(warm_start, "start"),
    "a stale tensor in the last model": Recording(stale, "aggregation", ".B"),
    "a tensor that nobody sent": Recording(unsent, "aggregation", ".B"),
    "one client of half rank, zero-padded mean": Recording(both(half_rank, edit("run.json", scale="global rank")), RIGHT),
    "one client of half rank, no scale": Recording(half_rank, REFUSED, '"own rank" or "global rank"'),
    "merged into the backbone every round": Recording(
        both(merged, edit("run.json", scale="global rank", aggregation="stacking")), "aggregation", "could not be checked"
    ),
    "adapters of the vision tower": Recording(
        renamed(lambda n: peft_name(n, prefix="base_model.model.model.vision_tower.vision_model.encoder.")), REFUSED,
        "vision_tower", by_model=True,
    ),
    "half of the held-out records are members": Recording(members_again, "records", "left out"),
    "held-out records with members' pictures": Recording(same_pictures, "pictures"),
    "alpha of one half": Recording(edit("run.json", alpha=8), "losses", "alpha", by_model=True),
    "alpha of rsLoRA": Recording(edit("run.json", alpha=16 * 8**0.5), "losses", "alpha", by_model=True),
    "clients permuted, equal numbers of records": Recording(
        both(counts(lambda n: [10] * len(n)), served(plain_mean), permuted()), "members", "exchanged", by_model=True
    ),
    "alpha of twice, no losses": Recording(both(edit("run.json", alpha=32), without_losses), "scale", "alpha", by_model=True),
    "left open": Recording(left_open, "open", "still open"),
}  # fmt: skip

HEADLINE = ("server", "loss/base")  # the row that is printed: threat model and signal


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--only", default="", help="audit only recordings whose names hold one of these words, separated by commas"
    )
    parser.add_argument("--out", default="recordings.jsonl", help="file of all rows, as JSON lines")
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as place:
        right = exported(Path(place), "maxrenyi")
        for name, recording in RECORDINGS.items():
            if any(words in name for words in options.only.split(",")):
                run = shutil.copytree(right, Path(place) / "run")
                recording.change(run)
                rows.append({"recording": name, "expected": recording.expected, **audited(run, Path(place) / "out")})
                print(*rows[-1].values(), sep=" · ", flush=True)
                shutil.rmtree(run)
    Path(options.out).write_text("".join(json.dumps(row) + "\n" for row in rows))


def exported(place: Path, attack: str) -> Path:
    """The run that is recorded rightly."""
    fedaudit.audit(
        method="fedavg", attack=attack, rounds=3, clients=4, per_round=4, local_steps=24,
        export_run=str(place / "right"), out=str(place / "out"), quiet=True,
    )  # fmt: skip
    return place / "right"


def audited(run: Path, out: Path) -> dict[str, object]:
    """The server's AUROC and verdict, and what was said."""
    try:
        found = fedaudit.audit(run=str(run), attack="maxrenyi", out=str(out), quiet=True).findings
    except fedaudit.InputError as error:
        return {"auroc": None, "verdict": REFUSED, "said": str(error)}
    threat_model, signal = HEADLINE
    row = found[(found.threat_model == threat_model) & (found.signal == signal) & (found.metric == "auroc")].iloc[0]
    said = found[found.metric == "recording"].sentence
    return {"auroc": row["value"], "verdict": row.verdict, "said": " ".join(said)}


if __name__ == "__main__":
    main()
