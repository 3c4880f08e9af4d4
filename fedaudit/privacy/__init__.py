"""Differential privacy of a run: clipping and noise, the ledger of what was noised, and the accountant that reads
it."""
