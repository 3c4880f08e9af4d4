"""Made-up runs with the scores of their records, as audits leave them on disk: for differences between methods."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from fedaudit.audits.run_comparison import AuditedRun

SIGNAL = "loss/base"
CLIENTS = 12


@dataclass(frozen=True)
class World:
    """Records of clients, with the coins of each and how much the record resembles others of its client."""

    seed: int = 0
    clients: int = CLIENTS
    records: int = 40
    reference: int = 120

    def table(self, noise: int, strength: float, *, spread: float = 0.0) -> pd.DataFrame:
        """Records with a score: members are higher by `strength`, in each client by a share of its own (`spread`),
        which does not depend on the training; `noise` is the seed of the training."""
        data, training = np.random.default_rng([self.seed, 1]), np.random.default_rng([self.seed, 2, noise])
        tables = []
        for k in range(self.clients):
            own = strength + spread * data.normal()
            coins = data.permutation(np.arange(self.records) % 2 == 0)
            kinds = np.r_[np.where(coins, "member", "held-out"), ["reference"] * self.reference]
            easy, member = data.normal(size=len(kinds)), kinds == "member"
            score = own * member + 0.5 * easy + training.normal(size=len(kinds))
            whose = {"threat_model": "server", "way": "exact", "client": f"client-{k:02d}"}
            records = [f"r{k}-{i}" for i in range(len(kinds))]
            tables.append(pd.DataFrame(whose | {"record": records, "kind": kinds, "member": member, SIGNAL: score}))
        return pd.concat(tables, ignore_index=True)

    def run(
        self, name: str, noise: int = 0, strength: float = 0.0, *, spread: float = 0.0, seed: int = 0, **changed: object
    ) -> AuditedRun:
        """A run whose scores are `table`, attacked by the server."""
        place = {"threat_model": "server", "way": "exact", "population": "own members", "nonmembers": "held-out"}
        about = place | {
            "signal": SIGNAL, "headline": True, "best_of": None, "clients": self.clients, "confidence": 0.95,
            "detectable_named": 8, "low": 0.4, "high": 0.6, "value": 0.5,
        } | changed  # fmt: skip
        findings = [
            about | {"metric": "auroc", "interval": "mean over clients"},
            about | {"metric": "tpr@10%", "interval": "over clients; threshold from reference records"},
        ]
        setting = {"task.name": "captions", "method.name": name, "data_seed": self.seed, "seed": seed}
        tables = {"records": self.table(noise, strength, spread=spread)}
        return AuditedRun(f"{name}-{noise}-{seed}", name, seed, setting, findings, tables)
