"""Prepares a single Gymnasium environment for the group, and finds the wrapper that is at fault in an error."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NoReturn

import gymnasium
from gymnasium.vector import VectorEnv

from headrace.stages.environments.checks import (
    described,
    flag_problem,
    info_problem,
    observation_problem,
    raise_broken,
    reward_problem,
    space_problem,
)
from headrace.stages.environments.gymnasium.old_gym import OLD_STEP, conversion
from headrace.stages.environments.resetting import accept_any_reset
from headrace.stages.errors import BrokenEnvironmentError, StageError

AnyEnv = gymnasium.Env[Any, Any]

RAISED: Any = object()
"""Stands for the result of a call that raised an error."""
_SURPRISES = (AttributeError, LookupError, TypeError, ValueError)
"""Errors from unpacking or using a result of the wrong type."""


def prepared(env: AnyEnv, name: str) -> AnyEnv:
    """Return an environment with valid spaces, metadata, and resets that take a seed and options.

    Raises:
        StageError: if the environment has no spaces, or is a vector environment.
    """
    if isinstance(env.unwrapped, VectorEnv):
        raise StageError(
            f"{name}: creating one instance returned a vector environment ({type(env.unwrapped).__name__}); expected a "
            "single environment, or a factory with an argument num_envs that returns the vector environment"
        )
    for which in ("observation_space", "action_space"):
        if problem := space_problem(getattr(env, which, None), which):
            raise StageError(f"{name}: {problem}")
    if env.metadata is None:
        env.metadata = {}
    accept_any_reset([*layers(env)], name, gymnasium.Env.reset)
    return env


def layers(env: Any) -> Iterator[Any]:
    """Yield the environment and its wrappers, outermost first."""
    while isinstance(env, gymnasium.Wrapper):
        yield env
        env = env.env
    yield env


def itself(env: AnyEnv) -> AnyEnv:
    """Return the environment unchanged."""
    return env


class CheckedEnv(gymnasium.Wrapper[Any, Any, Any, Any]):
    """A wrapper that checks an environment's return values, for environments in separate processes.

    Args:
        env: the environment.
        name: the environment's name, used in messages.
    """

    def __init__(self, env: AnyEnv, name: str) -> None:
        super().__init__(prepared(env, name))
        self._name = name

    def reset(self, **arguments: Any) -> Any:
        """Reset the environment. Raises a `BrokenEnvironmentError` if the call fails or returns an invalid value."""
        return self._checked("reset", partial(self.env.reset, **arguments), arguments)

    def step(self, action: Any) -> Any:
        """Step the environment. Raises the same errors as `reset`."""
        return self._checked("step", partial(self.env.step, action), {})

    def _checked(self, call: str, method: Callable[[], Any], arguments: Mapping[str, Any]) -> Any:
        result = RAISED
        try:
            result = method()
            if result_problem(self.env, call, result):
                raise ValueError("the number of returned values is wrong")
        except Exception as error:
            blame(self.env, self._name, call, result, error, arguments)
        return result


def blame(env: AnyEnv, who: str, call: str, result: Any, error: Exception, arguments: Mapping[str, Any]) -> NoReturn:
    """Raise the error that describes a failed call and the faulty wrapper. Reraise Headrace's own errors unchanged.

    Args:
        env: the environment with its wrappers.
        who: the beginning of the message.
        call: `reset` or `step`.
        result: the call's result; `RAISED` if the call raised an error.
        error: the error from the call, or from using its result.
        arguments: the arguments of a reset.
    """
    if isinstance(error, StageError):
        raise error
    found = None
    if isinstance(env, gymnasium.Wrapper) and (result is not RAISED or raised_by_wrapper(error)):
        found = culprit(env, call, arguments)
    if found is None and result is not RAISED and (problem := result_problem(env, call, result)):
        found = env.unwrapped, problem
    if found is None:
        raise_broken(error, who, call)
    raise BrokenEnvironmentError(f"{who}{wrapper_name(found[0])}: {found[1]}") from error


def wrapper_name(layer: Any) -> str:
    """Return the suffix that adds a faulty wrapper to an environment's name; empty for the environment itself."""
    return f", wrapper {type(layer).__name__}" if isinstance(layer, gymnasium.Wrapper) else ""


def culprit(env: AnyEnv, call: str, arguments: Mapping[str, Any]) -> tuple[Any, str] | None:
    """Call each layer, innermost first. Return the first faulty layer and what is wrong, or None if none is faulty."""
    for layer in reversed([*layers(env)]):
        try:
            result = layer.reset(**arguments) if call == "reset" else layer.step(layer.action_space.sample())
            problem = result_problem(layer, call, result)
        except Exception:  # this failure differs from the first
            return None
        if problem:
            return layer, problem
    return None


def result_problem(layer: Any, call: str, result: Any) -> str | None:
    """Return what is wrong with the result of a call to an environment or wrapper; None if it is valid."""
    if call == "reset" and (not isinstance(result, tuple) or len(result) != 2):
        old = "" if isinstance(result, tuple) or result is None else f"; {conversion()}"
        return (
            f"its reset() returned {described(result)}; expected two values, an observation and an info dict: write "
            f"`return observation, {{}}`{old}"
        )
    if call == "step" and (not isinstance(result, tuple) or len(result) != 5):
        old = f" ({OLD_STEP}; {conversion()})" if isinstance(result, tuple) and len(result) == 4 else ""
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
    """Return True if a wrapper raised the error itself, because it could not use its environment's result."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    surprised = isinstance(error, _SURPRISES) and trace is not None
    return surprised and isinstance(trace.tb_frame.f_locals.get("self"), gymnasium.Wrapper)  # type: ignore[union-attr]
