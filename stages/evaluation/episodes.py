"""The episodes of an evaluation that count, and their returns and lengths."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stages.environment.protocol import AgentSteps
from stages.policy.memories import PATIENCE

_LOOK_EVERY = 1000
"""Ticks between two searches for agents that have vanished."""


@dataclass(slots=True)
class _Episode:
    env_id: int
    counts: bool
    total: float = 0.0
    length: int = 0
    seen: int = 0


class CountedEpisodes:
    """Counts the episodes of one behaviour id: in each instance a fixed share, the first ones to *begin*.

    The first ones to end would be the short ones, which often have another return. An episode that never ends does not
    count: of an instance that broke, another one takes its place; of one that closed for good, one of another instance;
    of an agent without a row for `PATIENCE` ticks, none.

    Args:
        wanted: how many.
        num_envs: instances.
    """

    def __init__(self, wanted: int, num_envs: int) -> None:
        self.returns: list[float] = []
        """Undiscounted sums of own and group's rewards."""
        self.lengths: list[int] = []
        """Decisions of the agent."""
        self._open = wanted
        self._left = np.full(num_envs, wanted // num_envs)
        self._left[: wanted % num_envs] += 1
        self._instances = list(range(num_envs))
        """Those that have not closed."""
        self._running: dict[int, _Episode] = {}
        self._tick = 0

    @property
    def complete(self) -> bool:
        """True if all that count have ended."""
        return not self._open

    def add(
        self, steps: AgentSteps | None, lost: NDArray[np.int32] | None, closed: NDArray[np.int32] | None = None
    ) -> None:
        """Add a tick: the rows of the behaviour id, if it has any, and the instances that broke or closed for good."""
        self._tick += 1
        if closed is not None:
            self._share_anew({int(env_id) for env_id in closed})
        if steps is not None:
            self._add_rows(steps)
        if lost is not None:
            self._forget({int(env_id) for env_id in lost})
        if self._tick % _LOOK_EVERY == 0:
            self._forget_vanished()

    def _add_rows(self, steps: AgentSteps) -> None:
        shared = steps.group_rewards  # or the best policy of a group would be that of egoists
        if steps.undiscounted is not None:
            rewards = steps.undiscounted.sum(axis=1).tolist()
        else:
            rewards = (steps.rewards if shared is None else steps.rewards + shared).tolist()
        env_ids = steps.env_ids.tolist()
        for row, agent in enumerate(steps.agent_ids.tolist()):
            episode = self._running.get(agent)
            if episode is None:
                env_id = env_ids[row]
                counts = bool(self._left[env_id] > 0)
                self._left[env_id] -= counts
                episode = self._running[agent] = _Episode(env_id, counts)
            episode.total += rewards[row]
            episode.seen = self._tick
            if row >= steps.ended:
                episode.length += 1
                continue
            del self._running[agent]
            if episode.counts:
                self._open -= 1
                self.returns.append(episode.total)
                self.lengths.append(episode.length)

    def _share_anew(self, closed: set[int]) -> None:
        """Let the other instances play what these have not; a group without others has ended."""
        self._forget(closed)
        self._instances = [env_id for env_id in self._instances if env_id not in closed]
        for env_id in closed:
            left, self._left[env_id] = int(self._left[env_id]), 0
            for number in range(left):
                self._left[self._instances[number % len(self._instances)]] += 1

    def _forget(self, lost: set[int]) -> None:
        for agent, episode in [*self._running.items()]:
            if episode.env_id in lost:
                del self._running[agent]
                self._left[episode.env_id] += episode.counts

    def _forget_vanished(self) -> None:
        for agent, episode in [*self._running.items()]:
            if self._tick - episode.seen > PATIENCE:
                del self._running[agent]
                self._open -= episode.counts
