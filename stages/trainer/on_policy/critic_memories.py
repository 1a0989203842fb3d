"""The critic's memory: of each agent it is carried from one trajectory to the next, as the actor's is on its side."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from stages.trainer.agent_table import AgentTable, Chains
from stages.trainer.on_policy.rollout_buffer import RolloutBuffer


class CriticMemories:
    """What a critic remembers [m] of each agent in the middle of an episode."""

    def __init__(self, memory_size: int) -> None:
        self._table = AgentTable(memory_size, "float32")

    def __len__(self) -> int:
        return len(self._table)

    def of(self, agents: NDArray[np.int64], episodes: NDArray[np.int64]) -> NDArray[np.float32]:
        """[n, m] of agents in these episodes; zeros of those not known. A new array."""
        found: NDArray[np.float32] = self._table.of(agents, episodes)
        return found

    def keep(self, buffer: RolloutBuffer, after: Tensor, chains: Chains, update: int) -> None:
        """Keep what is remembered for the agents' next trajectories.

        Args:
            buffer: what was evaluated.
            after: [K, m] after the last row of each trajectory.
            chains: which trajectory continues which.
            update: number of the update, rising.
        """
        trajectories, latest = buffer.trajectories, chains.latest
        ended = trajectories["terminated"] | trajectories["truncated"]
        self._table.keep(
            trajectories["agent_ids"][latest],
            trajectories["episode_ids"][latest],
            after.cpu().numpy()[latest],
            ended[latest],
            update,
        )

    def state_dict(self) -> dict[str, Any]:
        """Copies of the columns."""
        return self._table.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state_dict()`.

        Raises:
            StageError: if it is of another width.
        """
        self._table.load_state_dict(state)
