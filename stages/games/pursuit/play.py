"""Games between players of both sides, many at once: how strength is measured.

A player maps what agents of its side see to actions. Trained policies become players by `as_player`; `random_player`
and the players in `scripted` are yardsticks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from queues.messages import ActionBatch, Array
from stages.games.pursuit.group import ACTIONS, PursuitGroup

if TYPE_CHECKING:
    from stages.policy.protocol import ActingPolicy

Player = Callable[[tuple[Array, ...]], ActionBatch]
"""Observations, as a behaviour's `AgentSteps` has them, to one action per row."""


class Tally(NamedTuple):
    """Results of games."""

    caught: int
    escaped: int

    @property
    def catch_rate(self) -> float:
        """Share of games that the pursuers won."""
        return self.caught / sum(self)


def play_games(pursuer: Player, evader: Player, games: int, seed: int, **options: float) -> Tally:
    """Let pursuers and an evader meet in `games` games, each in an arena of its own; only its first game counts.

    Args:
        pursuer: acts for both pursuers of each arena, `2 * games` rows at a time.
        evader: acts for the evader of each arena.
        games: number of games, at least 1.
        seed: decides all starts.
        options: the keyword arguments of `PursuitGroup`.
    """
    group = PursuitGroup(games, **options)  # type: ignore[arg-type]  # checked there
    outcomes = np.full(games, np.nan, dtype=np.float32)
    result = group.reset(seed)
    players = {group.pursuer_id: pursuer, group.evader_id: evader}
    while np.isnan(outcomes).any():
        result = group.step(
            {
                behavior_id: player((steps.observations[0][steps.ended :],))
                for behavior_id, player in players.items()
                for steps in (result.steps[behavior_id],)
            }
        )
        if result.games is not None:
            ended = result.games.env_ids
            of_pursuers = result.games.outcomes[:, 0]
            outcomes[ended] = np.where(np.isnan(outcomes[ended]), of_pursuers, outcomes[ended])
    caught = int(outcomes.sum())
    return Tally(caught, games - caught)


def as_player(policy: ActingPolicy, seed: int, deterministic: bool = False) -> Player:
    """A trained policy, without memory, as a player."""
    random = np.random.default_rng(seed)

    def act(observations: tuple[Array, ...]) -> ActionBatch:
        return policy.act(observations, None, random, deterministic).actions

    return act


def random_player(seed: int) -> Player:
    """A player that draws every action with equal chance."""
    random = np.random.default_rng(seed)

    def act(observations: tuple[Array, ...]) -> ActionBatch:
        choices = random.integers(0, ACTIONS.discrete_branches, size=(len(observations[0]), 1), dtype=np.int32)
        return ActionBatch(np.zeros((len(choices), 0), np.float32), choices)

    return act
