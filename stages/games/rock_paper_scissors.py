"""Rock, paper, scissors with stakes, as an environment group: the smallest game without a best strategy.

Both teams choose simultaneously, and a tick is a game. The winner gets the stake of the winning choice, and the loser
loses the same amount. In equilibrium, rock, paper and scissors are played in proportion to the stakes of scissors, rock
and paper, respectively (`equilibrium`). Best responses to only the last opponent cycle forever (docs/league.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from headrace.queues.messages import ActionBatch
from headrace.queues.specs import ActionSpec, ObservationSpec
from headrace.stages.environments.protocol import AgentSteps, GameResults, StepResult
from headrace.stages.games.group import BuiltinGame

STAKES = (1.0, 2.0, 3.0)


def payoffs(stakes: Sequence[float] = STAKES) -> NDArray[np.float64]:
    """Return the payoff matrix [3, 3] of the row's choice against the column's, in the order rock, paper, scissors."""
    rock, paper, scissors = stakes
    return np.array([[0, -paper, rock], [paper, 0, -scissors], [-rock, scissors, 0]])


def equilibrium(stakes: Sequence[float] = STAKES) -> NDArray[np.float64]:
    """Return the strategy [3] that no other strategy beats."""
    rock, paper, scissors = stakes
    return np.array([scissors, rock, paper]) / sum(stakes)


class RockPaperScissorsGroup(BuiltinGame):
    """`num_envs` pairs of rock, paper, scissors players.

    Args:
        num_envs: number of pairs.
        behavior: behaviour name; the ids are `<behavior>?team=0` and `<behavior>?team=1`.
        stakes: the stakes of winning with rock, paper and scissors.

    Raises:
        ValueError: if there is no pair, or a stake is not above 0.
    """

    def __init__(self, num_envs: int, *, behavior: str = "RockPaperScissors", stakes: Sequence[float] = STAKES) -> None:
        ids = f"{behavior}?team=0", f"{behavior}?team=1"
        super().__init__(num_envs, ids, ObservationSpec("nothing", (1,)), ActionSpec(discrete_branches=(3,)))
        if len(stakes) != 3 or min(stakes) <= 0:
            raise ValueError(f"RockPaperScissorsGroup: stakes is {stakes}; expected three numbers above 0")
        self._payoffs = payoffs(stakes)
        self._played = 0

    def reset(self, seed: int | None = None) -> StepResult:
        """Start each pair's first game."""
        self._played = 0
        return self._result(np.empty((2, 0), np.float32))

    def step(self, actions: Mapping[str, ActionBatch]) -> StepResult:
        """Play one game for each pair."""
        mine, theirs = (actions[behavior_id].discrete[:, 0] for behavior_id in self.behavior_ids)
        won = self._payoffs[mine, theirs].astype(np.float32)
        self._played += 1
        return self._result(np.stack([won, -won]))

    def _result(self, rewards: NDArray[np.float32]) -> StepResult:
        """Return the rows of both teams.

        The final rows of all games [2, n], if any were played, come first, and the new games' first rows follow.
        """
        n, ended = self.num_envs, rewards.shape[1]
        rows = np.concatenate([self._env_ids[:ended], self._env_ids])
        episodes = np.repeat(np.array([self._played - 1, self._played]), (ended, n))
        steps = {
            behavior_id: AgentSteps(
                agent_ids=rows.astype(np.int64) * 2 + team,
                env_ids=rows,
                episode_ids=episodes,
                observations=(np.ones((len(rows), 1), np.float32),),
                rewards=np.concatenate([rewards[team], np.zeros(n, np.float32)]),
                ended=ended,
                terminated=np.ones(ended, np.bool_),
                truncated=np.zeros(ended, np.bool_),
            )
            for team, behavior_id in enumerate(self.behavior_ids)
        }
        if not ended:
            return StepResult(steps)
        return StepResult(steps, GameResults(self._env_ids, ((1 + np.sign(rewards.T)) / 2).astype(np.float32)))
