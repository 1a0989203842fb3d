"""A single Gymnasium environment and its wrappers: made fit for the group, and asked who returned what does not fit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import gymnasium
from gymnasium.vector import VectorEnv

from headrace.stages.environments.checks import (
    described,
    flag_problem,
    info_problem,
    observation_problem,
    reward_problem,
    space_problem,
)
from headrace.stages.environments.gymnasium.old_gym import OLD_STEP
from headrace.stages.environments.resetting import accept_any_reset
from headrace.stages.errors import StageError

AnyEnv = gymnasium.Env[Any, Any]

_SURPRISES = (AttributeError, LookupError, TypeError, ValueError)
"""What unpacking or using a result of another type raises."""


def prepared(env: AnyEnv, name: str) -> AnyEnv:
    """Return an environment with spaces, metadata, and resets that take a seed and options.

    Raises:
        StageError: if it has no spaces, or is a vector environment.
    """
    if isinstance(env.unwrapped, VectorEnv):
        raise StageError(
            f"{name}: making one of it gave a vector environment ({type(env.unwrapped).__name__}); expected single "
            "environments, or a factory that returns it, with an argument num_envs"
        )
    for which in ("observation_space", "action_space"):
        if problem := space_problem(getattr(env, which, None), which):
            raise StageError(f"{name}: {problem}")
    if env.metadata is None:
        env.metadata = {}
    accept_any_reset([*layers(env)], name, gymnasium.Env.reset)
    return env


def layers(env: Any) -> Iterator[Any]:
    """The environment and its wrappers, the outermost first."""
    while isinstance(env, gymnasium.Wrapper):
        yield env
        env = env.env
    yield env


def culprit(env: AnyEnv, call: str, arguments: Mapping[str, Any]) -> tuple[Any, str] | None:
    """Call each layer, from the inside, and return the first whose result does not fit, and why; None for none."""
    for layer in reversed([*layers(env)]):
        try:
            result = layer.reset(**arguments) if call == "reset" else layer.step(layer.action_space.sample())
            problem = result_problem(layer, call, result)
        except Exception:  # it fails in another way than before
            return None
        if problem:
            return layer, problem
    return None


def result_problem(layer: Any, call: str, result: Any) -> str | None:
    """Say what is wrong with the result of a call of an environment or wrapper; None for nothing."""
    count = 2 if call == "reset" else 5
    if not isinstance(result, tuple) or len(result) != count:
        if call == "reset":
            return (
                f"its reset() returned {described(result)}; expected two values, the observation and a dict of info: "
                "write `return observation, {}`"
            )
        old = OLD_STEP if isinstance(result, tuple) and len(result) == 4 else ""
        return (
            f"its step() returned {described(result)}; expected five values: observation, reward, terminated, "
            f"truncated, info{old}"
        )
    problem = info_problem(result[-1], f"{call}()")
    problem = problem or observation_problem(layer.observation_space, result[0], f"{call}()")
    if problem or call == "reset":
        return problem
    _, reward, terminated, truncated, _ = result
    return reward_problem(reward) or flag_problem(terminated, "terminated") or flag_problem(truncated, "truncated")


def raised_by_wrapper(error: Exception) -> bool:
    """Return True if a wrapper raised the error itself, as it could not use what it wraps returned."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    surprised = isinstance(error, _SURPRISES) and trace is not None
    return surprised and isinstance(trace.tb_frame.f_locals.get("self"), gymnasium.Wrapper)  # type: ignore[union-attr]
