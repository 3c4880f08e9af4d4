"""Synthetic evidence, as audits leave it: what an attack finds under any method, and a whole run of LoRA under MaxRényi.

`tests/prompt_evidence.py` makes runs on prompts out of the same parts.
"""

import io
from collections.abc import Iterable
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pandas as pd
from PIL import Image

from fedaudit.audits.findings import Finding
from fedaudit.reports.report import TABLES, Evidence, build
from tests.unprinted import nothing_drawn, nothing_printed

Place = tuple[str, str, str, str]  # threat model, way, population and non-members: a row of the leakage table

WIDTH = 0.055  # half the interval of an AUROC
AROUND = 0.07  # and of other numbers
BASE: dict[str, Any] = {"base_value": 0.511, "base_low": 0.455, "base_high": 0.567}
BLIND: dict[str, Any] = {"blind_value": 0.497, "blind_low": 0.44, "blind_high": 0.554, "detectable": 0.566}
REALISED: dict[str, Any] = {"realised_fpr": 0.0987, "realised_low": 0.05, "realised_high": 0.17}


def about_one_score(
    names: Any, place: Place, signal: str, value: float, *, confounded: bool = False, base_note: str | None = None
) -> list[Finding]:
    """An AUROC beside its controls, judged; where members and non-members are alike also what is found at thresholds."""
    threat, way, population, others = place
    bare = Finding(
        threat_model=threat, way=way, population=population, nonmembers=others, signal=signal, metric="balanced_accuracy",
        value=value, low=value - AROUND, high=value + AROUND, confidence=0.95, members=142, nonmembers_n=146, clients=2,
        interval="clustered DeLong", **{"headline": True, "claimed": "0.1", "provable": "0.16"} | names,
    )  # fmt: skip
    controls = BLIND | ({"base_note": base_note} if base_note else BASE)
    auroc = judged(replace(bare, metric="auroc", **controls), WIDTH, signal, confounded)
    if others not in ("held-out", "left-out canaries"):
        return [auroc]
    rates = [replace(bare, metric=f"tpr@{n}%", status=how, **REALISED) for n, how in ((10, "ok"), (1, "coarse"))]
    few = replace(bare, metric="tpr@0.1%", status="not measurable (75)", value=None, low=None, high=None)
    return [auroc, bare, *rates, few]


def judged(f: Finding, width: float, by: str, confounded: bool = False) -> Finding:
    """With its interval, verdict and sentence."""
    low, high = f.value - width, min(1.0, f.value + width)
    word = "confounded" if confounded else "leak" if low > 0.5 else "no leak found"
    auroc = f"AUROC {f.value:.3f} [{low:.3f}, {high:.3f}]"
    text = f"{word.capitalize()}: whoever is {f.threat_model} scores {auroc} by {by}."
    return replace(f, low=low, high=high, verdict=word, sentence=text)


def table(name: str, rows: Iterable[tuple[Any, ...]]) -> pd.DataFrame:
    """A table of a report with its columns."""
    return pd.DataFrame(list(rows), columns=TABLES[name].split())


def curve_rows(place: Place, signal: str, auroc: float, floor: float = 1 / 146) -> list[tuple[Any, ...]]:
    """FPR to the power that has this AUROC."""
    grid = np.geomspace(floor, 1, 30)
    return [(*place, signal, x, y := x ** (1 / auroc - 1), 0.6 * y, min(1.0, 1.6 * y), floor) for x in grid]


def png(i: int) -> bytes:
    """A bar on gray; another picture for every i."""
    image = np.full((28, 28, 3), 40 + 25 * i, dtype=np.uint8)
    image[6:22, 6 + i : 10 + i] = 230
    file = io.BytesIO()
    Image.fromarray(image).save(file, "PNG")
    return file.getvalue()


def built(evidence: list[Evidence], *, printing: bool = False) -> dict[str, bytes]:
    """The files of a report. `printing`: of its figures, not only their data."""
    files: dict[str, bytes] = {}

    def write(name: str, data: bytes) -> None:
        assert name not in files
        files[name] = data

    with nothing_printed(but=printing):
        build(evidence, write)
    return files


def plain_page(evidence: list[Evidence]) -> bytes:
    """The page of a report without its figures."""
    with nothing_drawn():
        return built(evidence)["index.html"]


# a run of LoRA

ATTACK, SIBLING, LOSS = "renyi/2/10/caption", "loss/base", "loss"
SIGNALS = (ATTACK, SIBLING, LOSS)
CLIENTS = [f"client-{k:02d}" for k in range(6)]
WAYS = {"fedavg": ("exact",), "fedrand": ("literal", "newest", "server-fill")}  # of the server
STALE = {"exact": (0, 0, 0.0), "literal": (3, 1, 0.43), "newest": (2, 1, 0.31), "server-fill": (None, None, 0.87)}
STRENGTH = {"released-model": 0.5, "server": 1.2, "owner": 1.6}
WORDS = "a large red star on pink background . anna likes the quiet garden near tower today".split()
ASKED = "Question: what colour is it? Options: (A) red (B) blue. Answer:"
K = range(0, 101, 10)
CELLS = [
    f"renyi/{order}/{k}/{part}"
    for part in ("image", "instruction", "caption")
    for order in ("0.5", "1", "2", "inf")
    for k in K
]
CELLS += [f"{name}/{k}/caption" for name in ("mink", "minkpp") for k in K[1:]]
CELLS += [LOSS, SIBLING, "modrenyi/0.5/caption", "modrenyi/2/caption", "gap/caption", "zlib/caption"]


def evidence(method: str, seed: int) -> Evidence:
    """What an audit of a small run could have found; FedAvg leaks more than FedRand, the attack's own score less than its sibling."""
    rng = np.random.default_rng([seed, len(method)])
    setting = {
        "task": {"name": "captions", "records": 28, "dirichlet": 0.5},
        "backbone": {"name": "scenes-llava", "sha256": "0f" * 32},
        "method": {"name": method, "rho": 0.5 if method == "fedrand" else None, "past": True},
        "keys": {"training": f"{seed:016x}", "analysis": f"{seed + 1:016x}"},
        "versions": {"torch": "2.7.0", "numpy": "2.0.0"},
    }
    notes = ["The built-in model and task are small.", "Intervals are over records and clients of one training."]
    names = {"run": f"{method}-{seed}", "method": method, "attack": "maxrenyi", "task": "captions", "seed": seed}
    found = [
        asdict(f)
        for place in places(method)
        for signal in SIGNALS
        for f in about_one_score(
            names | {"headline": signal != LOSS, "claimed": "none", "provable": "infinity"}, place, signal,
            leak_of(method, place[0], signal) + 0.02 * rng.normal(), confounded=place[3] != "held-out",
            base_note="n/a: constant on the base" if signal == SIBLING else None,
        )
    ]  # fmt: skip
    return Evidence(method, seed, "maxrenyi", "captions", found, tables(method, rng), setting, notes)


def places(method: str) -> list[Place]:
    found: list[Place] = [("released-model", "final", "last-round members", "held-out")]
    held = [("released-model", "final", "all members"), ("owner", "true state", "own members")]
    held[1:1] = [("server", way, "own members") for way in WAYS[method]]
    return found + [(*model, others) for model in held for others in ("held-out", "novel objects")]


def leak_of(method: str, threat: str, signal: str) -> float:
    """The AUROC, but for chance."""
    return 0.5 + 0.19 * STRENGTH[threat] * (0.4 if method == "fedrand" else 1) * (0.4 if signal == ATTACK else 1)


def tables(method: str, rng: np.random.Generator) -> dict[str, pd.DataFrame]:
    slow, fewer = (0.4, 2) if method == "fedrand" else (1.0, 1)
    whole = 4 * 1_310_720
    held_out = [place for place in places(method) if place[3] == "held-out"]
    rows: dict[str, Iterable[tuple[Any, ...]]] = {
        "rounds": [
            (r, population, signal, a := 0.5 + slow * gain * r / 10, a - 0.06, a + 0.06, 168)
            for r in range(1, 11)
            for population, more in (("all members", 0.0), ("last-round members", 0.12))
            for signal, gain in ((ATTACK, 0.1 + more), (SIBLING, 0.25 + more), (LOSS, 0.2 + more))
        ],
        "clients": [
            (threat, way, client, signal, leak_of(method, threat, SIBLING) + 0.05 * rng.normal(), 28, 28)
            for threat, way, population, _ in held_out
            if population != "last-round members"
            for client in CLIENTS
            for signal in SIGNALS
        ],
        "curves": [
            row
            for place in held_out
            for signal in (ATTACK, SIBLING)
            for row in curve_rows(place, signal, leak_of(method, place[0], signal), 1 / (170 if place[1] == "final" else 28))
        ],
        "exposed": [
            ("server", "newest", i + 1, f"client-02-{i:03d}", "client-02", score, 99.4 - i, ASKED, " ".join(WORDS), "Why.", png(i))
            for i, score in enumerate(np.linspace(0.99, 0.5, 8))
        ],
        "cost": [(r, whole, whole // fewer, 2 * whole, 4, 4 if fewer == 1 else 0) for r in range(10)],
        "coverage": [
            (way, client, can, "" if can else "took part once", *(STALE[way] if can else (None, None, None)))
            for way in WAYS[method]
            for i, client in enumerate(CLIENTS)
            for can in [i > 1 or way in ("exact", "server-fill")]
        ],
        "cells": [
            (*place, signal, a := 0.5 + 0.1 * rng.normal(), a - 0.06, a + 0.06, 0.03, 0.03 if a > 0.6 else 1.0)
            for place in held_out
            for signal in CELLS
        ],
        "tokens": [row for panel in ("member", "non-member") for row in token_rows(method, panel, rng)],
    }  # fmt: skip
    found = {name: table(name, made) for name, made in rows.items()}
    r = found["rounds"]["round"]
    found["rounds"]["heldout_loss"] = 2.2 + slow * r * (r - 8) / 100
    return found | {"scores": scores(method, held_out, rng), "utility": utility(slow)}


def scores(method: str, held_out: list[Place], rng: np.random.Generator) -> pd.DataFrame:
    frames, n = [], 28 * len(CLIENTS)
    for threat, way, population, _ in held_out:
        shifts = {"member": 5 * (leak_of(method, threat, SIBLING) - 0.5), "held-out": 0.0, "novel": 2.0}
        for kind, shift in shifts.items():
            drawn = {signal: -2 + 0.6 * rng.normal(size=n) + 0.6 * shift for signal in SIGNALS}
            who = {"client": np.repeat(CLIENTS, 28), "record": [f"{kind}-{i}" for i in range(n)], "kind": kind}
            if population != "last-round members":
                frames.append(pd.DataFrame({"threat_model": threat, "way": way} | who | drawn))
    return pd.concat(frames, ignore_index=True)


def token_rows(method: str, panel: str, rng: np.random.Generator) -> Iterable[tuple[Any, ...]]:
    """A caption's tokens are less certain than what is before them; a member's less so than before training."""
    words = ["<image>"] * 25 + "USER : a short image description : ASSISTANT :".split() + WORDS
    parts = np.repeat(["image", "instruction", "caption"], [25, 9, len(WORDS)])
    memorised = (0.15 if method == "fedavg" else 0.5) if panel == "member" else 0.9
    for i, (word, part) in enumerate(zip(words, parts, strict=True)):
        base = rng.gamma(4, 0.6) if part == "caption" else rng.gamma(1, 0.3)
        entropy = base * (memorised if part == "caption" else 1)
        yield panel, f"client-02-{len(panel):03d}", i, word, part, entropy, base, -entropy


def utility(slow: float) -> pd.DataFrame:
    models = [(-1, "global"), *((r, model) for r in range(10) for model in ("global", "clients"))]
    rows = [(r, m, 2.4 - (a := slow * r / 20), 0.5, 0.4, 0.3, slow * r / 50, 0.4 + r / 90, 0.9 + a) for r, m in models]
    return pd.DataFrame(rows, columns="round model loss bleu1 bleu2 bleu3 bleu4 rouge_l cider".split())
