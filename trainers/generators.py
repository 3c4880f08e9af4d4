"""Random generators by seed and purpose."""

import zlib

import numpy as np
import torch


def generator(seed: int, *path: str | int) -> torch.Generator:
    """A generator on the host, seeded by `seed` and `path`; different paths give independent streams, equal ones the
    same."""
    words = [zlib.crc32(part.encode()) if isinstance(part, str) else part for part in path]
    state = np.random.SeedSequence([seed, *words]).generate_state(2, np.uint32)
    return torch.Generator().manual_seed(int(state[0]) << 32 | int(state[1]))
