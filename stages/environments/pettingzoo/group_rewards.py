"""Group rewards in turn-based environments: the rewards of an agent's mates between two of its turns.

Where all agents act at once, the mates' rewards are in their rows of the same tick. In a turn-based game no two agents
have a row in the same tick, so each row carries what the others received.
"""

from __future__ import annotations


class GroupRewards:
    """The rewards of the groups of one instance in its running episode.

    An agent's reward is final when its turn comes. Many environments give a preliminary reward of an agent that still
    waits; it counts for its mates at once, even for one that dies before that agent's turn. The final reward replaces
    the preliminary ones, so nothing counts twice.
    """

    __slots__ = ("_counted", "_final", "_groups")

    def __init__(self) -> None:
        self._groups: dict[int, float] = {}
        self._final: dict[str, float] = {}
        self._counted: dict[str, float] = {}

    def add(self, group_id: int, agent: str, reward: float, *, final: bool) -> None:
        """Add an agent's reward since its last turn.

        Args:
            group_id: the agent's group.
            agent: its name.
            reward: the sum since its last turn.
            final: True in its turn and at its end, False for a preliminary reward.
        """
        total = self._final.get(agent, 0.0) + reward
        if final:
            self._final[agent] = total
        self._groups[group_id] = self._groups.get(group_id, 0.0) + total - self._counted.get(agent, 0.0)
        self._counted[agent] = total

    def of_mates(self, group_id: int, agent: str) -> float:
        """The rewards of an agent's mates so far, including those that are gone or have yet to act."""
        return self._groups.get(group_id, 0.0) - self._counted.get(agent, 0.0)
