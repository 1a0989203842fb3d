"""Plays many matches between two players of a built-in game at once, to measure their strength.

A player maps observations, in the form of a behaviour's `AgentSteps`, to one action per row; in connect four, it also
gets the action masks. It knows nothing else, not even its side. Players are the games' scripted players,
`RandomPlayer`, and trained policies as `headrace.stages.games.policy_player.PolicyPlayer`.

Every match has a separate instance, and only the first match of each instance counts. If the instances continued until
enough matches were over, short matches would count too often.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from headrace.queues.messages import ActionBatch, Array
from headrace.queues.specs import ActionSpec
from headrace.stages.environments.protocol import AgentSteps, StepResult
from headrace.stages.games.connect_four import ConnectFourGroup
from headrace.stages.games.pursuit import PursuitGroup
from headrace.stages.games.volley import VolleyGroup

Player = Callable[[tuple[Array, ...]], ActionBatch]
MaskedPlayer = Callable[[tuple[Array, ...], NDArray[np.bool_]], ActionBatch]


class Tally(NamedTuple):
    """Results of matches, from the first player's side."""

    wins: int
    draws: int
    losses: int

    @classmethod
    def of(cls, outcomes: NDArray[np.float32]) -> Tally:
        """Count outcomes [matches] of the first player: 1 for a win, 0.5 for a draw, 0 for a loss."""
        return cls(*(int((outcomes == outcome).sum()) for outcome in (1.0, 0.5, 0.0)))

    @property
    def win_rate(self) -> float:
        """Fraction of matches won."""
        return self.wins / sum(self)

    @property
    def score(self) -> float:
        """Wins plus half the draws, as a fraction of the matches."""
        return (self.wins + 0.5 * self.draws) / sum(self)


class RandomPlayer:
    """A player that chooses uniformly at random in every discrete branch."""

    def __init__(self, actions: ActionSpec, seed: int) -> None:
        self._branches = actions.discrete_branches
        self._random = np.random.default_rng(seed)

    def __call__(self, observations: tuple[Array, ...]) -> ActionBatch:
        """Return a random action for each row."""
        size = (len(observations[0]), len(self._branches))
        return _discrete(self._random.integers(0, self._branches, size=size, dtype=np.int32))


def play_volley(player_a: Player, player_b: Player, matches: int, seed: int, **options: int | float) -> Tally:
    """Let two players play Volley, with the sides swapped in half of the matches.

    Args:
        player_a: the player whose wins are counted; it acts for `matches` rows at a time.
        player_b: the opponent.
        matches: number of matches, at least 1; if odd, `player_a` is on the left in the extra match.
        seed: seed of all serves.
        options: the keyword arguments of `VolleyGroup`.
    """
    group = VolleyGroup(matches, **options)  # type: ignore[arg-type]  # checked there
    left, right = group.behavior_ids
    half = (matches + 1) // 2

    def act(result: StepResult) -> Mapping[str, ActionBatch]:
        seen = [_deciding(result.steps[side]) for side in (left, right)]
        a = player_a((np.concatenate([seen[0][:half], seen[1][half:]]),)).discrete
        b = player_b((np.concatenate([seen[1][:half], seen[0][half:]]),)).discrete
        return {
            left: _discrete(np.concatenate([a[:half], b[half:]])),
            right: _discrete(np.concatenate([b[:half], a[half:]])),
        }

    return _play(group, group.reset(seed), act, (np.arange(matches) >= half).astype(int))


def play_pursuit(pursuer: Player, evader: Player, matches: int, seed: int, **options: float) -> Tally:
    """Let pursuers and an evader play Pursuit; a match is won if the evader is caught.

    Args:
        pursuer: acts for both pursuers of each arena, `2 * matches` rows at a time.
        evader: acts for the evader of each arena.
        matches: number of matches, at least 1.
        seed: seed of all starting positions.
        options: the keyword arguments of `PursuitGroup`.
    """
    group = PursuitGroup(matches, **options)  # type: ignore[arg-type]  # checked there
    players = {group.pursuer_id: pursuer, group.evader_id: evader}

    def act(result: StepResult) -> Mapping[str, ActionBatch]:
        return {behavior_id: player((_deciding(result.steps[behavior_id]),)) for behavior_id, player in players.items()}

    return _play(group, group.reset(seed), act, np.zeros(matches, int))


def play_connect_four(player_a: MaskedPlayer, player_b: MaskedPlayer, matches: int) -> Tally:
    """Let two players play connect four; `player_a` begins every other match."""
    group = ConnectFourGroup(matches)

    def act(result: StepResult) -> Mapping[str, ActionBatch]:
        actions = {}
        for player, behavior_id in zip((player_a, player_b), group.behavior_ids, strict=True):
            steps = result.steps[behavior_id]
            if steps.ended < len(steps.agent_ids):
                assert steps.action_masks is not None
                actions[behavior_id] = player((_deciding(steps),), steps.action_masks)
        return actions

    return _play(group, group.reset(), act, np.zeros(matches, int))


def _play(
    group: VolleyGroup | PursuitGroup | ConnectFourGroup,
    result: StepResult,
    act: Callable[[StepResult], Mapping[str, ActionBatch]],
    teams: NDArray[np.int_],
) -> Tally:
    """Play until each instance has finished a match; `teams` [matches] is the team of the player whose wins count."""
    outcomes = np.full(group.num_envs, np.nan, dtype=np.float32)
    while np.isnan(outcomes).any():
        result = group.step(act(result))
        if result.games is not None:
            ended = result.games.env_ids
            found = result.games.outcomes[np.arange(len(ended)), teams[ended]]
            outcomes[ended] = np.where(np.isnan(outcomes[ended]), found, outcomes[ended])
    return Tally.of(outcomes)


def _deciding(steps: AgentSteps) -> Array:
    """Return the observations of the agents that decide."""
    return steps.observations[0][steps.ended :]


def _discrete(choices: NDArray[np.int32]) -> ActionBatch:
    return ActionBatch(np.zeros((len(choices), 0), dtype=np.float32), choices)
