"""The rows of a replay memory are dealt out to shards, where a resumed run has another number of them."""

from __future__ import annotations

import numpy as np

from headrace.stages.trainer.sac.replay_memory import ReplayMemory

RUN = 16
"""Rows that stay together: each run costs one more observation."""
_AT_ONCE = 2**12


def deal(former: ReplayMemory, memory: ReplayMemory, place: int, shards: int) -> None:
    """Add a shard's share of the rows of another memory, oldest first, to its own.

    Args:
        former: the rows; without sequences.
        memory: the shard's.
        place: the run that the shard gets first, of the first `shards` ones.
        shards: how many get rows.
    """
    ages = np.arange(len(former))
    ages = ages[ages // RUN % shards == place % shards]
    for begin in range(0, len(ages), _AT_ONCE):
        memory.add(*former.taken(ages[begin : begin + _AT_ONCE]))
