"""Ways to record a run wrongly, or unusually, and what an audit says of each: `python -m benchmarks.recordings`.

Each is one change of a run that `--export-run` wrote: FedAvg, all clients in each round, different numbers of records.
The command exports such a run of the embedded model, audits every recording of it, and prints the server's AUROC, the
verdict and what was said; `tests/test_recording.py` makes the same changes to a toy run. A run that is recorded rightly
must get the numbers of the run itself and no remark, and no other may lose its leak without one.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

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


def server_step(size: float, momentum: float = 0.0) -> Change:
    """The server's step is `size` times the mean change, with momentum; uploads keep their changes."""

    def change(run: Path) -> None:
        old = [load_file(path) for path in models(run)]
        new, speed = [old[0]], {name: torch.zeros_like(tensor) for name, tensor in old[0].items()}
        for r, paths in enumerate(rounds(run)):
            for path in paths:
                rewrite(path, lambda sent, r=r: {n: new[r][n] + sent[n] - old[r][n] for n in sent})
            speed = {n: momentum * speed[n] + old[r + 1][n] - old[r][n] for n in speed}
            new.append({n: new[r][n] + size * speed[n] for n in speed})
            save_file(new[-1], models(run)[r + 1])

    return change


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
    "clients permuted": Recording(permuted(), "weights", "exchanged"),
    "clients permuted in the last round": Recording(permuted(last=True), "weights", "exchanged"),
    "models a round late": Recording(late(), "rounds", "earlier"),
    "the last model a round late": Recording(late(last=True), "models", "does not change in round"),
    "uploads a round late": Recording(late_uploads, "rounds or refused"),
    "rounds of uploads exchanged": Recording(shuffled, REFUSED, "does not follow"),
    "states before training": Recording(uploads(lambda sent, before: before), REFUSED, "before training"),
    "states that share memory": Recording(shared_memory, "uploads", "byte-identical"),
    "the model of one client": Recording(one_client, "weights"),
    "nothing trained": Recording(untrained, REFUSED, "nothing was trained"),
    "a global model that never changes": Recording(still, "models", "does not change"),
    "a client is missing in the last round": Recording(missing_client, "aggregation"),
    "numbers of records of other clients": Recording(counts(lambda n: n[1:] + n[:1]), "weights", "exchanged"),
    "wrong numbers of records": Recording(counts(lambda n: [1 + 50 * (i == 0) for i in range(len(n))]), "weights"),
    "server step of one half": Recording(server_step(0.5), "aggregation"),
    "server step of one half, named": Recording(both(server_step(0.5), edit("run.json", aggregation="partial mean")), RIGHT),
    "server momentum": Recording(server_step(1.0, 0.5), "aggregation"),
    "server momentum, named": Recording(
        both(server_step(1.0, 0.5), edit("run.json", aggregation="server momentum")), "aggregation", "could not be checked"
    ),
    "noise on the models": Recording(noise, "aggregation"),
    "a warm start": Recording(warm_start, "start"),
    "a stale tensor in the last model": Recording(stale, "aggregation", ".B"),
    "a tensor that nobody sent": Recording(unsent, "aggregation", ".B"),
    "adapters of the vision tower": Recording(
        renamed(lambda n: peft_name(n, prefix="base_model.model.model.vision_tower.vision_model.encoder.")), REFUSED, "vision"
    ),
    "half of the held-out records are members": Recording(members_again, "records", "left out"),
    "held-out records with members' pictures": Recording(same_pictures, "pictures"),
}  # fmt: skip
