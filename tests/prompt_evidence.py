"""Synthetic evidence of prompt methods, as audits leave it, with easily computed numbers."""

import itertools
import math
from collections.abc import Iterable
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pandas as pd

from fedaudit.audits.findings import Accuracy, Epsilon, Finding
from fedaudit.reports.report import Evidence
from tests.evidence import WIDTH, about_one_score, curve_rows, judged, png, table

CLIENTS = [f"client-{k:02d}" for k in range(4)]
ROUNDS, BATCH, DIMENSION, DELTA, CLIP = 6, 8, 1536, 1e-5, 10.0
CLIPPED = 0.875  # of the first release, a tenth less of each further one
SPLITS = ("local", "neighbour", "overall")
RELEASES = {
    "zeroshot": (), "promptfl": ("p_G",), "fedotp": ("p_G", "p_L"), "fedpgp": ("p_G", "u", "v"),
    "dpfpl": ("p_G", "u", "v"),
}  # fmt: skip
LEVEL = {"zeroshot": 46.5, "promptfl": 40.0, "fedotp": 44.0, "fedpgp": 36.0, "dpfpl": 42.0}
BEFORE = 12.0


def accuracy_of(method: str, epsilon: float, split: str, seed: int, rank: int, residual: bool) -> float:
    """The mean accuracy after training; noise takes from it, neighbour classes fare worse, the residual is worth 2 points."""
    if method == "zeroshot":
        return LEVEL[method]
    lost = 0.0 if math.isinf(epsilon) else 20.0 - 4 * math.log10(epsilon / 0.01)
    return LEVEL[method] - lost - 5 * SPLITS.index(split) + seed + rank / 4 - (0 if residual else 2)


def accuracy_rows(means: dict[str, float], rounds: int) -> Iterable[tuple[Any, ...]]:
    """Every round's; clients stand 3 points apart around the mean."""
    for r in range(-1, rounds):
        for split, mean in means.items():
            now = BEFORE + (mean - BEFORE) * (r + 1) / rounds
            yield r, "mean", split, now
            yield from ((r, client, split, now + 3 * (k - 1.5)) for k, client in enumerate(CLIENTS))


def noise_rows(method: str, epsilon: float) -> Iterable[tuple[Any, ...]]:
    for i, release in enumerate(() if math.isinf(epsilon) else RELEASES[method]):
        std = CLIP / BATCH * math.sqrt(ROUNDS * math.log(1 / DELTA)) / epsilon
        noise, signal = std * math.sqrt(DIMENSION), 0.5 + i
        party = "server" if release == "p_G" and method != "promptfl" else "client"
        sampled = ("record", CLIP, "epochs", BATCH, ROUNDS)
        yield release, party, std, DIMENSION, CLIP / BATCH, *sampled, noise, signal, noise / signal, CLIPPED - 0.1 * i


def privacy_rows(method: str, epsilon: float) -> Iterable[tuple[Any, ...]]:
    """Nominal noise: every step of n releases proves about sqrt(n) times the claim, two steps a third of that; uploads of p_G are clear."""
    every = 0.9 * epsilon * math.sqrt(len(RELEASES[method]))
    for threat in ATTACK_WAYS:
        said = (epsilon, every / 3, every, 2 * every, DELTA, "in at most 2 of 6 steps")
        if method == "zeroshot":
            said = (0.0, 0.0, 0.0, 0.0, DELTA, "nothing is trained")
        elif math.isinf(epsilon) or (threat == "server" and method != "promptfl"):
            claimed = math.inf if threat == "server" else epsilon
            said = (claimed, math.inf, math.inf, math.inf, DELTA, "unbounded: p_G carries no noise")
        yield from ((threat, whose, *said) for whose in ("own", "other"))


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
        "dpfpl": {"rank": rank, "residual": residual}, "fedpgp": {"rank": rank, "mu": 0.0}, "fedotp": {"match": "sum"},
    }.get(method, {}) | more  # fmt: skip
    level = "none" if math.isinf(epsilon) else f"{epsilon:g}"
    label = ":".join([method, *(f"{k}={str(v).lower()}" for k, v in own.items()), f"epsilon={level}"])
    means = {split: accuracy_of(method, epsilon, split, seed, rank, residual) for split in SPLITS}
    rows = {"accuracy": accuracy_rows(means, rounds), "privacy": privacy_rows(method, epsilon)}
    rows["noise"] = noise_rows(method, epsilon)
    tables = {name: table(name, made) for name, made in rows.items()}
    names = {"run": f"{label}-{seed}", "method": label, "task": "glyphs", "seed": seed}
    ratio = float(tables["noise"].ratio.max()) if len(tables["noise"]) else None
    found: list[Accuracy | Epsilon] = [
        Accuracy(**names, metric=f"accuracy/{split}", value=mean, low=mean - 6.25, high=mean + 6.25, confidence=0.95, before=BEFORE,
                 clients=4, rounds=5, epsilon=strict(epsilon), noise_ratio=ratio,
                 clipped=None if ratio is None else CLIPPED, interval="Student's t over clients")
        for split, mean in means.items()
    ]  # fmt: skip
    found += [
        Epsilon(**names, metric="epsilon", threat_model=row["threat_model"], whose=row["whose"], claimed=strict(row["claimed"]),
                provable=strict(row["provable"]), every_step=strict(row["every_step"]), replace_one=strict(row["replace_one"]),
                delta=DELTA, why=row["why"], sentence="as the row says")
        for row in tables["privacy"].to_dict("records")
    ]  # fmt: skip
    setting = {
        "task": {"name": "glyphs", "partition": "pathological"}, "method": {"name": method} | own,
        "privacy": {"epsilon": strict(epsilon), "delta": DELTA, "clip": "record", "clip_norm": CLIP}
        | {"sigma": "nominal", "sampler": "epochs"},
        "backbone": {"name": "symbols-clip"}, "training": {"batch": BATCH},
        "schedule": {"rounds": rounds, "clients": len(CLIENTS), "per_round": len(CLIENTS)}, "seed": seed,
        "attack": None,
    }  # fmt: skip
    findings = [asdict(f) for f in found]
    return Evidence(label, seed, None, "glyphs", findings, tables, setting, ["Intervals are over clients."])


def of_a_dirichlet_split(e: Evidence) -> Evidence:
    """The same cell, of clients that share classes: their own test sets are worth half a point more than the whole one."""
    whole = next(f for f in e.findings if f["metric"] == "accuracy/overall")
    mine = whole | {"metric": "accuracy/own_test", "value": whole["value"] + 0.5}
    task = e.setting["task"] | {"partition": "dirichlet"}
    table = e.tables["accuracy"]
    added = table[table.split == "overall"].assign(split="own_test", accuracy=lambda t: t.accuracy + 0.5)
    tables = e.tables | {"accuracy": pd.concat([table, added])}
    return replace(e, findings=[*e.findings, mine], tables=tables, setting=e.setting | {"task": task})


SCORES = "shadow lira/online lira/offline rmia/offline loss entropy gradnorm quantile fedmia/1 fedmia/2 source".split()
# by attack, the first of each its headline
ATTACKS = {attack: tuple(own) for attack, own in itertools.groupby(SCORES, lambda score: score.partition("/")[0])}
NEEDS_UPLOADS = ("fedmia", "source")
ATTACK_WAYS = {"prompt-user": "prompt", "released-model": "final", "server": "rebuilt", "owner": "true state"}
THREAT_GAIN = {"prompt-user": 0.10, "released-model": 0.02, "server": 0.14, "owner": 0.12}
TARGETS = CLIENTS[:2]
LABELS = {client: [f"glyph {10 * k + i}" for i in range(4)] for k, client in enumerate(TARGETS)}
KINDS = ("member", "held-out", "canary", "left-out canary")
REASONS = ("In the top tenth by 3 of 7 scores; loss 0.31.", "By its score.")


COMPARED = (("own members", "held-out"), ("own members", "other clients"), ("canaries", "left-out canaries"))


def able(threat: str, attacks: tuple[str, ...]) -> list[str]:
    return [a for a in attacks if threat == "server" or a not in NEEDS_UPLOADS]


def leak_of(threat: str, attack: str, epsilon: float, seed: int = 0) -> float:
    """The AUROC of an attack: the later in the list, the weaker; noise takes nearly all; below one half on a lucky seed."""
    gain = THREAT_GAIN[threat] * (1 - list(ATTACKS).index(attack) / 12)
    return 0.5 + (gain if math.isinf(epsilon) else 0.1 * gain - 0.02) + 0.01 * seed


def attacked(e: Evidence, *attacks: str, pictures: bool = True) -> Evidence:
    """The same cell after these attacks (by default all), under every threat model, with canaries."""
    names = attacks or tuple(ATTACKS)
    epsilon = float(e.setting["privacy"]["epsilon"])
    rng = np.random.default_rng([e.seed, len(names)])
    findings = [
        asdict(f)
        for threat, compared in itertools.product(ATTACK_WAYS, COMPARED)
        for f in about_attacks(e, threat, compared, able(threat, names), epsilon)
    ]
    tables = attack_tables(e, names, epsilon, rng)
    if not pictures:
        tables.pop("exposed")
    label = names[0] if len(names) == 1 else "all"
    setting = e.setting | {"attack": {a: {} for a in names}, "adversary": {"targets": 0, "shadows": 50}}
    return replace(e, attack=label, findings=findings + e.findings, tables=e.tables | tables, setting=setting)


def about_attacks(e: Evidence, threat: str, compared: Any, attacks: list[str], epsilon: float) -> list[Finding]:
    """Of every attack's headline score, and of the best attack; the released model is confounded."""
    rows = []
    place, population = (threat, ATTACK_WAYS[threat], *compared), compared[0]
    confounded = threat == "released-model" and population != "canaries"
    for attack in attacks:
        names = {"run": e.key, "method": e.method, "attack": attack, "task": e.task, "seed": e.seed}
        value = leak_of(threat, attack, epsilon, e.seed) + (0.2 if population == "canaries" else 0.0)
        note = "n/a: attacks on updates have no base" if attack in NEEDS_UPLOADS else None
        rows += about_one_score(names, place, ATTACKS[attack][0], value, confounded=confounded, base_note=note)
    if len(attacks) > 1:
        best = replace(rows[0], headline=False, best_of=len(attacks))  # the first is the strongest
        rows.append(judged(best, 1.5 * WIDTH, f"{best.signal}, the best of {len(attacks)} attacks", confounded))
    return rows


def attack_tables(e: Evidence, attacks: tuple[str, ...], epsilon: float, rng: Any) -> dict[str, pd.DataFrame]:
    first = ATTACKS[attacks[0]][0]
    records = records_table(attacks, epsilon, rng)
    rows: dict[str, list[tuple[Any, ...]]] = {
        "curves": [
            row
            for held in ATTACK_WAYS.items()
            for row in curve_rows((*held, "own members", "held-out"), first, leak_of(held[0], attacks[0], epsilon))
        ],
        "clients": [
            (t, way, client, first, leak_of(t, attacks[0], epsilon) + 0.03 * (k - 0.5), 71, 73)
            for t, way in ATTACK_WAYS.items()
            for k, client in enumerate(TARGETS)
        ],
        "cells": [
            (t, way, "own members", "held-out", signal, a := leak_of(t, attack, epsilon), a - WIDTH, a + WIDTH, 0.02, 0.2)
            for t, way in ATTACK_WAYS.items()
            for attack in able(t, attacks)
            for signal in ATTACKS[attack]
        ],
        "classes": classes_rows(attacks[0], epsilon, e.seed),
        "agreement": [
            (t, way, ATTACKS[a][0], ATTACKS[b][0], 0.9 - 0.1 * (j - i), 0.6 - 0.05 * (j - i), 0.1)
            for t, way in ATTACK_WAYS.items()
            for (i, a), (j, b) in itertools.combinations(enumerate(able(t, attacks)), 2)
        ],
        "trajectories": trajectory_rows(records, epsilon),
        "attribution": [("rebuilt", client, kind, 0.4 - 0.1 * (kind != "member"), 0.3, 0.52, 71, 0.25) for client in TARGETS for kind in KINDS[:2]],
        "refused": [
            (attack, t, f"the threat model {t} does not see uploads (these do: server)")
            for t in ATTACK_WAYS
            for attack in attacks
            if t != "server" and attack in NEEDS_UPLOADS
        ],
        "canaries": [(kind, 17, 16, 100, 20, 3.49, 8.22, 1e-5, 0.7) for kind in ("mislabelled", "out of distribution", "natural")],
        "exposed": [
            ("server", "rebuilt", i + 1, r["record"], r["client"], r["exposure"], r["percentile"], "", r["label"], REASONS[i % 2], png(i))
            for i, r in enumerate(top_members(records).to_dict("records"))
        ],
    }  # fmt: skip
    found = {name: table(name, made) for name, made in rows.items()}
    cells = found["cells"]
    found["cells"] = cells.assign(simultaneous_low=cells.low - 0.03, simultaneous_high=cells.high + 0.03)
    scores = records[records.kind != "reference"].drop(columns=["label", "member", "rank", "percentile", "exposure"])
    return found | {"records": records.drop(columns="exposure"), "scores": scores}


def records_table(attacks: tuple[str, ...], epsilon: float, rng: np.random.Generator) -> pd.DataFrame:
    """24 members and as many held-out records of every target, 4 reference records without a rank; members score higher by what the attack gains."""
    frames = []
    n, m = 48, 52
    kind = np.array(["member", "held-out"] * 24 + ["reference"] * 4)
    for (threat, way), client in itertools.product(ATTACK_WAYS.items(), TARGETS):
        shift = 4 * (leak_of(threat, attacks[0], epsilon) - 0.5)
        signals = [s for a in able(threat, attacks) for s in ATTACKS[a]]
        drawn = {s: rng.normal(size=m) + shift * (kind == "member") for s in signals}
        names = [f"{client}-{i:03d}" for i in range(m)]
        who = {"threat_model": threat, "way": way, "client": client, "record": names}
        share = pd.Series(drawn[ATTACKS[attacks[0]][0]][:n]).rank(pct=True).reindex(range(m))
        held_out = np.sort(share[kind == "held-out"])
        below = 100 * np.searchsorted(held_out, share, "left") / len(held_out)
        own = {
            "label": [LABELS[client][i % 4] for i in range(m)], "kind": kind, "member": kind == "member",
            "rank": share.rank(ascending=False), "percentile": np.where(share.notna(), below, np.nan),
            "exposure": share,
        }  # fmt: skip
        frames.append(pd.DataFrame(who | own | drawn))
    return pd.concat(frames, ignore_index=True)


def top_members(records: pd.DataFrame) -> pd.DataFrame:
    own = records[records.member & (records.threat_model == "prompt-user")]
    return own.sort_values(["exposure", "record"], ascending=[False, True]).head(6)


def classes_rows(attack: str, epsilon: float, seed: int) -> list[tuple[Any, ...]]:
    """Success is the AUROC's gain halved; classes stand 2 points apart around `success_of`."""
    rows: list[tuple[Any, ...]] = []
    for (threat, way), client in itertools.product(ATTACK_WAYS.items(), TARGETS):
        mean = success_of(threat, attack, epsilon, seed)
        each = [(label, mean + 0.02 * (i - 1.5), 0.13, 18) for i, label in enumerate(LABELS[client])]
        for label, x, width, n in [*each, ("mean", mean, 0.07, 72)]:
            rows.append((threat, way, client, label, ATTACKS[attack][0], x, x - width, x + width, n, n))
    return rows


def success_of(threat: str, attack: str, epsilon: float, seed: int = 0) -> float:
    return 0.5 + (leak_of(threat, attack, epsilon, seed) - 0.5) / 2


def trajectory_rows(records: pd.DataFrame, epsilon: float) -> list[tuple[Any, ...]]:
    """Loss falls for everybody; without noise further for members."""
    gap = 0.8 if math.isinf(epsilon) else 0.02
    ends = [
        ("mean", client, kind, 1.2 + gap * (kind not in ("member", "canary")) + 0.3 * ("canary" in kind))
        for client, kind in itertools.product(TARGETS, KINDS)
    ]
    top = top_members(records)
    ends += [(r, c, "member", 0.6 + 0.2 * i) for i, (r, c) in enumerate(zip(top.record, top.client, strict=True))]
    times = range(ROUNDS + 1)
    return [(*of, t, 3.4 - (3.4 - end) * t / ROUNDS) for *of, end in ends for t in times]


def sweep(seeds: int = 1, rounds: int = ROUNDS) -> list[Evidence]:
    methods, epsilons = ("promptfl", "fedotp", "fedpgp", "dpfpl"), (math.inf, 0.01, 0.05, 0.1, 0.2, 0.4)
    return [prompt_evidence(*cell, rounds=rounds) for cell in itertools.product(methods, epsilons, range(seeds))]


def ablation(seeds: int = 1) -> list[Evidence]:
    return [
        prompt_evidence("dpfpl", epsilon, seed, rank=rank, residual=residual)
        for rank, residual in itertools.product((1, 2, 4, 8), (True, False))
        for epsilon, seed in itertools.product((math.inf, 0.4, 0.1), range(seeds))
    ]
