"""Games between two players of any kind, many at once: how strength is measured.

A player maps what its team sees, with the masks, to moves; trained policies become players by `as_player`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from queues.messages import ActionBatch, Array
from stages.games.connect_four.group import ConnectFourGroup
from stages.games.tally import Tally

if TYPE_CHECKING:
    from stages.policy.protocol import ActingPolicy

Player = Callable[[tuple[Array, ...], NDArray[np.bool_]], ActionBatch]
"""Observations and masks of d boards to d moves."""


def play_games(player_a: Player, player_b: Player, games: int) -> Tally:
    """Let two players meet in `games` games, in every other one of which `player_a` begins.

    Every game has a board of its own and only the first game of each board counts: had the boards gone on until
    enough games were over, short games would count too often.
    """
    group = ConnectFourGroup(games)
    outcomes = np.full(games, np.nan, dtype=np.float32)
    result = group.reset()
    while np.isnan(outcomes).any():
        actions = {}
        for player, behavior_id in zip((player_a, player_b), group.behavior_ids, strict=True):
            steps = result.steps[behavior_id]
            if steps.ended < len(steps.agent_ids):
                assert steps.action_masks is not None
                actions[behavior_id] = player((steps.observations[0][steps.ended :],), steps.action_masks)
        result = group.step(actions)
        if result.games is not None:
            ended = result.games.env_ids
            of_a = result.games.outcomes[:, 0]
            outcomes[ended] = np.where(np.isnan(outcomes[ended]), of_a, outcomes[ended])
    return Tally.of(outcomes)


def as_player(policy: ActingPolicy, seed: int, deterministic: bool = False) -> Player:
    """A trained policy, without memory, as a player."""
    random = np.random.default_rng(seed)

    def act(observations: tuple[Array, ...], masks: NDArray[np.bool_]) -> ActionBatch:
        return policy.act(observations, masks, random, deterministic).actions

    return act
