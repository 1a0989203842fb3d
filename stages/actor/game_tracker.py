"""Tracks games, and reports each game's result once, with the generation of the mapping that played the game.

An environment that knows its games declares their results (`GameResults`). Otherwise games are inferred from the
learning team's episodes, as in ML-Agents, and the sign of the last reward is the result. If no team learns in turns, a
game is over when the episodes of all agents in its instance have ended. That game has a result only if brains that do
not learn play each other, and the result is that of the team with the lowest id.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.queues.columns import GAME_COLUMNS, GAME_DRAWS, GAME_PLAYERS, GAME_RETURNS
from headrace.queues.messages import Columns
from headrace.queues.specs import behavior_team
from headrace.stages.actor.policy_mapping import PolicyMapping, PolicyMappings
from headrace.stages.environments.protocol import GameResults, StepResult
from headrace.stages.errors import StageError

_MANY_TEAMS = "game_outcomes"
"""Name of the additional column [G, T] for games of more than two teams: each team's outcome, in the order of team
ids."""
_ROUNDING = 1e-3
"""Allowed rounding error of an outcome."""
_NONE = GameResults(np.zeros(0, np.int32), np.zeros((0, 0), np.float32))


@dataclass(frozen=True, slots=True)
class _EndedGame:
    mapping: PolicyMapping
    team: int
    """The team that `outcome` belongs to: the learning team or, if there is none, the team with the lowest id."""
    outcome: float
    outcomes: Any = None
    returns: Any = None
    """[T] each team's return, in a league; otherwise None."""


@dataclass(frozen=True, slots=True)
class _Ending:
    """The end of an agent's episode."""

    behavior_id: str
    agent_id: int
    reward: float
    terminated: bool


class GameTracker:
    """Tracks the games of an actor's instances. When a game ends, the next one starts under the current mapping.

    Args:
        mappings: the mappings of the running games.
    """

    def __init__(self, mappings: PolicyMappings) -> None:
        self._mappings = mappings
        self._declares = False
        self._playing: dict[str, dict[int, set[int]]] = {}
        """Per behaviour id and instance: ids of the agents that have decided and whose episodes continue."""
        self._unreported: list[_EndedGame] = []
        self._returns: _TeamReturns | None = None

    def begin(self, result: StepResult) -> None:
        """Start tracking from the result of a reset of all instances."""
        self._declares |= result.games is not None
        self._playing = {}
        self._returns = _TeamReturns(len(self._mappings.games)) if self._mappings.names_players else None
        self._remember(result)

    def forget(self, env_ids: NDArray[np.int32]) -> None:
        """Forget the games of restarted instances; these games have no result."""
        for decided in self._playing.values():
            for env_id in env_ids.tolist():
                decided.pop(env_id, None)
        for env_id in env_ids.tolist():
            self._take_returns(env_id)

    def finish(self, result: StepResult, environment: str) -> dict[str, Columns]:
        """Return columns [G] for the games that ended in a tick, keyed by the behaviour id whose batch carries them.

        Args:
            result: the tick's result.
            environment: the environment's name, used in messages.

        Raises:
            StageError: if the environment declares invalid results, or results of too few teams.
        """
        self._declares |= result.games is not None
        if self._returns is not None:
            self._returns.add(result)
        if result.games is not None:
            games = check_game_results(result.games, len(self._mappings.games), environment, self._teams())
            self._unreported += self._declared(games, environment)
            self._mappings.restart_games(games.env_ids)
        elif not self._declares:
            self._unreported += self._inferred(result)
            self._remember(result)
        return self._report(result) if self._unreported else {}

    def _declared(self, games: GameResults, environment: str) -> Iterator[_EndedGame]:
        teams = games.outcomes.shape[1]
        for env_id, outcomes in zip(games.env_ids, games.outcomes, strict=True):
            mapping, returns = self._mappings.games[env_id], self._take_returns(env_id)
            playing = set(map(behavior_team, self._players(mapping)))
            team = self._rated_team(mapping, playing)
            if team is None:
                continue
            highest = max(playing, default=0)
            if highest >= teams:
                raise StageError(
                    f"environment {environment}: its GameResults.outcomes have columns for {teams} "
                    f"team{'s' * (teams != 1)}, but team {highest} plays; add a column for each team id from 0 to "
                    f"{highest}"
                )
            if teams > 2:  # outcomes only rank the teams; wins and losses follow from the ranks
                others = outcomes[sorted(playing - {team})]  # a draw with one of them counts as half a win
                won = float((np.sign(outcomes[team] - others) + 1).mean() / 2) if len(others) else 0.5
                yield _EndedGame(mapping, team, won, outcomes.copy(), returns)
            else:
                yield _EndedGame(mapping, team, float(outcomes[team]), returns=returns)

    def _inferred(self, result: StepResult) -> list[_EndedGame]:
        """Infer which games have ended.

        A game ends when no agent of the learning team still plays, or when one of these agents begins a new episode.
        """
        endings: dict[int, list[_Ending]] = {}
        for behavior_id, steps in result.steps.items():
            if steps.ended and self._mappings.counts_games(behavior_id):
                rewards = steps.rewards if steps.group_rewards is None else steps.rewards + steps.group_rewards
                for row in range(steps.ended):
                    agent_id, terminated = int(steps.agent_ids[row]), bool(steps.terminated[row])
                    ending = _Ending(behavior_id, agent_id, float(rewards[row]), terminated)
                    endings.setdefault(int(steps.env_ids[row]), []).append(ending)
        if not endings:
            return []
        ended_games, over = [], []
        for env_id, ended in endings.items():
            mapping = self._mappings.games[env_id]
            learns = mapping.learning_team
            mine = [ending for ending in ended if learns in (None, behavior_team(ending.behavior_id))]
            before, now = self._learners_of(mapping, env_id, result)
            gone = {ending.agent_id for ending in mine}
            others_play_on = (before & now) - gone if mine else before | now
            # Without turns, the players may change with the game, but never in the middle of an agent's episode.
            new_episodes = (now - before) | (now & gone) if mine and learns is not None else set()
            if others_play_on and not new_episodes:
                continue
            over.append(env_id)
            returns = self._take_returns(env_id)
            team = self._rated_team(mapping, set(map(behavior_team, self._players(mapping))))
            rated = [ending for ending in mine if behavior_team(ending.behavior_id) == team]
            first = min(rated, key=lambda ending: ending.agent_id, default=None)
            if team is not None and first is not None and first.terminated:
                ended_games.append(_EndedGame(mapping, team, float(np.sign(first.reward) + 1) / 2, returns=returns))
        self._mappings.restart_games(np.array(over, np.int32))
        return ended_games

    def _take_returns(self, env_id: int) -> NDArray[np.float32] | None:
        return None if self._returns is None else self._returns.take(env_id)

    def _learners_of(self, mapping: PolicyMapping, env_id: int, result: StepResult) -> tuple[set[int], set[int]]:
        """Return the learning team's agents that played in an instance before the tick, and those still playing."""
        before: set[int] = set()
        now: set[int] = set()
        for behavior_id in self._players(mapping):
            if mapping.learning_team in (None, behavior_team(behavior_id)):
                playing = self._playing.get(behavior_id, {}).get(env_id, set())
                before |= playing
                now |= playing
                steps = result.steps.get(behavior_id)
                if steps is not None:
                    deciding = slice(steps.ended, None)
                    now.difference_update(steps.agent_ids[: steps.ended].tolist())
                    now.update(steps.agent_ids[deciding][steps.env_ids[deciding] == env_id].tolist())
        return before, now

    def _remember(self, result: StepResult) -> None:
        """Record the agents whose episodes continue. Not every agent decides at each tick: its action may be held."""
        for behavior_id, steps in result.steps.items():
            if len(steps.agent_ids) and self._mappings.counts_games(behavior_id):
                playing = self._playing.setdefault(behavior_id, {})
                rows = zip(steps.agent_ids.tolist(), steps.env_ids.tolist(), strict=True)
                for row, (agent_id, env_id) in enumerate(rows):
                    agents = playing.setdefault(env_id, set())
                    (agents.discard if row < steps.ended else agents.add)(agent_id)

    def _report(self, result: StepResult) -> dict[str, Columns]:
        """Convert games to columns. If no batch of this tick can carry a game, the game waits for a later tick."""
        may_carry = (i for i, steps in result.steps.items() if len(steps.agent_ids) and self._mappings.emits(i))
        carriers = [i for i in may_carry if self._mappings.counts_games(i)]
        if not carriers:
            return {}
        games, self._unreported = self._unreported, []
        by_carrier: dict[str, list[_EndedGame]] = {}
        for game in games:
            mine = [i for i in carriers if behavior_team(i) == game.team]
            by_carrier.setdefault((mine or carriers)[0], []).append(game)
        teams = self._teams() if self._mappings.mixes_brains else 0
        return {behavior_id: _columns(carried, teams) for behavior_id, carried in by_carrier.items()}

    def _rated_team(self, mapping: PolicyMapping, playing: Collection[int]) -> int | None:
        """Return the team whose result measures a player's strength; None if no team's result does."""
        if mapping.learning_team is not None:
            return mapping.learning_team
        return min(playing) if self._mappings.rates_brains and len(playing) > 1 else None

    def _teams(self) -> int:
        """Return the number of team ids under the current mapping, including unused ids in between."""
        return 1 + max(map(behavior_team, self._players(self._mappings.current)), default=0)

    def _players(self, mapping: PolicyMapping) -> Iterator[str]:
        return (behavior_id for behavior_id in mapping.players if self._mappings.counts_games(behavior_id))


class _TeamReturns:
    """Computes each team's undiscounted return in running games: the mean over its agents whose episodes have ended.

    Args:
        num_envs: number of instances.
    """

    def __init__(self, num_envs: int) -> None:
        self._sums = np.zeros((0, num_envs))
        self._ended = np.zeros((0, num_envs))

    def add(self, result: StepResult) -> None:
        """Add a tick's rewards."""
        for behavior_id, steps in result.steps.items():
            team, (teams, instances) = behavior_team(behavior_id), self._sums.shape
            if team >= teams:
                more = ((0, team + 1 - teams), (0, 0))
                self._sums, self._ended = np.pad(self._sums, more), np.pad(self._ended, more)
            rewards = steps.rewards if steps.undiscounted is None else steps.undiscounted.sum(axis=1)
            if steps.undiscounted is None and steps.group_rewards is not None:
                rewards = rewards + steps.group_rewards
            self._sums[team] += np.bincount(steps.env_ids, rewards, instances)
            if steps.ended:
                self._ended[team] += np.bincount(steps.env_ids[: steps.ended], minlength=instances)

    def take(self, env_id: int) -> NDArray[np.float32]:
        """Return the teams' returns [T] in an instance's game, and reset them."""
        returns = self._sums[:, env_id] / np.maximum(1, self._ended[:, env_id])
        self._sums[:, env_id] = self._ended[:, env_id] = 0
        return returns.astype(np.float32)


def _columns(games: list[_EndedGame], drawn_teams: int) -> Columns:
    rows = [(g.mapping.generation, g.team, g.mapping.opponent, g.outcome) for g in games]
    columns = {column.name: np.array([row[i] for row in rows], column.dtype) for i, column in enumerate(GAME_COLUMNS)}
    if games[0].outcomes is not None:
        columns[_MANY_TEAMS] = np.array([game.outcomes for game in games], np.float32)
    if games[0].mapping.codes:
        columns[GAME_PLAYERS] = np.array([game.mapping.codes for game in games], np.int32)
        columns[GAME_RETURNS] = np.array([game.returns[: len(game.mapping.codes)] for game in games], np.float32)
    if drawn_teams:
        draws = [[game.mapping.draws.get(team, -1.0) for team in range(drawn_teams)] for game in games]
        columns[GAME_DRAWS] = np.array(draws, np.float32)
    return columns


def check_game_results(games: GameResults, num_envs: int, environment: str, teams: int) -> GameResults:
    """Check the results that an environment declares, because wrong results would corrupt ratings permanently.

    Args:
        games: the results that the environment declared.
        num_envs: number of instances.
        environment: the environment's name, used in messages.
        teams: number of team ids, used in messages.

    Returns:
        The results in the dtypes of `GameResults`, without rounding errors if there are at most two teams.

    Raises:
        StageError: if a row has an invalid instance or outcome; see `GameResults`.
    """
    env_ids, outcomes = np.asarray(games.env_ids), np.asarray(games.outcomes, np.float64)
    if not env_ids.size and not outcomes.size:
        return _NONE
    name = f"environment {environment}: its GameResults"
    if env_ids.ndim != 1 or outcomes.ndim != 2 or len(env_ids) != len(outcomes):
        raise StageError(
            f"{name}: env_ids has shape {list(env_ids.shape)} and outcomes {list(outcomes.shape)}; expected "
            "[games] and [games, teams], one row per finished game"
        )
    if len({*range(num_envs)}.intersection(env_ids.tolist())) < len(env_ids):
        raise StageError(
            f"{name}.env_ids is {env_ids.tolist()}; expected different numbers from 0 to {num_envs - 1}, one row per "
            "game, because an instance ends at most one game per tick"
        )
    duels, right = outcomes.shape[1] <= 2, np.isfinite(outcomes).all(axis=1)
    if duels:
        halves = np.round(2 * outcomes) / 2
        outcomes = np.where(np.abs(outcomes - halves) <= _ROUNDING, halves, outcomes)
        right &= ((outcomes >= 0) & (outcomes <= 1)).all(axis=1)
        right &= (outcomes.shape[1] < 2) | (np.abs(outcomes.sum(axis=1) - 1) <= _ROUNDING)
    if not right.all():
        row = int(right.argmin())
        expected = (
            "numbers from 0 to 1 that add up to 1: 1 for a win, 0.5 for a draw, 0 for a loss"
            if duels and teams <= 2
            else "finite numbers, higher for the team that did better"
        )
        raise StageError(
            f"{name}.outcomes of instance {env_ids[row]}'s game are {outcomes[row].tolist()}; expected, for each team "
            f"id from 0 to {max(teams, outcomes.shape[1]) - 1}, {expected}"
        )
    return GameResults(env_ids.astype(np.int32), outcomes.astype(np.float32))
