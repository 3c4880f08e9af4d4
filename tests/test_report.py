"""The report on synthetic evidence: every number arrives, nothing else does, and the same evidence gives the same bytes."""

from __future__ import annotations

import html
import io
import json
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from reports import figures
from reports.report import TABLES, Evidence, build, number

ATTACK, SIBLING, LOSS = "renyi/2/10/caption", "loss-base/caption", "loss/caption"
CLIENTS = [f"client-{k:02d}" for k in range(6)]
WAYS = {"fedavg": {"server": ["exact"]}, "fedrand": {"server": ["literal", "newest", "server-fill"]}}
STALE = {"exact": (0, 0, 0.0), "literal": (3, 1, 0.43), "newest": (2, 1, 0.31), "server-fill": (None, None, 0.87)}
STRENGTH = {"released-model": 0.5, "server": 1.2, "owner": 1.6}
WORDS = "a large red star on pink background . anna likes the quiet garden near tower today".split()


def places(method: str) -> list[tuple[str, str, str, str]]:
    """Threat model, way, population and non-members of every row of the leakage table."""
    found = [
        ("released-model", "final", population, "held-out") for population in ("all members", "last-round members")
    ]
    found.append(("released-model", "final", "all members", "novel objects"))
    for threat, ways in (WAYS[method] | {"owner": ["true state"]}).items():
        found += [(threat, way, "own members", others) for way in ways for others in ("held-out", "novel objects")]
    return found


def finding(
    method: str, seed: int, place: tuple[str, ...], signal: str, metric: str, rng: np.random.Generator
) -> dict[str, Any]:
    threat, way, population, others = place
    strength = STRENGTH[threat] * (0.4 if method == "fedrand" else 1) * (0.4 if signal == ATTACK else 1)
    value = float(0.5 + 0.3 * strength / 1.6 + 0.02 * rng.normal())
    auroc, held_out = metric == "auroc", others == "held-out"
    verdict = None if not auroc else "confounded" if not held_out else "leak" if value > 0.58 else "no leak found"
    sentence = (
        f"{verdict.capitalize()}: an adversary with {threat} ({way}): AUROC {value:.3f} by {signal}."
        if verdict
        else None
    )
    status = {"tpr@1%": "coarse", "tpr@0.1%": "not measurable (75)"}.get(metric, "ok")
    found = dict.fromkeys(
        "base_value base_low base_high base_note blind_value blind_low blind_high detectable realised_fpr realised_low realised_high".split()
    )
    control = (
        {"base_note": "n/a: constant on the base"}
        if signal == SIBLING
        else {"base_value": 0.511, "base_low": 0.455, "base_high": 0.567}
    )
    shown = value if metric != "tpr@0.1%" else None
    return (
        {
            "method": method,
            "attack": "maxrenyi",
            "task": "captions",
            "seed": seed,
            "threat_model": threat,
            "way": way,
            "population": population,
        }
        | {"nonmembers": others, "signal": signal, "headline": signal != LOSS, "metric": metric, "value": shown}
        | {
            "low": shown and shown - 0.061,
            "high": shown and shown + 0.061,
            "confidence": 0.95,
            "members": 168,
            "nonmembers_n": 171,
        }
        | {"clients": 6, "interval": f"clustered {metric}", "status": status}
        | found
        | (
            control | {"blind_value": 0.497, "blind_low": 0.44, "blind_high": 0.554, "detectable": 0.566}
            if auroc
            else {}
        )
        | (
            {"realised_fpr": 0.0987, "realised_low": 0.05, "realised_high": 0.17}
            if metric in ("tpr@10%", "tpr@1%")
            else {}
        )
        | {"verdict": verdict, "sentence": sentence}
        | {"claimed": "none" if auroc else None, "provable": "infinity" if auroc else None, "measured": None}
    )


def findings(method: str, seed: int, rng: np.random.Generator) -> list[dict[str, Any]]:
    thresholds = ["balanced_accuracy", "tpr@10%", "tpr@1%", "tpr@0.1%"]
    return [
        finding(method, seed, place, signal, metric, rng)
        for place in places(method)
        for signal in (ATTACK, SIBLING, LOSS)
        for metric in ["auroc", *(thresholds if place[3] == "held-out" else [])]
    ]


def picture(rng: np.random.Generator) -> bytes:
    image = np.full((40, 40, 3), rng.integers(90, 255, 3), dtype=np.uint8)
    x, y = rng.integers(3, 22, 2)
    image[y : y + 15, x : x + 15] = rng.integers(0, 255, 3)
    png = io.BytesIO()
    Image.fromarray(image).save(png, "PNG")
    return png.getvalue()


def scores_and_curves(method: str, rng: np.random.Generator) -> tuple[pd.DataFrame, pd.DataFrame]:
    scores, curves = [], []
    for threat, way, population, others in places(method):
        if others != "held-out":
            continue
        strength = STRENGTH[threat] * (0.4 if method == "fedrand" else 1)
        grid = np.geomspace(1 / 170 if way == "final" else 1 / 28, 1, 40)
        for signal in (ATTACK, SIBLING):
            tpr = grid ** (1 / (1 + strength * (0.5 if signal == ATTACK else 1)))
            where = {
                "threat_model": threat,
                "way": way,
                "population": population,
                "nonmembers": others,
                "signal": signal,
                "fpr": grid,
            }
            curves.append(
                pd.DataFrame(
                    where | {"tpr": tpr, "low": 0.7 * tpr, "high": np.minimum(1.0, 1.25 * tpr), "floor": grid[0]}
                )
            )
        for kind, shift in (("member", strength), ("held-out", 0.0), ("novel", 2.0)):
            n = 28 * len(CLIENTS)
            where = {
                "threat_model": threat,
                "way": way,
                "client": np.repeat(CLIENTS, 28),
                "record": [f"{kind}-{i}" for i in range(n)],
            }
            drawn = {signal: -2 + 0.6 * rng.normal(size=n) + 0.6 * shift for signal in (ATTACK, SIBLING, LOSS)}
            if population != "last-round members":
                scores.append(pd.DataFrame(where | {"kind": kind} | drawn))
    return pd.concat(scores, ignore_index=True), pd.concat(curves, ignore_index=True)


def tokens(method: str, rng: np.random.Generator) -> pd.DataFrame:
    frames = []
    for panel in ("member", "non-member"):
        words = ["<image>"] * 25 + "USER : a short image description : ASSISTANT :".split() + WORDS
        part = np.repeat(["image", "instruction", "caption"], [25, 9, len(WORDS)])
        base = np.where(part == "caption", rng.gamma(4, 0.6, len(words)), rng.gamma(1, 0.3, len(words)))
        factor = np.where(part == "caption", (0.15 if method == "fedavg" else 0.5) if panel == "member" else 0.9, 1)
        log_prob = np.where(part == "image", np.nan, -base * factor)
        about = {
            "panel": panel,
            "record": f"client-02-{len(panel):03d}",
            "position": range(len(words)),
            "token": words,
            "slice": part,
        }
        frames.append(pd.DataFrame(about | {"entropy": base * factor, "base_entropy": base, "log_prob": log_prob}))
    return pd.concat(frames, ignore_index=True)


def tables(method: str, rng: np.random.Generator) -> dict[str, pd.DataFrame]:
    slow = 0.4 if method == "fedrand" else 1.0
    rounds = [
        (
            r,
            population,
            signal,
            auroc := 0.5 + slow * gain * r / 10,
            auroc - 0.06,
            auroc + 0.06,
            2.2 - slow * 0.08 * r + 0.01 * r * r * slow,
            168,
        )
        for r in range(1, 11)
        for population, more in (("all members", 0.0), ("last-round members", 0.12))
        for signal, gain in ((ATTACK, 0.1 + more), (SIBLING, 0.25 + more), (LOSS, 0.2 + more))
    ]
    clients = [
        (
            threat,
            way,
            client,
            signal,
            float(np.clip(0.5 + 0.15 * STRENGTH[threat] * slow + 0.08 * rng.normal(), 0, 1)),
            28,
            28,
        )
        for threat, way, population, others in places(method)
        if others == "held-out" and population != "last-round members"
        for client in CLIENTS
        for signal in (ATTACK, SIBLING, LOSS)
    ]
    exposed = [
        (i + 1, f"client-02-{i:03d}", "client-02", 1.9 - i / 5, 1.9 - i / 5, 99.4 - i, " ".join(WORDS), picture(rng))
        for i in range(8)
    ]
    utility = [
        (
            r,
            model,
            2.4 - 0.05 * (r + 1) * slow,
            0.5,
            0.4,
            0.3,
            0.2 + 0.01 * r * slow,
            0.4 + 0.01 * r,
            0.9 + 0.05 * r * slow,
        )
        for r in range(-1, 10)
        for model in (("global", "clients") if r >= 0 else ("global",))
    ]
    whole = 4 * 1_310_720
    cost = [(r, whole, whole // (2 if method == "fedrand" else 1), 2 * whole) for r in range(10)]
    coverage = [
        (way, client, possible, "" if possible else "took part once", *(STALE[way] if possible else (None, None, None)))
        for way in WAYS[method]["server"]
        for i, client in enumerate(CLIENTS)
        for possible in [i > 1 or way in ("exact", "server-fill")]
    ]
    cells = [
        (
            *place,
            signal,
            auroc := float(0.5 + 0.1 * rng.normal()),
            auroc - 0.06,
            auroc + 0.06,
            0.03,
            0.03 if auroc > 0.6 else 1.0,
        )
        for place in places(method)
        if place[3] == "held-out"
        for signal in CELLS
    ]
    scores, curves = scores_and_curves(method, rng)
    listed = {
        "rounds": rounds,
        "clients": clients,
        "exposed": exposed,
        "cost": cost,
        "coverage": coverage,
        "cells": cells,
    }
    frames = {name: pd.DataFrame(rows, columns=TABLES[name].split()) for name, rows in listed.items()}
    metrics = "round model loss bleu1 bleu2 bleu3 bleu4 rouge_l cider".split()
    return frames | {
        "scores": scores,
        "curves": curves,
        "tokens": tokens(method, rng),
        "utility": pd.DataFrame(utility, columns=metrics),
    }


CELLS = [
    f"renyi/{order}/{k}/{part}"
    for part in ("image", "instruction", "caption")
    for order in ("0.5", "1", "2", "inf")
    for k in range(0, 101, 10)
]
CELLS += [f"{name}/{k}/caption" for name in ("mink", "minkpp") for k in range(10, 101, 10)]
CELLS += [LOSS, SIBLING, "modrenyi/0.5/caption", "modrenyi/2/caption", "gap/caption", "zlib/caption"]


def evidence(method: str, seed: int) -> Evidence:
    """What an audit of a small run could have found; FedAvg leaks more than FedRand, the attack's own score less than its sibling."""
    rng = np.random.default_rng([seed, len(method)])
    setting = {
        "task": {"name": "captions", "records": 28, "dirichlet": 0.5},
        "backbone": {"name": "scenes-llava", "sha256": "0f" * 32},
        "method": {"name": method, "rho": 0.5 if method == "fedrand" else None, "past": True},
        "schedule": {"rounds": 10, "clients": 6, "per_round": 2},
        "keys": {"training": f"{seed:016x}", "analysis": f"{seed + 1:016x}"},
        "versions": {"torch": "2.7.0", "numpy": "2.0.0"},
    }
    notes = ["The embedded model and task are small.", "Intervals are over records and clients of one training."]
    return Evidence(
        method, seed, "maxrenyi", "captions", findings(method, seed, rng), tables(method, rng), setting, notes
    )
