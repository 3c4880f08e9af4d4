"""Members that `scatter` finds in the sum over all users that SecFPP reveals: `python -m benchmarks.scatter [--seeds 3]`.

For each federation, with the guard and the noise of the method and without: whether the scatter of classes W is
revealed, and the mean over users of the members' AUROC: of the server (with the floor that fits the noise, and with a
tenth and ten times of it), of a user who has the metric, of the server with half of the candidates (the others' coins
fell into its reference records), and of a second coin, which nobody trained by. n/a: nothing is revealed. Only the
first round is run: W is revealed in it.
"""

from __future__ import annotations

import argparse
import tempfile
from unittest import mock

import numpy as np
import pandas as pd
from sklearn.metrics import roc_auc_score
from torch import Tensor

from fedaudit.attacks.base import View
from fedaudit.attacks.messages import pooled
from fedaudit.attacks.scatter import solve
from fedaudit.command.cli import read_command
from fedaudit.machinery.executor import one_thread
from fedaudit.machinery.progress import Progress
from fedaudit.pipeline.methods import method_of, transcript_of
from fedaudit.pipeline.trainings import train_all
from fedaudit.pipeline.workers import Workshop, make_bench
from fedaudit.terms.threat_models import CLUSTERING_SERVER, COLLUDING_USERS
from fedaudit.trainers import secfpp

RUNS = {
    "10 users of 4 classes": "--method=secfpp",
    "10 of 4, two styles": "--method=secfpp --domain=print+neon",
    "4 users, Dirichlet": "--method=secfpp --partition=dirichlet --clients=4",
    "10 users, Dirichlet": "--method=secfpp --partition=dirichlet --clients=10",
    "20 users, Dirichlet": "--method=secfpp --partition=dirichlet --clients=20",
    "preset, half held out": "--preset=secfpp --holdout=0.5 --train=96",
}
FACTORS = (0.1, 1.0, 10.0)  # of the floor that fits the noise
SECOND = 37  # of the generator (seed, SECOND) of the second coin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*", metavar="RUN", help=", ".join(RUNS))
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    one_thread()
    pd.set_option("display.width", 200)
    for name in options.runs or RUNS:
        for guarded in (True, False):
            rows = pd.DataFrame([of_federation(RUNS[name], seed, guarded) for seed in range(options.seeds)])
            print(f"\n{name}, {'as it is' if guarded else 'without guard and noise'}: W revealed in "
                  f"{rows.revealed.sum()} of {len(rows)}", flush=True)  # fmt: skip
            if rows.revealed.any():
                print(rows.drop(columns="revealed").round(3).to_string(index=False), flush=True)


def of_federation(words: str, seed: int, guarded: bool) -> dict[str, object]:
    """A row of the table: of one federation."""
    no_noise, no_guard = (
        mock.patch.object(secfpp.SecFPP, "noise", 1e-12),
        mock.patch.object(secfpp, "largest_rank", _all),
    )
    with tempfile.TemporaryDirectory() as out:
        flags = [*words.split(), "--rounds=1", f"--seed={seed}", "--threads=1", f"--out={out}"]
        if guarded:
            return _row(flags)
        with no_noise, no_guard:
            return _row(flags)


def _all(*_: object) -> int:
    return 10**6


def _row(flags: list[str]) -> dict[str, object]:
    plan, quiet = read_command(flags).plan, Progress(quiet=True)
    with Workshop(plan, quiet) as workshop:
        train_all(plan.cells, workshop, quiet)
        bench, federation = make_bench(plan, workshop.federation), workshop.federation
    (cell,) = plan.cells
    transcript, method = transcript_of(cell), method_of(cell, federation.sizes)
    row: dict[str, object] = {"revealed": "scatter" in transcript.revealed(0), "seed": cell.seed}
    if not row["revealed"]:
        return row
    rng = np.random.default_rng((cell.seed, SECOND))
    columns: dict[str, list[float]] = {}
    for client in federation.clients:
        truth, candidates = np.asarray(client.member), list(client.candidates)
        labels, server = bench.learner.labels(candidates).cpu(), View(transcript, CLUSTERING_SERVER)
        gradients = pooled.start_gradients(server, method, bench.learner, candidates)
        half = np.sort(rng.permutation(len(candidates))[: len(candidates) // 2])
        looks = {f"server x{factor:g}": (CLUSTERING_SERVER, factor) for factor in FACTORS}
        looks["user"] = COLLUDING_USERS, 1.0
        for name, (threat_model, factor) in looks.items():
            scores = _scores(View(transcript, threat_model), method, labels, gradients, factor)
            columns.setdefault(name, []).append(roc_auc_score(truth, scores))
            if name == "server x1":
                second = rng.permutation(truth)
                columns.setdefault("second coin", []).append(roc_auc_score(second, scores))
        scores = _scores(server, method, labels[half], gradients[half], 1.0)
        columns.setdefault("half known", []).append(roc_auc_score(truth[half], scores))
    return row | {name: float(np.mean(values)) for name, values in columns.items()}


def _scores(view: View, method: object, labels: Tensor, gradients: Tensor, factor: float) -> np.ndarray:
    scale = (
        mock.patch.object(pooled, "EXACT", factor * pooled.EXACT),
        mock.patch.object(pooled, "ROUNDED", factor * pooled.ROUNDED),
    )
    noise = mock.patch.object(secfpp.SecFPP, "noise", factor * secfpp.SecFPP.noise)
    with scale[0], scale[1], noise:
        equations = pooled.pooled_sums(view, method, labels, lambda: gradients)["scatter"]
    shares: np.ndarray = solve(equations) * np.bincount(equations.groups)[equations.groups]
    return shares


if __name__ == "__main__":
    main()
