"""Standings: how the games that were shown have ended."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.queues.specs import behavior_team
from headrace.stages.environments.protocol import StepResult


class Standings:
    """How the games that were shown have ended."""

    def __init__(self) -> None:
        self.wins: dict[str, int] = {}
        """Won games by behaviour id, where teams play."""
        self.games = 0
        """Games, or episodes, that have ended."""
        self.returns: dict[str, float] = {}
        """Return of the last episode, the mean over agents, by behaviour id."""
        self._running: dict[int, float] = {}

    def add(self, result: StepResult, ids: Mapping[str, Any]) -> tuple[bool, str]:
        """Add a tick; returns whether a game or an episode has ended, and the winner if there is one."""
        over = False
        for behavior_id, steps in result.steps.items():
            ended = []
            rewards = steps.rewards if steps.group_rewards is None else steps.rewards + steps.group_rewards
            for row, agent in enumerate(steps.agent_ids.tolist()):
                total = self._running.get(agent, 0.0) + float(rewards[row])
                if row < steps.ended:
                    ended.append(total)
                    self._running.pop(agent, None)
                else:
                    self._running[agent] = total
            if ended:
                self.returns[behavior_id] = sum(ended) / len(ended)
                over = True
        if result.games is not None and len(result.games.env_ids):
            self.games += 1
            return True, self._winner(result.games.outcomes[0].tolist(), ids)
        self.games += over and result.games is None
        return over and result.games is None, ""

    def _winner(self, outcomes: list[float], ids: Mapping[str, Any]) -> str:
        best = max(outcomes)
        if outcomes.count(best) > 1:
            return ""
        winners = [behavior_id for behavior_id in ids if behavior_team(behavior_id) == outcomes.index(best)]
        for behavior_id in winners:
            self.wins[behavior_id] = self.wins.get(behavior_id, 0) + 1
        return winners[0] if winners else ""
