"""Seeds: each source of randomness in a run has its own seed, derived from the run's seed and the source's name."""

from __future__ import annotations

import secrets
import zlib

import numpy as np


def choose_seed(configured: int) -> int:
    """Return the run's seed: the configured one, or a random one for -1 (as in ML-Agents)."""
    return configured if configured >= 0 else secrets.randbelow(10_000)


def derive_seed(seed: int, *path: str | int) -> int:
    """Return a 31-bit seed for the source that `path` names; different paths give independent streams."""
    entropy = [seed, *(part if isinstance(part, int) else zlib.crc32(part.encode()) for part in path)]
    return int(np.random.SeedSequence(entropy).generate_state(1)[0]) & 0x7FFFFFFF
