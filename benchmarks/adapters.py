"""Members that `decompose` finds in messages of adapters and in released models, beside the cosine.

    python -m benchmarks.adapters fedavg --seeds 0 1 2      a training a seed, and 4 minutes of one core
    python -m benchmarks.adapters fedrand vqa --without all

A row per setting and look: the mean over clients (of all seeds) of the AUROC of members against held-out records, its
standard error, and the same of a second coin, which nobody trained by. Looks:

    cosine     the mean cosine of a record's gradient with the client's messages
    server     `decompose` of all messages of a client; last: of the last one alone; half: half of the candidates known
    cohort     `decompose` of the changes of broadcasts, by the candidates of each round's cohort
    all        the same by the candidates of all clients
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score

from fedaudit.attacks.base import View
from fedaudit.attacks.knowledge import Floats, mean_of_finite
from fedaudit.attacks.messages.adapters import AdapterMessages
from fedaudit.attacks.messages.rebuild import round_start
from fedaudit.attacks.messages.ridge import REFERENCES
from fedaudit.command.cli import read_command
from fedaudit.machinery.executor import one_thread
from fedaudit.machinery.progress import Progress
from fedaudit.pipeline.methods import transcript_of
from fedaudit.pipeline.trainings import train_all
from fedaudit.pipeline.workers import Workshop, make_bench
from fedaudit.tasks.base import Federation
from fedaudit.trainers.lora import Learner

SETTINGS = {
    "fedavg": "--method fedavg",
    "steps": "--method fedavg --local-steps 32",
    "batch": "--method fedavg --batch 32",
    "vqa": "--method fedavg --task vqa",
    "fedrand": "--method fedrand",
    "fedper": "--method fedper",
    "fedpara": "--method fedpara",
    "dpfedavg": "--method dpfedavg --epsilon none",
    "epsilon-8": "--method dpfedavg --epsilon 8 --no-twin",
    "epsilon-1": "--method dpfedavg --epsilon 1 --no-twin",
}
LOOKS = ("cosine", "server", "last", "half", "cohort", "all")
Scores = dict[str, dict[int, tuple[NDArray[np.bool_], Floats]]]  # by look and client: members [n], scores [n]


def scores_by_look(words: str, seed: int, looks: Sequence[str], out: str) -> Scores:
    """The scores of the candidates of every client of a training, by look."""
    plan = read_command([*words.split(), "--seed", str(seed), "--attack", "decompose", "--out", out]).plan
    with Workshop(plan, Progress(quiet=True)) as workshop:
        train_all(plan.cells, workshop, Progress(quiet=True))
        bench, federation = make_bench(plan, workshop.federation), workshop.federation
    assert isinstance(bench.learner, Learner)
    transcript = transcript_of(plan.cells[0])
    server, released = (AdapterMessages(View(transcript, name), bench.learner) for name in ("server", "released-model"))
    found: Scores = {look: {} for look in looks}
    for k in (k for k in range(plan.clients) if transcript.participations(k)):
        for look, (records, scores) in _of_client(server, k, federation, looks):
            found[look][k] = _members(federation, records), scores
    for look in ("cohort", "all"):
        if look in looks:
            scores = _of_changes(released, federation, look == "cohort")
            for k in (k for k in range(plan.clients) if transcript.participations(k)):
                records = federation.clients[k].candidates
                found[look][k] = _members(federation, records), np.array([scores[r] for r in records])
    return found


def _members(federation: Federation, records: Sequence[str]) -> NDArray[np.bool_]:
    return np.array([federation.truth[record] for record in records])


def _of_client(
    messages: AdapterMessages, k: int, federation: Federation, looks: Sequence[str]
) -> Iterator[tuple[str, tuple[Sequence[str], Floats]]]:
    """(look, (records, scores)) of the looks at a client's messages."""
    candidates = federation.clients[k].candidates
    references = [record.id for record in federation.clients[k].reference[:REFERENCES]]
    weights, cosines, halves = list[Floats](), list[Floats](), list[Floats]()
    for r in (r for r in messages.view.participations(k) if messages.view.upload(r, k)):
        start = round_start(messages.view, k, r)

        def look(some: Sequence[str], *parts: str, r: int = r, start: dict = start) -> Mapping[str, Floats]:
            return messages._of_gradients(k, r, [*some, *references], start, parts, len(some) + len(references))

        both = look(candidates, "heard", "solved")
        weights.append(both["solved/weights"][: len(candidates)])
        cosines.append(both["heard/cosine"][k, : len(candidates)])
        if "half" in looks:
            halves.append(look(candidates[::2], "solved")["solved/weights"][: len(candidates[::2])])
    scores = {
        "cosine": (candidates, cosines),
        "server": (candidates, weights),
        "last": (candidates, weights[-1:]),
        "half": (candidates[::2], halves),
    }
    yield from ((name, (of, mean_of_finite(np.stack(rows)))) for name, (of, rows) in scores.items() if name in looks)


def _of_changes(messages: AdapterMessages, federation: Federation, cohort: bool) -> dict[str, float]:
    """The score of every candidate of all clients whose messages may be in a change; NaN for others."""
    by_record: dict[str, list[float]] = {r: [] for client in federation.clients for r in client.candidates}
    known = [client.reference[i].id for i in range(2) for client in federation.clients][:REFERENCES]
    for r in range(messages.view.rounds):
        clients = messages.view.cohort(r) if cohort else messages.view.clients
        records = [record for k in clients for record in federation.clients[k].candidates]
        for record, weight in zip(records, messages.change(r, [*records, *known])["weights"], strict=False):
            by_record[record].append(weight)
    return {record: float(np.nanmean(values)) if values else np.nan for record, values in by_record.items()}


def line(name: str, of_clients: Sequence[tuple[NDArray[np.bool_], Floats]]) -> str:
    """`.982 ± .012`, and of a second coin; of how many clients."""
    scored = [(member, scores) for member, scores in of_clients if not np.isnan(scores).any()]
    aurocs = [roc_auc_score(member, scores) for member, scores in scored]
    coins = np.random.default_rng(0)
    second = [roc_auc_score(coins.permutation(len(scores)) % 2, scores) for _, scores in scored]
    (mean, error), (null, null_error) = (_mean(values) for values in (aurocs, second))
    return f"  {name:<9}{mean:.3f} ± {error:.3f}   second coin {null:.3f} ± {null_error:.3f}   ({len(scored)} clients)"


def _mean(values: Sequence[float]) -> tuple[float, float]:
    return float(np.mean(values)), float(np.std(values, ddof=1) / len(values) ** 0.5) if len(values) > 1 else np.nan


def costs(out: str) -> None:
    """Seconds of a message whose gradients are shared by both attacks, over those of `cosine` alone; and alone."""
    plan = read_command(["--method", "fedavg", "--attack", "decompose", "--out", out]).plan
    with Workshop(plan, Progress(quiet=True)) as workshop:
        train_all(plan.cells, workshop, Progress(quiet=True))
        bench, federation = make_bench(plan, workshop.federation), workshop.federation
    messages = AdapterMessages(View(transcript_of(plan.cells[0]), "server"), bench.learner)
    client = federation.clients[k := messages.view.cohort(0)[0]]
    records = [*client.candidates, *(record.id for record in client.reference)]
    ways = {"cosine": ("own", "heard"), "both": ("own", "heard", "solved"), "decompose": ("own", "solved")}
    spent: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(5):
        for name, parts in ways.items():
            began = time.process_time()
            messages.round(k, 0, records, parts, len(client.candidates) + REFERENCES, False)
            spent[name].append(time.process_time() - began)
    usual = np.median(spent["cosine"])
    for name, times in spent.items():
        print(f"{name:<12}{np.median(times):6.2f} CPU s a message, {np.median(times) / usual:.2f} of cosine's")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("settings", nargs="+", choices=[*SETTINGS, "costs"])
    parser.add_argument("--seeds", type=int, nargs="*", default=[0])
    parser.add_argument("--without", nargs="*", default=[], choices=LOOKS, help="looks that are left out")
    parser.add_argument("--out", default=os.path.join(tempfile.gettempdir(), "fedaudit-adapters"))
    chosen = parser.parse_args()
    one_thread()
    looks = [look for look in LOOKS if look not in chosen.without]
    for setting in chosen.settings:
        if setting == "costs":
            costs(chosen.out)
            continue
        pooled: dict[str, list[tuple[NDArray[np.bool_], Floats]]] = {look: [] for look in looks}
        for seed in chosen.seeds:
            found = scores_by_look(SETTINGS[setting], seed, looks, chosen.out)
            print(f"\n{SETTINGS[setting]}, seed {seed}, load {os.getloadavg()[0]:.1f}")
            for look, of_clients in found.items():
                pooled[look] += of_clients.values()
                print(line(look, [*of_clients.values()]), flush=True)
        if len(chosen.seeds) > 1:
            print(f"\n{SETTINGS[setting]}, {len(chosen.seeds)} seeds")
            print(*(line(look, values) for look, values in pooled.items()), sep="\n", flush=True)


if __name__ == "__main__":
    main()
