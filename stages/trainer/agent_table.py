"""Numbers that a trainer keeps per agent from one trajectory to the next, and the chains that trajectories form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.stages.errors import StageError

PATIENCE = 100
"""Updates after which an agent without a new trajectory is forgotten: it vanished without an episode's end, or
there are enough agents that it does no harm to restart their memories now and then."""


@dataclass(frozen=True, slots=True)
class Chains:
    """The order in which trajectories continue each other. Axis letter: K trajectories, in order of arrival."""

    rounds: tuple[NDArray[np.int64], ...]
    """Indices of trajectories; the predecessor of each, if any, is in the round before."""
    previous: NDArray[np.int64]
    """[K] the trajectory that each one continues, of the same agent and episode; -1 for none."""
    latest: NDArray[np.bool_]
    """[K] true for an agent's last trajectory."""

    @classmethod
    def of(cls, agents: NDArray[np.int64], episodes: NDArray[np.int64], ended: NDArray[np.bool_]) -> Chains:
        """Chain trajectories by agent and episode [K]; a trajectory that ends its episode has no successor."""
        count = len(agents)
        order = np.argsort(agents, kind="stable")
        agent, episode = agents[order], episodes[order]
        starts, latest = np.ones(count, np.bool_), np.ones(count, np.bool_)
        starts[1:] = (agent[1:] != agent[:-1]) | (episode[1:] != episode[:-1]) | ended[order][:-1]
        latest[order[:-1]] = agent[1:] != agent[:-1]
        places = np.arange(count)
        rank = places - np.maximum.accumulate(np.where(starts, places, 0))
        previous = np.full(count, -1, np.int64)
        previous[order[~starts]] = order[np.flatnonzero(~starts) - 1]
        by_rank = np.argsort(rank, kind="stable")
        rounds = np.split(order[by_rank], np.cumsum(np.bincount(rank))[:-1]) if count else []
        return cls(tuple(rounds), previous, latest)

    @classmethod
    def unlinked(cls, count: int) -> Chains:
        """Trajectories that do not continue each other: one round."""
        return cls((np.arange(count),), np.full(count, -1, np.int64), np.ones(count, np.bool_))


class AgentTable:
    """Numbers [width] for each agent in the middle of an episode."""

    def __init__(self, width: int, dtype: str) -> None:
        self._agents = np.empty(0, np.int64)  # rising
        self._episodes = np.empty(0, np.int64)
        self._heard = np.empty(0, np.int64)
        self._values = np.empty((0, width), dtype)

    def __len__(self) -> int:
        return len(self._agents)

    def values_of(self, agents: NDArray[np.int64], episodes: NDArray[np.int64]) -> NDArray[Any]:
        """Numbers [n, width] of agents in these episodes; zeros for unknown ones. A new array."""
        found = np.zeros((len(agents), self._values.shape[1]), self._values.dtype)
        if not len(self):
            return found
        at = np.minimum(np.searchsorted(self._agents, agents), len(self) - 1)
        known = (self._agents[at] == agents) & (self._episodes[at] == episodes)
        found[known] = self._values[at[known]]
        return found

    def keep(
        self,
        agents: NDArray[np.int64],
        episodes: NDArray[np.int64],
        values: NDArray[Any],
        ended: NDArray[np.bool_],
        update: int,
    ) -> None:
        """Keep the numbers of n agents; forget agents whose episode ended, and those absent for `PATIENCE` updates.

        Args:
            agents: [n] each once.
            episodes: [n] the episode of each.
            values: [n, width]
            ended: [n] true if that episode is over.
            update: the update's number, ascending.
        """
        stay = ~np.isin(self._agents, agents) & (self._heard > update - PATIENCE)
        on = ~ended
        joined = np.concatenate([self._agents[stay], agents[on]])
        order = np.argsort(joined, kind="stable")
        self._agents = joined[order]
        self._episodes = np.concatenate([self._episodes[stay], episodes[on]])[order]
        self._heard = np.concatenate([self._heard[stay], np.full(int(on.sum()), update)])[order]
        self._values = np.concatenate([self._values[stay], values[on].astype(self._values.dtype)])[order]

    def state_dict(self) -> dict[str, Any]:
        """Copies of the columns."""
        return {
            "agents": self._agents.copy(),
            "episodes": self._episodes.copy(),
            "heard": self._heard.copy(),
            "values": self._values.copy(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state_dict()`.

        Raises:
            StageError: if the state's rows have another width.
        """
        got, expected = np.shape(state["values"])[1:], self._values.shape[1:]
        if got != expected:
            raise StageError(f"table of agents: expected rows of shape {expected}, got {got}")
        self._agents = np.array(state["agents"], np.int64)
        self._episodes = np.array(state["episodes"], np.int64)
        self._heard = np.array(state["heard"], np.int64)
        self._values = np.array(state["values"], self._values.dtype)


def add_to_episodes(
    table: AgentTable,
    agents: NDArray[np.int64],
    episodes: NDArray[np.int64],
    ended: NDArray[np.bool_],
    amounts: NDArray[np.float64],
    update: int,
    chains: Chains | None = None,
) -> NDArray[np.float64]:
    """Add up amounts over episodes that came in K pieces.

    Args:
        table: the sums of unfinished episodes; updated by the pieces.
        agents: [K] the agent of each piece.
        episodes: [K] the episode of each piece.
        ended: [K] true if the episode ends with the piece.
        amounts: [K, width] the amounts that each piece adds.
        update: the update's number, ascending; see `AgentTable.keep`.
        chains: which piece continues which, if already known.

    Returns:
        [E, width] the sums of the episodes that ended.
    """
    chains = chains or Chains.of(agents, episodes, ended)
    sums = np.array(amounts)
    so_far = table.values_of(agents, episodes)
    for which in chains.rounds:
        before = chains.previous[which]
        sums[which] += np.where(before[:, None] < 0, so_far[which], sums[before])
    last = chains.latest
    table.keep(agents[last], episodes[last], sums[last], ended[last], update)
    return sums[ended]
