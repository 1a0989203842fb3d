"""The reward of a goal environment as a function of goals, for hindsight experience replay.

Goal environments have observations `observation`, `achieved_goal` and `desired_goal`, and a method
`compute_reward(achieved, desired, info)` (Gymnasium-Robotics' `GoalEnv`). This module can be imported without
gymnasium.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.queues.messages import Array
from headrace.stages.environments import factory
from headrace.stages.environments.given import given_object
from headrace.stages.environments.gymnasium.making import make_single
from headrace.stages.environments.protocol import ACHIEVED_GOAL, DESIRED_GOAL
from headrace.stages.errors import BrokenEnvironmentError, NotFiniteError, StageError, describe_fault, type_of

_CONVENTION = (
    "hindsight calls compute_reward(achieved_goal, desired_goal, info) once for n rows, with two arrays [n, …] and a "
    "list of n empty infos, and expects n numbers, as Stable-Baselines3's HerReplayBuffer does"
)


# The learner has its own instance: querying the actors would cost a round trip for each update (docs/decisions/041).
class GymnasiumGoalRewards:
    """A `GoalRewards` for Gymnasium environments.

    `open` makes an instance of the environment with an actor's settings; the instance is never stepped. An object that
    was passed to `run()` is used directly, in its own process.

    Args:
        request: names the environment.
    """

    def __init__(self, request: factory.EnvironmentRequest) -> None:
        self._request = request
        self._close: Callable[[], object] = lambda: None
        self._compute: Callable[[Array, Array, Any], Any] | None = None

    def open(self, size: int) -> None:
        """Make the instance, and compute rewards for a few goals from its spaces; see `GoalRewards`."""
        settings = self._request.settings
        self._name = factory.environment_name(settings).rstrip(",")
        env, seed = given_object(settings.factory), 0
        if env is None:
            env, self._close = make_single(self._request)
            if env is None:
                raise StageError(
                    f"{self._name}: hindsight needs a single environment to compute rewards, but all environments are "
                    "vectorised; use single environments, or leave hindsight out"
                )
            env.reset(seed=seed)
        self._spaces = [_goal_space(env, key, size, self._name) for key in (ACHIEVED_GOAL, DESIRED_GOAL)]
        try:
            self._compute = getattr(env, "get_wrapper_attr", lambda name: getattr(env, name))("compute_reward")
        except AttributeError:
            raise StageError(
                f"{self._name}: hindsight recomputes rewards for other goals, but the environment has no method "
                "compute_reward(achieved_goal, desired_goal, info); add it, or leave hindsight out"
            ) from None
        spaces = copy.deepcopy(self._spaces)
        for space in spaces:
            space.seed(seed)
        self(*(np.stack([space.sample().ravel() for _ in range(size + 2)]) for space in spaces))

    def __call__(self, achieved: Array, desired: Array) -> NDArray[np.float32]:
        """Compute the rewards [n] of n steps in one call; see `GoalRewards`."""
        assert self._compute is not None, "it is open"
        count = len(achieved)
        goals = [
            rows.astype(space.dtype).reshape(count, *space.shape)
            for rows, space in zip((achieved, desired), self._spaces, strict=True)
        ]
        try:
            raw = self._compute(goals[0], goals[1], [{} for _ in range(count)])
        except Exception as error:
            raise BrokenEnvironmentError(
                f"{self._name}: its compute_reward() raised {describe_fault(error)} on {count} rows; {_CONVENTION}"
            ) from error
        rewards = np.asarray(raw)
        if rewards.dtype.kind not in "biuf" or rewards.shape not in ((count,), (count, 1)):
            got = f"an array {rewards.dtype} {list(rewards.shape)}" if isinstance(raw, np.ndarray) else type_of(raw)
            raise BrokenEnvironmentError(
                f"{self._name}: its compute_reward() returned {got} for {count} rows; {_CONVENTION}"
            )
        rewards = rewards.reshape(count).astype(np.float32)
        if not np.isfinite(rewards).all():
            row = int(np.flatnonzero(~np.isfinite(rewards))[0])
            raise NotFiniteError(
                f"{self._name}: its compute_reward() returned {rewards[row]} for the achieved goal "
                f"{goals[0][row].tolist()} and the desired goal {goals[1][row].tolist()}"
            )
        return rewards

    def close(self) -> None:
        """Close the instance, if one was made."""
        self._close()


def _goal_space(env: Any, key: str, size: int, name: str) -> Any:
    """Return a goal's space, which must be an array of `size` numbers."""
    from gymnasium.spaces import Box, MultiBinary

    space = (getattr(env.observation_space, "spaces", None) or {}).get(key)
    if isinstance(space, Box | MultiBinary) and prod(space.shape) == size:
        return space
    raise StageError(
        f"{name}: its observation '{key}' has the space {space}; hindsight expects a Box or MultiBinary of {size} "
        "numbers; change it with a wrapper, or leave hindsight out"
    )
