"""Yields what Gymnasium's environment checker finds, in addition to a run's own checks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from gymnasium import Env
from gymnasium.utils.env_checker import check_env

from headrace.stages.environments.env_lint import words_of
from headrace.stages.environments.factory import EnvironmentRequest, environment_name
from headrace.stages.environments.gymnasium.making import make_single
from headrace.stages.environments.spaces.masks import MASK
from headrace.stages.errors import StageError

_CHECKER = "Gymnasium's own checker (gymnasium.utils.env_checker)"


def of_gymnasium(request: EnvironmentRequest) -> Iterator[str]:
    """Yield findings about a single environment without wrappers, or nothing if all environments are vectorised."""
    try:
        env, close = make_single(request)
    except StageError:  # the vectorised implementation takes options that single ones lack
        return
    single = getattr(env, "unwrapped", None)
    if isinstance(single, Env):  # a wrapper may translate a different interface
        yield from words_of(partial(_check, single), _CHECKER, environment_name(request.settings))
    with suppress(Exception):
        close()


def _check(env: Env[Any, Any]) -> None:
    """Run the checker, unless there are action masks, which its random actions would ignore."""
    if not any(isinstance(each, Mapping) and MASK in each for each in env.reset(seed=0)):
        check_env(env, skip_render_check=True)
