"""The trial of a Gymnasium environment: what its `reset` and `step` return against its spaces, and Gymnasium's checker.

It tries one single environment, and makes and resets all of an actor's as the actor does. Of an environment that exists
only vectorised, the latter is all.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import gymnasium
import numpy as np
from gymnasium.utils.env_checker import check_env

from headrace.config import RunConfig
from headrace.stages.environments import factory
from headrace.stages.environments.gymnasium.making import wrappers_of
from headrace.stages.environments.trial import (
    STEPS,
    Observer,
    Remark,
    checker_remarks,
    each_once,
    flag_remarks,
    group_remarks,
    passed_on,
    reward_remarks,
    takes_seed,
    without_windows,
)
from headrace.stages.errors import StageError, describe_error

_FIVE = "expected five values: observation, reward, terminated, truncated, info"


def try_gymnasium(config: RunConfig) -> Iterator[Remark]:
    """Yield what is wrong with the environments of a configuration; ends after the first part with serious remarks."""
    request = without_windows(config)
    by_id = request.settings.id is not None
    for part in (group_remarks, _single) if by_id else (_single, group_remarks):
        if (yield from passed_on(part(request))):
            return


def _single(request: factory.EnvironmentRequest) -> Iterator[Remark]:
    try:
        found = _single_env(request)
    except StageError as error:
        yield Remark(str(error), key=error.key)
        return
    if found is None:
        return
    env, name = found
    try:
        remarks = list(each_once(_of_env(env, name)))
        yield from remarks
        _, info = ({}, {}) if remarks else env.reset(seed=0)
        if not remarks and "action_mask" not in info:  # of masks Gymnasium's checker knows nothing
            yield from checker_remarks(
                lambda: check_env(env.unwrapped, skip_render_check=True),
                "Gymnasium's own checker (gymnasium.utils.env_checker)",
                name,
            )
    finally:
        with suppress(Exception):
            env.close()


def _single_env(request: factory.EnvironmentRequest) -> tuple[Any, str] | None:
    """One environment, in the wrappers of the settings, and its name; None where there are no single ones."""
    settings = request.settings
    if settings.id is not None:
        name = f"Gymnasium environment {settings.id!r}"
        env_id = settings.id
        spec = gymnasium.registry.get(settings.id.rpartition(":")[2])
        options = dict(settings.options)
        if spec is None or spec.entry_point is None or options.pop("vectorization_mode", "sync") != "sync":
            return None
        env = factory.call(lambda: gymnasium.make(env_id, disable_env_checker=True, **options), name)
    else:
        name = f"environment factory {settings.factory!r}"
        env, _ = factory.call_factory(request, name)
        if not isinstance(env, gymnasium.Env):
            with suppress(Exception):
                env.close()
            return None  # the group says what it is
    wrap = wrappers_of(request, name)
    return (env if wrap is None else wrap(env)), name


def _of_env(env: Any, name: str) -> Iterator[Remark]:
    missing = [key for key in ("observation_space", "action_space") if getattr(env, key, None) is None]
    for key in missing:
        yield Remark(
            f"{name}: it has no {key}; set self.{key} in __init__ to one of gymnasium.spaces, such as Box or Discrete"
        )
    if missing:
        return
    if not takes_seed(env.unwrapped.reset):
        yield Remark(
            f"{name}: its reset{inspect.signature(env.unwrapped.reset)} takes no seed; write `def reset(self, *, "
            "seed=None, options=None)` and call super().reset(seed=seed)"
        )
        return
    observer = Observer(name)
    actions = copy.deepcopy(env.action_space)
    actions.seed(0)
    seed: int | None = 0
    over, steps = True, 0
    info: dict[str, Any] = {}
    while steps < STEPS:
        if over:
            remarks, info = _reset(env, name, observer, seed)
            seed, over = None, False
        else:
            remarks, info, over = _step(env, name, observer, _sample(actions, info.get("action_mask")))
            steps += 1
        if (yield from passed_on(remarks)):
            return


def _sample(actions: Any, mask: Any) -> Any:
    """Draw an action; a mask has an entry per choice, of all branches one after the other."""
    if mask is None:
        return actions.sample()
    mask = np.asarray(mask, np.int8).reshape(-1)
    if isinstance(actions, gymnasium.spaces.MultiDiscrete):
        return actions.sample(tuple(np.split(mask, np.cumsum(actions.nvec)[:-1])))
    return actions.sample(mask) if isinstance(actions, gymnasium.spaces.Discrete) else actions.sample()


def _reset(env: Any, name: str, observer: Observer, seed: int | None) -> tuple[list[Remark], dict[str, Any]]:
    """Reset; return remarks, and the info."""
    try:
        result = env.reset(seed=seed)
    except Exception as error:
        return [Remark(f"{name}: its reset() raised {describe_error(error)}; expected (observation, info)")], {}
    if not isinstance(result, tuple) or len(result) != 2 or not isinstance(result[1], dict):
        text = (
            f"{name}: its reset() returned {_described(result)}; expected two values, the observation and a dict of "
            "info: write `return observation, {}`"
        )
        return [Remark(text)], {}
    return list(observer.compare(env.observation_space, result[0], "reset")), result[1]


def _step(env: Any, name: str, observer: Observer, action: Any) -> tuple[list[Remark], dict[str, Any], bool]:
    """Step; return remarks, the info, and whether the episode is over."""
    try:
        result = env.step(action)
    except Exception as error:
        text = f"{name}: its step({action!r}) raised {describe_error(error)}; that action is of its action_space"
        return [Remark(text)], {}, True
    if not isinstance(result, tuple) or len(result) != 5:
        return [Remark(f"{name}: its step() returned {_described(result)}; {_FIVE}{_old_api(result)}")], {}, True
    observation, reward, terminated, truncated, info = result
    remarks = [
        *observer.compare(env.observation_space, observation, "step"),
        *reward_remarks(reward, name),
        *flag_remarks(terminated, "terminated", name),
        *flag_remarks(truncated, "truncated", name),
    ]
    if not isinstance(info, dict):
        text = f"{name}: step() returned {_described(info)} as info; expected a dict, {{}} where there is none"
        return [*remarks, Remark(text)], {}, True
    return (
        remarks,
        info,
        any(isinstance(flag, bool | np.bool_ | int) and bool(flag) for flag in (terminated, truncated)),
    )


def _old_api(result: Any) -> str:
    if not isinstance(result, tuple) or len(result) != 4:
        return ""
    return " (four are Gym's old API): split `done` into terminated, the task ended, and truncated, time was up"


def _described(result: Any) -> str:
    return f"{len(result)} values" if isinstance(result, tuple) else f"a {type(result).__name__}"
