"""What an agent's mates are rewarded with between two of its turns.

Where all agents act at once, whoever learns finds the mates' rewards in their rows of the same tick. In a game that
goes by turns no two agents ever have a row at the same tick, so each one's row has to tell what the others earned.
"""

from __future__ import annotations


class Earnings:
    """What the groups of one instance have earned in its running episode.

    An agent's reward is told for certain when its turn comes. Many environments tell earlier what an agent has received
    that still waits; then its mates hear of it at once, also one that dies before that agent's turn. What was heard so
    is put right when the turn comes, so nothing counts twice.
    """

    __slots__ = ("_certain", "_groups", "_heard")

    def __init__(self) -> None:
        self._groups: dict[int, float] = {}
        self._certain: dict[str, float] = {}
        self._heard: dict[str, float] = {}

    def hear(self, group_id: int, agent: str, reward: float, *, certain: bool) -> None:
        """Take note of an agent's reward since its last turn.

        Args:
            group_id: the agent's group.
            agent: its name.
            reward: all since its last turn, in its turn or so far.
            certain: whether it is its turn now, or its end.
        """
        total = self._certain.get(agent, 0.0) + reward
        if certain:
            self._certain[agent] = total
        self._groups[group_id] = self._groups.get(group_id, 0.0) + total - self._heard.get(agent, 0.0)
        self._heard[agent] = total

    def of_mates(self, group_id: int, agent: str) -> float:
        """What all others of an agent's group have earned so far, those included who are gone or have yet to move."""
        return self._groups.get(group_id, 0.0) - self._heard.get(agent, 0.0)
