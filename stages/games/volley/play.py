"""Matches between two players of any kind, many at once: how strength is measured.

A player maps observations to actions and knows nothing else, not even its side. Trained policies become players by
`as_player`; `random_player` and `scripted.ScriptedPlayer` are yardsticks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from queues.messages import ActionBatch, Array
from stages.games.tally import Tally
from stages.games.volley.group import ACTIONS, VolleyGroup

if TYPE_CHECKING:
    from stages.policy.protocol import ActingPolicy

Player = Callable[[tuple[Array, ...]], ActionBatch]
"""Observations, as a behaviour's `AgentSteps` has them, to one action per row."""


def play_games(player_a: Player, player_b: Player, games: int, seed: int, **options: int | float) -> Tally:
    """Let two players meet in `games` matches, half of them with the sides swapped.

    Every match has a court of its own and only the first match of each court counts: had the courts gone on until
    enough games were over, short games would count too often.

    Args:
        player_a: whose wins are counted; acts for `games` rows at a time.
        player_b: its opponent.
        games: number of matches, at least 1; with an odd number, `player_a` is once more on the left.
        seed: decides all serves.
        options: the keyword arguments of `VolleyGroup`.
    """
    group = VolleyGroup(games, **options)  # type: ignore[arg-type]  # checked there
    left, right = group.behavior_ids
    half = (games + 1) // 2
    outcomes = np.full(games, np.nan, dtype=np.float32)
    result = group.reset(seed)
    while np.isnan(outcomes).any():
        seen = [result.steps[side].observations[0][result.steps[side].ended :] for side in (left, right)]
        a = player_a((np.concatenate([seen[0][:half], seen[1][half:]]),)).discrete
        b = player_b((np.concatenate([seen[1][:half], seen[0][half:]]),)).discrete
        result = group.step(
            {
                left: _discrete(np.concatenate([a[:half], b[half:]])),
                right: _discrete(np.concatenate([b[:half], a[half:]])),
            }
        )
        if result.games is not None:
            ended = result.games.env_ids
            side = (ended >= half).astype(int)
            of_a = result.games.outcomes[np.arange(len(ended)), side]
            outcomes[ended] = np.where(np.isnan(outcomes[ended]), of_a, outcomes[ended])
    return Tally.of(outcomes)


class PolicyPlayer:
    """A trained policy as a player, with a source of chance of its own.

    What a policy with memory remembers is kept by row: the same row is the same agent, until `forget` is called.
    """

    def __init__(self, policy: ActingPolicy, seed: int, deterministic: bool) -> None:
        from stages.policy.memories import AgentMemories  # a game needs no policy of ours to be played

        self._policy = policy
        self._deterministic = deterministic
        self._random = np.random.default_rng(seed)
        self._memories = AgentMemories.of(policy, ACTIONS)

    def __call__(self, observations: tuple[Array, ...]) -> ActionBatch:
        """One action per row."""
        rows = np.arange(len(observations[0]))
        recall = None if self._memories is None else self._memories.recall(rows, np.zeros_like(rows))
        decision = self._policy.act(observations, None, self._random, self._deterministic, recall)
        if self._memories is not None and decision.recall is not None:
            self._memories.keep(rows, np.zeros_like(rows), decision.recall)
        return decision.actions

    def forget(self, rows: NDArray[np.int64]) -> None:
        """The episodes of these rows have ended."""
        if self._memories is not None:
            self._memories.forget(rows)


def as_player(policy: ActingPolicy, seed: int, deterministic: bool = False) -> PolicyPlayer:
    """A trained policy as a player."""
    return PolicyPlayer(policy, seed, deterministic)


def random_player(seed: int) -> Player:
    """A player that draws every action with equal chance."""
    random = np.random.default_rng(seed)

    def act(observations: tuple[Array, ...]) -> ActionBatch:
        size = (len(observations[0]), len(ACTIONS.discrete_branches))
        return _discrete(random.integers(0, ACTIONS.discrete_branches, size=size, dtype=np.int32))

    return act


def _discrete(choices: Array) -> ActionBatch:
    return ActionBatch(np.zeros((len(choices), 0), dtype=np.float32), choices)
