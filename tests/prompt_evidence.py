"""Synthetic evidence of prompt methods, as an audit without attack leaves it: accuracies, privacy and noise with easily computed numbers."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

import pandas as pd

from audits.base import Accuracy, Epsilon
from reports.report import TABLES, Evidence, build

CLIENTS = [f"client-{k:02d}" for k in range(4)]
ROUNDS, BATCH, DIMENSION, DELTA, CLIP = 6, 8, 1536, 1e-5, 10.0
SPLITS = ("local", "neighbour", "overall")
RELEASES = {
    "zeroshot": (),
    "promptfl": ("p_G",),
    "fedotp": ("p_G", "p_L"),
    "fedpgp": ("p_G", "u", "v"),
    "dpfpl": ("p_G", "u", "v"),
}
LEVEL = {"zeroshot": 46.5, "promptfl": 40.0, "fedotp": 44.0, "fedpgp": 36.0, "dpfpl": 42.0}
BEFORE = 12.0


def accuracy_of(method: str, epsilon: float, split: str, seed: int, rank: int, residual: bool) -> float:
    """The mean accuracy after training; noise takes from it, neighbour classes fare worse, the residual is worth 2 points."""
    if method == "zeroshot":
        return LEVEL[method]
    lost = 0.0 if math.isinf(epsilon) else 20.0 - 4 * math.log10(epsilon / 0.01)
    return LEVEL[method] - lost - 5 * SPLITS.index(split) + seed + rank / 4 - (0 if residual else 2)


def accuracy_table(means: dict[str, float], rounds: int) -> pd.DataFrame:
    """Every round's; clients stand 3 points apart around the mean."""
    rows = []
    for r in range(-1, rounds):
        for split, mean in means.items():
            now = BEFORE + (mean - BEFORE) * (r + 1) / rounds
            rows.append((r, "mean", split, now))
            rows += [(r, client, split, now + 3 * (k - 1.5)) for k, client in enumerate(CLIENTS)]
    return pd.DataFrame(rows, columns=TABLES["accuracy"].split())


def noise_table(method: str, epsilon: float) -> pd.DataFrame:
    rows = []
    for i, release in enumerate(() if math.isinf(epsilon) else RELEASES[method]):
        std = CLIP / BATCH * math.sqrt(ROUNDS * math.log(1 / DELTA)) / epsilon
        noise = std * math.sqrt(DIMENSION)
        party = "server" if release == "p_G" and method != "promptfl" else "client"
        rows.append(
            (
                release,
                party,
                std,
                DIMENSION,
                CLIP / BATCH,
                "record",
                CLIP,
                "epochs",
                BATCH,
                ROUNDS,
                noise,
                0.5 + i,
                noise / (0.5 + i),
            )
        )
    return pd.DataFrame(rows, columns=TABLES["noise"].split())


def privacy_table(method: str, epsilon: float) -> pd.DataFrame:
    """Nominal noise: every step of n releases proves about sqrt(n) times the claim, two steps a third of that; uploads of p_G are clear."""
    rows = []
    for threat in ("prompt-user", "released-model", "server", "owner"):
        for whose in ("own", "other"):
            if method == "zeroshot":
                rows.append((threat, whose, 0.0, 0.0, 0.0, 0.0, DELTA, "nothing is trained"))
            elif math.isinf(epsilon) or (threat == "server" and method != "promptfl"):
                claimed = math.inf if threat == "server" else epsilon
                rows.append(
                    (threat, whose, claimed, math.inf, math.inf, math.inf, DELTA, "unbounded: p_G carries no noise")
                )
            else:
                every = 0.9 * epsilon * math.sqrt(len(RELEASES[method]))
                rows.append((threat, whose, epsilon, every / 3, every, 2 * every, DELTA, "in at most 2 of 6 steps"))
    return pd.DataFrame(rows, columns=TABLES["privacy"].split())


def strict(value: float) -> float | str:
    return value if math.isfinite(value) else "inf"


def prompt_evidence(
    method: str,
    epsilon: float = math.inf,
    seed: int = 0,
    *,
    rank: int = 8,
    residual: bool = True,
    rounds: int = ROUNDS,
    **more: Any,
) -> Evidence:
    """One cell; `more` goes into the setting of the method."""
    own = {
        "dpfpl": {"rank": rank, "residual": residual},
        "fedpgp": {"rank": rank, "mu": 0.0},
        "fedotp": {"match": "sum"},
    }.get(method, {}) | more
    level = "none" if math.isinf(epsilon) else f"{epsilon:g}"
    label = ":".join([method, *(f"{k}={str(v).lower()}" for k, v in own.items()), f"epsilon={level}"])
    means = {split: accuracy_of(method, epsilon, split, seed, rank, residual) for split in SPLITS}
    tables = {
        "accuracy": accuracy_table(means, rounds),
        "privacy": privacy_table(method, epsilon),
        "noise": noise_table(method, epsilon),
    }
    names = {"method": label, "task": "glyphs", "seed": seed}
    ratio = float(tables["noise"].ratio.max()) if len(tables["noise"]) else None
    found: list[Accuracy | Epsilon] = [
        Accuracy(**names, metric=f"accuracy/{split}", value=mean, low=mean - 6.25, high=mean + 6.25, confidence=0.95, before=BEFORE,
                 clients=4, rounds=5, epsilon=strict(epsilon), noise_ratio=ratio, interval="Student's t over clients")
        for split, mean in means.items()
    ]  # fmt: skip
    found += [
        Epsilon(**names, metric="epsilon", threat_model=row["threat_model"], whose=row["whose"], claimed=strict(row["claimed"]),
                provable=strict(row["provable"]), every_step=strict(row["every_step"]), replace_one=strict(row["replace_one"]),
                delta=DELTA, why=row["why"], sentence="as the row says")
        for row in tables["privacy"].to_dict("records")
    ]  # fmt: skip
    setting = {
        "task": {"name": "glyphs", "partition": "pathological"},
        "method": {"name": method} | own,
        "privacy": {
            "epsilon": strict(epsilon),
            "delta": DELTA,
            "clip": "record",
            "clip_norm": CLIP,
            "sigma": "nominal",
            "sampler": "epochs",
        },
        "backbone": {"name": "symbols-clip"},
        "training": {"batch": BATCH},
        "schedule": {"rounds": rounds, "clients": len(CLIENTS), "per_round": len(CLIENTS)},
        "seed": seed,
        "attack": None,
    }
    return Evidence(
        label, seed, None, "glyphs", [asdict(f) for f in found], tables, setting, ["Intervals are over clients."]
    )


def built(evidence: list[Evidence]) -> dict[str, bytes]:
    """The files of a report."""
    files: dict[str, bytes] = {}
    build(evidence, files.__setitem__)
    return files


def sweep(seeds: int = 1, rounds: int = ROUNDS) -> list[Evidence]:
    """Four methods, the paper's epsilons."""
    return [
        prompt_evidence(method, epsilon, seed, rounds=rounds)
        for method in ("promptfl", "fedotp", "fedpgp", "dpfpl")
        for epsilon in (math.inf, 0.01, 0.05, 0.1, 0.2, 0.4)
        for seed in range(seeds)
    ]


def ablation(seeds: int = 1) -> list[Evidence]:
    """DP-FPL at four ranks, with and without residual, at three epsilons."""
    return [
        prompt_evidence("dpfpl", epsilon, seed, rank=rank, residual=residual)
        for rank in (1, 2, 4, 8)
        for residual in (True, False)
        for epsilon in (math.inf, 0.4, 0.1)
        for seed in range(seeds)
    ]
