"""Numbers for the episodes of programs' agents: programs report agents and endings, but count no episodes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headrace.stages.slots import NOBODY, Numbers, Slots, enlarged


@dataclass(frozen=True, slots=True)
class TrackedEpisodes:
    """The episodes of a message's rows: n rows, the first `ended` of them endings."""

    episode_ids: Numbers
    """[n]"""
    first: NDArray[np.bool_]
    """[n] true in the first row of an episode."""
    generations: NDArray[np.int32]
    """[ended] generation of the environment parameters when the ended episodes began."""


class EpisodeTracker:
    """The running episodes of one behaviour's agents in one program.

    Episodes are numbered in the order in which they begin, over all agents. So an agent's numbers rise even if it gets
    a new id with each episode (as in older packages), and nothing has to be kept of agents that have ended.

    Args:
        first_number: number of the first episode.
    """

    def __init__(self, first_number: int = 0) -> None:
        self.next_number = first_number
        """The number of the next episode."""
        self._slots = Slots(16)
        self._numbers = np.zeros(self._slots.total, np.int64)
        self._generations = np.zeros(self._slots.total, np.int32)
        self._last = b""
        self._again = TrackedEpisodes(np.empty(0, np.int64), np.empty(0, np.bool_), np.empty(0, np.int32))

    def track(self, agent_ids: Numbers, ended: int, generation: int) -> TrackedEpisodes:
        """Number the rows of a message: endings end their agents' episodes, deciding agents without one begin one.

        Args:
            agent_ids: [n] of the rows, no agent twice among the endings or among the rest.
            ended: the number of rows that are endings.
            generation: of the current environment parameters.
        """
        key = b"" if ended else agent_ids.tobytes()
        if key and key == self._last:
            return self._again  # the usual message: the same agents as before, no ending
        episode_ids = np.empty(len(agent_ids), np.int64)
        first = np.zeros(len(agent_ids), np.bool_)
        ending = self._slots.find(agent_ids[:ended])
        known = ending != NOBODY
        episode_ids[:ended] = self._numbers[ending]
        generations = self._generations[ending]
        episode_ids[:ended][~known] = self._number(ended - int(np.count_nonzero(known)))
        generations[~known] = generation
        first[:ended] = ~known
        if known.any():
            self._slots.remove(ending[known])
        deciding = self._slots.find(agent_ids[ended:])
        fresh = deciding == NOBODY
        if fresh.any():
            deciding[fresh] = self._begin(agent_ids[ended:][fresh], generation)
        episode_ids[ended:] = self._numbers[deciding]
        first[ended:] = fresh
        self._last = agent_ids[ended:].tobytes()
        self._again = TrackedEpisodes(episode_ids[ended:], np.zeros(len(deciding), np.bool_), np.empty(0, np.int32))
        return TrackedEpisodes(episode_ids, first, generations)

    def clear(self) -> None:
        """Forget all running episodes: every agent begins a new one."""
        used = self._slots.used()
        if len(used):
            self._slots.remove(used)
        self._last = b""

    def _number(self, count: int) -> Numbers:
        first, self.next_number = self.next_number, self.next_number + count
        return np.arange(first, first + count)

    def _begin(self, agent_ids: Numbers, generation: int) -> Numbers:
        slots = self._slots.add(agent_ids)
        if self._slots.total > len(self._numbers):
            self._numbers = enlarged(self._numbers, self._slots.total)
            self._generations = enlarged(self._generations, self._slots.total)
        self._numbers[slots] = self._number(len(agent_ids))
        self._generations[slots] = generation
        return slots
