"""DP2FL's Tables 2, 3 and 4 at embedded scale: the global model beside local ones, and a new client, over seeds.

`python -m benchmarks.newcomers [SEEDS]`: eleven clients, of which ten train; the eleventh comes afterwards. Accuracy in
percent on test sets in clients' own class proportions; mean [95 %] over seeds, of which each draws data and training
anew, beside the paper's mean over eight data sets. About 3 minutes a seed on one idle core.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from audits.utility import mean_interval
from fedaudit.backbones.clip import load
from fedaudit.backbones.clip_source import resolve_clip
from fedaudit.machinery.executor import Executor
from fedaudit.machinery.store import claim
from fedaudit.pipeline.bank import NoExam
from fedaudit.tasks.fewshots import Params as FewShots
from fedaudit.tasks.fewshots import fewshots
from trainers.base import Bench, Schedule, State, train
from trainers.dp2fl import DP2FL, Params
from trainers.maple import Learner, Settings
from trainers.newcomers import STARTS, after_a_round, starts
from trainers.prompts import own_tests

CLIENTS = 10
PAPERS = Path(__file__).parent.parent / "reports" / "papers"
THEIRS = {"global": "global_model", "init_glo": "init_glo", "init": "init"}  # as the paper's tables call them


def one_seed(seed: int, *, rounds: int, settings: Settings, task: FewShots) -> dict[str, float]:
    """Every number of the three tables."""
    federation, clip = fewshots(task, clients=CLIENTS + 1, seed=seed), load(resolve_clip("", ""))
    records, method = list(federation.records.values()), DP2FL(Params())
    number = {name: i for i, name in enumerate(federation.classes)}
    labels = {record.id: number[record.group] for record in records}
    training = [[r.id for r in client.training_records] for client in federation.clients]
    test = [record.id for record in federation.test]
    with tempfile.TemporaryDirectory() as folder:
        features, tokens = (
            see(records, claim(Path(folder) / "cache"), say=print) for see in (clip.encode, clip.tokens)
        )
        learner = Learner(clip, features, tokens, labels, federation.classes, settings)
        bench = Bench(learner, training[:CLIENTS], test)
        with Executor(lambda: bench) as executor:
            run = train(
                method, Schedule(rounds, CLIENTS, CLIENTS, seed), NoExam(),
                folder=claim(Path(folder) / "run"), executor=executor, say=print, advance=lambda: None,
            )  # fmt: skip
        begun = starts(run)
        local = [run.released(k) for k in range(CLIENTS)]
        joined = {name: after_a_round(method, learner, run, training, start) for name, start in begun.items()}
    own = np.asarray(own_tests(federation))  # [client, test record]
    right = learner.labels(test).numpy()

    def hits(models: Sequence[State]) -> np.ndarray:
        return 100.0 * (learner.predicted(models, test, method) == right)

    of_local, of_starts = hits(local), dict(zip(begun, hits(list(begun.values())), strict=True))
    found = {
        "2 local": float((of_local * own[:CLIENTS]).sum(1).mean()),
        "2 global": float((own[:CLIENTS] @ of_starts["global"]).mean()),
        "3 local": float((of_local @ own[-1]).mean()),
    }
    found["2 difference"] = found["2 global"] - found["2 local"]
    found |= {f"3 {name}": float(of_starts[name] @ own[-1]) for name in STARTS}
    for name in STARTS:
        after = hits(joined[name])
        found[f"4 new {name}"] = float(after[-1] @ own[-1])
        found[f"4 local {name}"] = float((after * own).sum(1).mean())
        found[f"4 all {name}"] = float((after @ own.mean(0)).mean())
    return found


def printed() -> dict[str, str]:
    """What the paper prints of each, its mean over data sets."""
    found = {}
    names = {"2 local": "local_average", "2 global": "global_model", "2 difference": "global_minus_local"}
    for number in (2, 3, 4):
        with (PAPERS / f"dp2fl_table{number}.csv").open(encoding="utf-8") as file:
            rows = [row for row in csv.DictReader(file) if row["dataset"] == "AVG"]
        if number == 2:
            found |= {ours: row["value"] for ours, theirs in names.items() for row in rows if row["model"] == theirs}
        elif number == 3:
            theirs = {"local": "local_average"} | THEIRS
            found |= {
                f"3 {ours}": row["value"] for ours, name in theirs.items() for row in rows if row["model"] == name
            }
        else:
            found |= {
                f"4 {row['test_set']} {ours}": row["value"]
                for ours, name in THEIRS.items()
                for row in rows
                if row["initialization"] == name
            }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("seeds", type=int, nargs="?", default=5)
    seeds = parser.parse_args().seeds
    torch.set_num_threads(1)
    found: dict[str, list[float]] = defaultdict(list)
    for seed in range(seeds):
        for name, value in one_seed(seed, rounds=10, settings=Settings(), task=FewShots()).items():
            found[name].append(value)
        print(f"seed {seed}: " + ", ".join(f"{name} {values[-1]:.1f}" for name, values in found.items()), flush=True)
    for better, worse in itertools.pairwise(STARTS):
        for table in ("3", "4 new", "4 local", "4 all"):
            pairs = zip(found[f"{table} {better}"], found[f"{table} {worse}"], strict=True)
            found[f"{table} {better} - {worse}"] = [one - other for one, other in pairs]
    theirs = printed()
    print(f"{'table':<34}{'here':>8}   {'[95 %] over seeds':<22}the paper")
    for name in sorted(found):
        low, high = mean_interval(np.array(found[name]), 0.95, least=-100.0)
        bounds = "" if low is None or high is None else f"[{low:.2f}, {high:.2f}]"
        print(f"{name:<34}{np.mean(found[name]):>8.2f}   {bounds:<22}{theirs.get(name, '')}")


if __name__ == "__main__":
    main()
