"""Differential privacy of a run: clipping and noise, the ledger of noised releases, and the accountant."""
