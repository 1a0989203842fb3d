"""Checks of the game results that an environment declares: wrong ones would spoil ratings for good."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.stages.environments.protocol import GameResults
from headrace.stages.errors import StageError

_ROUNDING = 1e-3
"""Allowed rounding error of an outcome."""
_DUELS = frozenset({(1.0, 0.0), (0.5, 0.5), (0.0, 1.0)})
_SHOWN = 8
_NONE = GameResults(np.zeros(0, np.int32), np.zeros((0, 0), np.float32))


def check_game_results(games: GameResults, num_envs: int, environment: str, teams: Callable[[], int]) -> GameResults:
    """Return the same results in the dtypes of `GameResults`, outcomes of duels without rounding errors.

    Args:
        games: the results that the environment declared.
        num_envs: number of its instances.
        environment: its name, for messages.
        teams: returns the number of team ids; called only to explain outcomes that are wrong.

    Raises:
        StageError: if they are not about instances, or not outcomes; see `GameResults`.
    """
    name = f"environment {environment}: its GameResults"
    env_ids = _array(games.env_ids, f"{name}.env_ids")
    outcomes = _array(games.outcomes, f"{name}.outcomes")
    if not env_ids.size and not outcomes.size:
        return _NONE
    if env_ids.ndim != 1 or outcomes.ndim != 2 or len(env_ids) != len(outcomes):
        raise StageError(
            f"{name}: env_ids have the shape {list(env_ids.shape)} and outcomes {list(outcomes.shape)}; expected "
            "[games] and [games, teams], a row for each game that has ended"
        )
    if _are_plain_duels(env_ids, outcomes, num_envs):
        return GameResults(env_ids, outcomes)
    return GameResults(_instances(env_ids, num_envs, name), _outcomes(outcomes, env_ids, name, teams))


def _are_plain_duels(env_ids: NDArray[Any], outcomes: NDArray[Any], num_envs: int) -> bool:
    """Return True for valid results of duels, which most environments give and need no conversion: the fast path."""
    if env_ids.dtype != np.int32 or outcomes.dtype != np.float32 or outcomes.shape[1] != 2:
        return False
    numbers = set(env_ids.tolist())
    in_range = len(numbers) == len(env_ids) and min(numbers) >= 0 and max(numbers) < num_envs
    return in_range and _DUELS.issuperset(map(tuple, outcomes.tolist()))


def _array(given: Any, what: str) -> NDArray[Any]:
    array = np.asarray(given)
    if array.dtype.kind not in "biuf":
        raise StageError(f"{what} are of the type {array.dtype}; expected numbers in an array")
    return array


def _instances(env_ids: NDArray[Any], num_envs: int, name: str) -> NDArray[np.int32]:
    if env_ids.dtype.kind not in "iu":
        raise StageError(f"{name}.env_ids are of the type {env_ids.dtype}; expected whole numbers, such as int32")
    strange = env_ids[(env_ids < 0) | (env_ids >= num_envs)]
    if len(strange):
        raise StageError(
            f"{name}.env_ids name {_listed(strange)}, but there are {num_envs} instances; expected numbers from 0 to "
            f"{num_envs - 1}"
        )
    numbers, times = np.unique(env_ids, return_counts=True)
    if len(numbers) < len(env_ids):
        raise StageError(
            f"{name}.env_ids name {_listed(numbers[times > 1])} more than once; expected one row per game, as an "
            "instance ends at most one at a tick"
        )
    return env_ids.astype(np.int32, copy=False)


def _outcomes(
    outcomes: NDArray[Any], env_ids: NDArray[Any], name: str, playing: Callable[[], int]
) -> NDArray[np.float32]:
    teams = outcomes.shape[1]
    with np.errstate(over="ignore", invalid="ignore"):  # of what is refused below
        values = outcomes.astype(np.float32, copy=False)
        right = np.isfinite(values).all(axis=1)
        if teams <= 2:
            halves = np.round(2 * values) / 2
            values = np.where(np.abs(values - halves) <= _ROUNDING, halves, values)
            right &= ((values >= 0) & (values <= 1)).all(axis=1)
        if teams == 2:
            right &= np.abs(values.sum(axis=1) - 1) <= _ROUNDING
    if not right.all():
        row = int(np.flatnonzero(~right)[0])
        expected = "finite numbers by team id, more for who did better"
        if playing() > max(teams, 2):
            expected = f"a column for each team id from 0 to {playing() - 1}: {expected}"
        elif teams <= 2:
            expected = "numbers from 0 to 1 that add up to 1, by team id: 1 won, 0.5 drawn, 0 lost"
        raise StageError(
            f"{name}.outcomes of instance {env_ids[row]}'s game are {_listed(outcomes[row])}; expected {expected}"
        )
    return values


def _listed(values: NDArray[Any]) -> str:
    shown = ", ".join(f"{value:.6g}" for value in values[:_SHOWN].tolist())
    return f"{shown}, …" if len(values) > _SHOWN else shown
