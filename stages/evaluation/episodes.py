"""The episodes that count towards a behaviour id's score, with their returns, lengths and results.

Whether an episode counts is decided at its start. Counting the episodes that end first would favour short ones, whose
returns often differ.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from headrace.stages.environments.protocol import AgentSteps
from headrace.stages.policy.memories import PATIENCE

_LOOK_EVERY = 1000
"""Number of ticks between two searches for agents that have vanished."""
_FIRST_SLOTS = 64


def equal_shares(total: int, parts: int) -> NDArray[np.int64]:
    """Split `total` into `parts` integers that are as equal as possible, in descending order."""
    return np.full(parts, total // parts) + (np.arange(parts) < total % parts)


class CountedEpisodes:
    """Counts one behaviour id's episodes. In each instance, the first episodes to *begin* count, up to a fixed number.

    An episode that never ends does not count. An instance that broke plays replacements for its lost episodes. If an
    instance closes for good, the other instances play its episodes. An agent without a row for `PATIENCE` ticks is not
    replaced.

    Args:
        shares: [instances] the number of episodes to count in each instance.
    """

    def __init__(self, shares: NDArray[np.int64]) -> None:
        self.returns: list[float] = []
        """Undiscounted return of each counted episode: the sum of the agent's own and its group's rewards."""
        self.lengths: list[int] = []
        """Number of the agent's decisions in each counted episode."""
        self.last_rewards: list[float] = []
        """Each counted episode's last reward, the agent's own plus its group's; NaN for a truncated episode."""
        self.running_in = np.zeros(len(shares), np.int64)
        """[instances] the number of counted episodes that are running."""
        self.unsettled = np.zeros(len(shares), np.bool_)
        """[instances] true from the start of a counted episode until the game's result is settled (`settle`), or until
        an episode starts that does not count."""
        self._open = int(shares.sum())
        self._left = shares.copy()
        self._instances = list(range(len(shares)))
        """Numbers of the instances that have not closed."""
        self._slots: dict[int, int] = {}
        """Indices into the arrays below, keyed by the id of each agent with a running episode."""
        self._free: list[int] = []
        self._env_ids = np.zeros(0, np.int64)
        self._counts = np.zeros(0, np.bool_)
        self._totals = np.zeros(0, np.float64)
        self._decisions = np.zeros(0, np.int64)
        self._seen = np.zeros(0, np.int64)
        self._deciding: bytes | None = None
        """Ids, as bytes, of the agents that decided at the last tick, because the same agents usually decide at the
        next one. None if an agent has left."""
        self._where = np.zeros(0, np.int64)
        """Slots of the agents in `_deciding`."""
        self._tick = 0

    @property
    def complete(self) -> bool:
        """True if all counted episodes have ended."""
        return not self._open

    def settle(self, env_ids: NDArray[np.integer]) -> NDArray[np.bool_]:
        """Record that games [g] have ended, before the tick's rows are added; return which of the games count."""
        counts: NDArray[np.bool_] = self.unsettled[env_ids] | (self.running_in[env_ids] > 0)
        self.unsettled[env_ids] = False
        return counts

    def add(
        self, steps: AgentSteps | None, lost: NDArray[np.int32] | None, closed: NDArray[np.int32] | None = None
    ) -> None:
        """Add a tick: the behaviour id's rows, if any, the instances that broke, and those that closed for good."""
        self._tick += 1
        if closed is not None:
            self._share_anew({int(env_id) for env_id in closed})
        if lost is not None:  # before the rows are added, because they belong to the next episodes
            self.forget({int(env_id) for env_id in lost})
        if steps is not None:
            self._add_rows(steps)
        if self._tick % _LOOK_EVERY == 0:
            self._forget_vanished()

    def forget(self, lost: set[int]) -> None:
        """Drop these instances' running episodes; the instances will play replacements."""
        for agent, slot in [*self._slots.items()]:
            env_id = int(self._env_ids[slot])
            if env_id in lost:
                self._left[env_id] += self._leave(agent, slot)
        self.unsettled[[*lost]] = False

    def _add_rows(self, steps: AgentSteps) -> None:
        shared = steps.group_rewards  # without the group's rewards, a selfish policy would score best
        rewards = steps.rewards if shared is None else steps.rewards + shared
        counted = rewards if steps.undiscounted is None else steps.undiscounted.sum(axis=1)
        for row in range(steps.ended):
            self._end(steps, row, float(counted[row]), float(rewards[row]))
        agents = steps.agent_ids[steps.ended :]
        deciding = agents.tobytes()
        if deciding != self._deciding:
            envs = steps.env_ids[steps.ended :].tolist()
            self._where = np.array([self._slot_of(*each) for each in zip(agents.tolist(), envs, strict=True)], np.int64)
            self._deciding = deciding
        self._totals[self._where] += counted[steps.ended :]
        self._decisions[self._where] += 1
        self._seen[self._where] = self._tick

    def _slot_of(self, agent: int, env_id: int) -> int:
        """Return an agent's slot. If the agent has no slot yet, start an episode for it."""
        slot = self._slots.get(agent)
        if slot is not None:
            return slot
        if not self._free:
            self._enlarge()
        slot = self._slots[agent] = self._free.pop()
        counts = bool(self._left[env_id] > 0)
        self._left[env_id] -= counts
        self.running_in[env_id] += counts
        self.unsettled[env_id] = counts or bool(self.unsettled[env_id] and self.running_in[env_id])
        self._env_ids[slot], self._counts[slot] = env_id, counts
        self._totals[slot] = self._decisions[slot] = 0
        return slot

    def _end(self, steps: AgentSteps, row: int, counted: float, reward: float) -> None:
        agent = int(steps.agent_ids[row])
        slot = self._slot_of(agent, int(steps.env_ids[row]))
        total, decisions = float(self._totals[slot]) + counted, int(self._decisions[slot])
        if self._leave(agent, slot):
            self._open -= 1
            self.returns.append(total)
            self.lengths.append(decisions)
            self.last_rewards.append(reward if steps.terminated[row] else np.nan)

    def _leave(self, agent: int, slot: int) -> bool:
        """Free an agent's slot; return True if the agent's episode counts."""
        del self._slots[agent]
        self._free.append(slot)
        self._deciding = None
        counts = bool(self._counts[slot])
        self.running_in[self._env_ids[slot]] -= counts
        return counts

    def _share_anew(self, closed: set[int]) -> None:
        """Distribute the shares of closed instances among the other instances.

        If no instance is left, the count is complete.
        """
        self.forget(closed)
        self._instances = [env_id for env_id in self._instances if env_id not in closed]
        for env_id in closed:
            left, self._left[env_id] = int(self._left[env_id]), 0
            for number, share in enumerate(equal_shares(left, len(self._instances)) if self._instances else ()):
                self._left[self._instances[number]] += share

    def _forget_vanished(self) -> None:
        for agent, slot in [*self._slots.items()]:
            if self._tick - self._seen[slot] > PATIENCE:
                self.unsettled[self._env_ids[slot]] = False
                self._open -= self._leave(agent, slot)

    def _enlarge(self) -> None:
        before = len(self._seen)
        total = max(_FIRST_SLOTS, 2 * before)
        for name in ("_env_ids", "_counts", "_totals", "_decisions", "_seen"):
            values = getattr(self, name)
            setattr(self, name, np.concatenate((values, np.zeros(total - before, values.dtype))))
        self._free = [*range(total - 1, before - 1, -1)]
