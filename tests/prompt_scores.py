"""Made-up scores of target clients of prompt learning, with whatever is planted in them."""

import dataclasses

import numpy as np
import pandas as pd

from fedaudit.audits.comparisons import ScoredModel, ScoredRun

HELD = (("prompt-user", "prompt"), ("released-model", "final"), ("server", "rebuilt"), ("owner", "true state"))

SIGNALS = {"shadow": "shadow", "lira/online": "lira", "lira/offline": "lira", "loss": "loss"}
CLASSES = 4


def first_scores(signals):
    """Each attack's first score: what stands for an attack that has named no other."""
    return {attack: (next(s for s in signals if signals[s] == attack),) for attack in dict.fromkeys(signals.values())}


def made_up(
    seed,
    *,
    leak=0.0,
    base_leak=0.0,
    blind_leak=0.0,
    gap=0.0,
    classes=3.0,
    shared=True,
    canaries=0,
    canary_leak=0.0,
    targets=2,
    each=72,
    known=48,
    others=100,
    shadows=4,
    signals=SIGNALS,
    held=HELD,
):
    """Targets with `each` members and held-out records, a scale of their own, and scores that differ by `classes` from
    class to class. `leak` moves members' scores, `gap` those of others' records down (same classes: `shared`)."""
    rng = np.random.default_rng(seed)
    clients = range(targets)
    candidates = {k: [f"c{k}-{i}" for i in range(2 * each)] for k in clients}
    canary = {k: [f"x{k}-{i}" for i in range(canaries)] for k in clients}
    reference = {k: [f"r{k}-{i}" for i in range(known)] for k in clients}
    # of other clients' records some are members of the next target
    elsewhere = {k: candidates[(k + 1) % targets][: others // 2 if targets > 1 else 0] for k in clients}
    elsewhere = {k: elsewhere[k] + [f"o{k}-{i}" for i in range(others - len(elsewhere[k]))] for k in clients}
    truth, group = {}, {}
    for part in (part for k in clients for part in (candidates[k], canary[k])):
        truth |= dict(zip(part, rng.permutation(np.arange(len(part)) % 2 == 0).tolist(), strict=True))
    for k in clients:
        for i, r in enumerate([*candidates[k], *canary[k], *reference[k]]):
            group[r] = f"class {i % CLASSES + (0 if shared else CLASSES * k)}"
        for i, r in enumerate(r for r in elsewhere[k] if r.startswith("o")):
            group[r] = f"class {i % CLASSES + (0 if shared else 100)}"
    models, run = [], None
    for k in clients:
        own = [*candidates[k], *canary[k], *reference[k], *elsewhere[k]]
        coin = np.array([truth.get(r, False) if r not in elsewhere[k] else False for r in own])
        strength = np.array([canary_leak if r in canary[k] else leak for r in own])
        away = np.array([-gap * (r in elsewhere[k]) for r in own])
        by_class = classes * np.array([int(group[r].split()[1]) % CLASSES for r in own])

        def table(move, own=own, by_class=by_class, away=away, k=k):
            noise = rng.normal(size=(len(own), len(signals)))
            # guesses of the shadow attack are right if positive
            values = (1 + k) * (noise + (by_class + away + move - 1.5 * classes)[:, None])
            return pd.DataFrame(values, pd.Index(own, name="record"), list(signals))

        for threat_model, way in held:
            shadow_targets = []
            for _ in range(shadows):
                used = (rng.random(len(own)) < 0.5) & np.array([r in truth and r not in elsewhere[k] for r in own])
                shadow_targets.append(table(strength * used).assign(member=used).iloc[: len(own) - others])
            scores, base = table(strength * coin), table(base_leak * coin)
            shadow_targets = pd.concat(shadow_targets) if shadow_targets else None
            model = ScoredModel(threat_model, way, k, 10, scores, base=base, shadow_targets=shadow_targets)
            models.append(model)
    run = ScoredRun(
        models=models, headlines=first_scores(signals), signals=signals, blind={}, records=candidates, reference=reference,
        others=elsewhere, truth=truth, group=group, canaries=canary, few=True, guesses=["shadow"],
    )  # fmt: skip
    blind = {}
    for k, nonmembers in run.rows:
        used = {r: kind in ("member", "canary") for r, kind in run.kinds(k).items()}
        blind[k, nonmembers] = {r: float(rng.normal() + blind_leak * u) for r, u in used.items()}
    return changed(run, blind=blind)


def changed(run, **fields):
    return dataclasses.replace(run, **fields)


def with_scores(run, change, part="scores"):
    """The run with every model's table `part` changed by a function."""
    models = [dataclasses.replace(m, **{part: change(getattr(m, part).copy())}) for m in run.models]
    return changed(run, models=models)
