"""A shard of a replay memory, as a stage: rows come in, and batches are drawn for the trainer that asks for them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from headrace.queues.messages import ReplayRequest, ReplaySample, TrajectoryBatch
from headrace.stages.stage import Stage
from headrace.stages.trainer.randomness import new_random, random_state, restore_random
from headrace.stages.trainer.sac.replay_memory import ReplayMemory
from headrace.stages.trainer.sac.sharded_replay import SIZE, as_sample, taken_apart


class ReplayShard(Stage[TrajectoryBatch | ReplayRequest, ReplaySample]):
    """Keeps rows, and draws from them.

    Args:
        memory: keeps the rows.
        seed: of the draws.

    Attributes:
        rows: that have ever come.
    """

    may_block = True

    def __init__(self, memory: ReplayMemory, seed: int) -> None:
        self.memory = memory
        self.rows = 0
        self._random = new_random(seed)

    def process(self, item: TrajectoryBatch | ReplayRequest) -> Iterator[ReplaySample]:
        """Keep a batch, or answer a request: an item for each batch of which this shard gives rows."""
        if isinstance(item, TrajectoryBatch):
            self.memory.add(item, *taken_apart(item))
            self.rows += item.num_rows
            return
        for count in item.counts.tolist():
            if count < 0:
                yield self.size()
            elif count:
                yield as_sample(self.memory.sample(count, self._random))

    def size(self) -> ReplaySample:
        """What a trainer is told that begins: the rows that the shard has."""
        return ReplaySample({SIZE: np.array([len(self.memory)], np.int64)})

    def state_dict(self) -> Mapping[str, Any]:
        """All but the rows, which are in a file of their own."""
        return {"rows": self.rows, "random": random_state(self._random)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state_dict()`."""
        self.rows = int(state["rows"])
        restore_random(self._random, state["random"])
