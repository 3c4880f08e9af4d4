"""A data set that lists each picture twice, through the whole pipeline: what merging copies changes.

    python -m benchmarks.duplicates run 40   seeds 0 to 39 of each way to deal copies, a row each in duplicates.jsonl; goes on
                                             where it stopped, and takes 5 to 10 s of one core a row
    python -m benchmarks.duplicates run 100 merged   of this way alone
    python -m benchmarks.duplicates          what the table comes to

Drawn symbols as PNG files in CoOp's layout, each training picture in two files of equal pixels and other bytes. Ways to
deal them: `merged`, as FedAudit does; `separate`, each file a record with a coin of its own; `tied`, both files stay records
and share the coin. A null is as in `whole_nulls`: trained on a second coin, audited with the first. The leak is learnt by
heart, and its AUROC is that of the loss by the client's own model, as its owner and the server hold it.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from unittest import mock

import numpy as np
import pandas as pd
from PIL import Image

from benchmarks.whole_nulls import LEVEL, Null, limit, report
from fedaudit.command.cli import read_command
from fedaudit.machinery.executor import Executor
from fedaudit.pipeline.workers import Workshop, federation_of, make_bench
from fedaudit.tasks import classification, drawings
from fedaudit.tasks.base import Client, Federation
from fedaudit.trainers.protocols import Bench

TABLE = Path(__file__).with_suffix(".jsonl")
CLASSES = drawings.CLASSES[:6]
EACH, TESTED = 12, 2  # pictures of a class, for training and for testing
COMMON = "--task images --dataset eurosat --epsilon none --clients 2 --threads 1"
NULL = f"{COMMON} --attack loss,lira,rmia --prompt-length 4 --method fedotp --rounds 3 --targets 2 --shadows 4"
LEAK = f"{COMMON} --attack loss --method local --rounds 100 --local-rate 0.3 --targets 2"
WAYS = ("merged", "separate", "tied")


def written(root: Path) -> Path:
    """The data set, written below `root`; returns `root`."""
    labels = np.repeat(np.arange(len(CLASSES)), EACH + TESTED)
    pictures = drawings.draw("relief", labels.tolist(), np.random.default_rng(40))
    split: dict[str, list[list[object]]] = {"train": [], "val": [], "test": []}
    for label, name in enumerate(CLASSES):
        for n, i in enumerate(np.flatnonzero(labels == label).tolist()):
            for level in (1, 9) if n < EACH else (1,):
                file = f"{name}/{n}-{level}.png"
                path = root / "eurosat/2750" / file
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(pictures[i]).save(path, compress_level=level)
                split["train" if n < EACH else "test"].append([file, label, name])
    (root / "eurosat/split_zhou_EuroSAT.json").write_text(json.dumps(split))
    return root


def dealt_in_pairs(client: Client, rng: np.random.Generator | None = None) -> Client:
    """The client with one coin for candidates of equal pixels: that of the first; with a generator, the coins dealt anew
    among as many copies."""
    places: defaultdict[bytes, list[int]] = defaultdict(list)
    for i, record in enumerate(client.records):
        places[record.image.tobytes()].append(i)
    member = client.member.copy()
    for size in (1, 2):
        groups = [group for group in places.values() if len(group) == size]
        coins = client.member[[group[0] for group in groups]] if groups else np.zeros(0, bool)
        for group, coin in zip(groups, coins if rng is None else rng.permutation(coins), strict=True):
            member[group] = coin
    return dataclasses.replace(client, member=member)


def tied(federation: Federation, rng: np.random.Generator | None = None) -> Federation:
    return dataclasses.replace(federation, clients=tuple(dealt_in_pairs(client, rng) for client in federation.clients))


class Tied(Workshop):
    """Workers whose federation has copies that share a coin."""

    @functools.cached_property
    def federation(self) -> Federation:
        return tied(federation_of(self.plan))


class TiedNull(Tied):
    """Workers whose copies share a coin, trained on members of a second coin."""

    @property
    def executor(self) -> Executor[Bench]:
        if self._executor is None:
            trained = tied(self.federation, np.random.default_rng((self.plan.seed, 31)))
            self._executor = Executor(functools.partial(make_bench, self.plan, trained))
        return self._executor


def row(kind: str, way: str, seed: int, root: Path) -> dict[str, object]:
    """A row of the table: of a null the scores that are called a leak, of a leak its AUROC."""
    started = time.process_time()
    trained_by = {("null", "tied"): TiedNull, ("leak", "tied"): Tied}
    made_by = trained_by.get((kind, way), Null if kind == "null" else Workshop)
    merging = classification._without_copies if way == "merged" else lambda domains: (list(domains), ())
    with tempfile.TemporaryDirectory() as out, mock.patch.object(classification, "_without_copies", merging):
        words = f"{NULL if kind == 'null' else LEAK} --data-root {root} --seed {seed} --out {out}"
        plan = read_command(words.split()).plan
        (found,) = report(plan, made_by)
    cells = found.tables["cells"]
    tested = cells[cells.z.notna()]
    own = tested[(tested.family == "primary") & (tested.threat_model == "owner")]
    return {
        "kind": kind, "way": way, "seed": seed, "scores": len(tested),
        "leaks": int((tested.p_adjusted <= LEVEL).sum()),
        "auroc": round(float(own.auroc.iloc[0]), 4) if kind == "leak" else None,
        "remarks": len(plan.data.federation.remarks), "seconds": round(time.process_time() - started, 1),
    }  # fmt: skip


def run(seeds: int, ways: Sequence[str]) -> None:
    """Add to the table what it lacks of some ways, and a leak of each way for every fifth null."""
    known = {(r.kind, r.way, r.seed) for r in rows().itertuples()}
    with tempfile.TemporaryDirectory() as folder, TABLE.open("a") as file:
        root = written(Path(folder))
        jobs = ((k, w, s) for s in range(seeds) for k in ("leak", "null") for w in ways if k == "null" or s % 5 == 0)
        for job in jobs:
            if job not in known:
                print(json.dumps(row(*job, root)), file=file, flush=True)


def rows() -> pd.DataFrame:
    return pd.read_json(TABLE, lines=True) if TABLE.exists() and TABLE.stat().st_size else pd.DataFrame()


def main() -> None:
    if sys.argv[1:2] == ["run"]:
        run(int(sys.argv[2]), sys.argv[3:] or WAYS)
    table = rows()
    print(f"{'copies':<10}{'nulls':>7}{'say leak':>10}{'at most':>9}{'leaks':>7}{'AUROC':>8}{'CPU s':>7}")
    for way in WAYS:
        null, leak = (table[(table.way == way) & (table.kind == kind)] for kind in ("null", "leak"))
        print(
            f"{way:<10}{len(null):>7}{(null.leaks > 0).sum():>10}{limit(len(null)):>9}{len(leak):>7}"
            f"{leak.auroc.mean():>8.3f}{null.seconds.mean():>7.1f}"
        )


if __name__ == "__main__":
    main()
