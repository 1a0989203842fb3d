"""The choice of held-out episodes, which are not learned from but evaluated on."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
"""2⁶⁴ / φ."""


def held_out(
    agent_ids: NDArray[np.int64], episode_ids: NDArray[np.int64], seed: int, share: float
) -> NDArray[np.bool_]:
    """Return true for each of K trajectories of a held-out episode; the same whenever the episode comes.

    Along an agent's episodes it steps round a circle by the golden ratio (Knuth, TAOCP 3, §6.4, "Fibonacci hashing"),
    from a place set by agent and seed; a `share` of the circle is held out. Steps of that size spread evenly: of 20
    episodes in a row a share of a tenth holds out 1 to 3, where dice would hold out none in every eighth case.

    Args:
        agent_ids: [K]
        episode_ids: [K] rising by 1 or so from an agent's one episode to its next.
        seed: another one holds out others.
        share: from 0 to below 1.
    """
    start = _mixed(agent_ids.astype(np.uint64) ^ _mixed(np.array(seed % 2**64, np.uint64)))
    place = start + episode_ids.astype(np.uint64) * _GOLDEN  # modulo 2⁶⁴
    chosen: NDArray[np.bool_] = place < np.uint64(share * 2.0**64)
    return chosen


def _mixed(number: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finaliser of SplitMix64 (Steele, Lea & Flood, 2014): every bit of the number decides on every bit."""
    mixed: NDArray[np.uint64] = np.atleast_1d(number) + _GOLDEN
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    return mixed
