"""Two conflicting tasks with the same spaces: CartPole-v1, and the same with its two pushes swapped."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

from headrace import ActingPolicy

LONGEST = 200
"""Number of steps at which an episode is cut, and so the highest return."""


class Carts(gymnasium.Wrapper[Any, Any, Any, Any]):
    """CartPole-v1 as task A or, if the environment parameter `swapped` is 1, as task B.

    A fifth number in the observation distinguishes the tasks.
    """

    def __init__(self) -> None:
        super().__init__(gymnasium.make("CartPole-v1", max_episode_steps=LONGEST, disable_env_checker=True))
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (5,), np.float32)
        self._swapped = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode of the task that the parameter selects."""
        self._swapped = bool((options or {}).get("swapped"))
        observation, info = self.env.reset(seed=seed)
        return with_cue(observation, self._swapped), info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Push the cart."""
        observation, reward, terminated, truncated, info = self.env.step(int(action) ^ self._swapped)
        return with_cue(observation, self._swapped), float(reward), terminated, truncated, info


def with_cue(observations: Any, swapped: bool) -> Any:
    """Append -1 for task A or 1 for task B to CartPole's observations [..., 4]; return [..., 5]."""
    cue = np.full((*observations.shape[:-1], 1), 1.0 if swapped else -1.0, np.float32)
    return np.concatenate([observations, cue], axis=-1)


def score(policy: ActingPolicy, swapped: bool, episodes: int = 50) -> float:
    """Return the mean return of deterministic episodes in a task, with the same starts each time."""
    envs = gymnasium.make_vec("CartPole-v1", num_envs=episodes)
    observations, _ = envs.reset(seed=10_000)
    playing, returns, random = np.ones(episodes, bool), np.zeros(episodes), np.random.default_rng(0)
    for _ in range(LONGEST):
        actions = policy.act((with_cue(observations, swapped),), None, random, deterministic=True).actions
        observations, rewards, terminated, truncated, _ = envs.step(actions.discrete[:, 0] ^ swapped)
        returns += rewards * playing
        playing &= ~(terminated | truncated)
    envs.close()
    return float(returns.mean())
