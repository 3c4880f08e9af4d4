"""Random generators by seed and purpose."""

import zlib

import numpy as np
import torch

PADDED = 4  # words to which numpy's SeedSequence fills up with zeros
_lengths = dict[tuple[str, ...], int]()  # of the short paths that were used, by the names in them


def generator(seed: int, *path: str | int) -> torch.Generator:
    """A generator on the host, seeded by `seed` and `path`; different paths give independent streams, equal ones the
    same. ValueError: a path as short as ("x",) and another one as ("x", 0), which would be one stream, as the former is
    filled up with zeros."""
    names = tuple(part for part in path if isinstance(part, str))
    if len(path) < PADDED and _lengths.setdefault(names, len(path)) != len(path):
        raise ValueError(f"{path}: paths named {names} have {_lengths[names]} parts, and zeros fill them up")
    words = [zlib.crc32(part.encode()) if isinstance(part, str) else part for part in path]
    state = np.random.SeedSequence([seed, *words]).generate_state(2, np.uint32)
    return torch.Generator().manual_seed(int(state[0]) << 32 | int(state[1]))
