"""An environment factory, used by trainer.yaml in this folder."""

from __future__ import annotations

from typing import Any

import gymnasium


def long_pole(length: float = 1.0, max_steps: int = 500) -> gymnasium.Env[Any, Any]:
    """CartPole with a pole of another length: a single environment, of which the pipeline makes `num_envs`.

    A factory may also return a `gymnasium.vector.VectorEnv` (of `num_envs`, if it has that parameter) or an object with
    the interface of `headrace.EnvironmentGroup`.

    Args:
        length: half the pole's length, in metres; 0.5 in CartPole-v1.
        max_steps: number of steps after which an episode is truncated.
    """
    env = gymnasium.make("CartPole-v1", max_episode_steps=max_steps)
    cart_pole: Any = env.unwrapped
    cart_pole.length = length
    cart_pole.polemass_length = cart_pole.masspole * length
    return env
