"""What Gymnasium's own checker says of an environment, beside what a run checks itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from gymnasium import Env
from gymnasium.utils.env_checker import check_env

from headrace.stages.environments.advice import words_of
from headrace.stages.environments.factory import EnvironmentRequest
from headrace.stages.environments.gymnasium.group import GymnasiumGroup
from headrace.stages.environments.gymnasium.making import make_gymnasium_group
from headrace.stages.environments.spaces.masks import MASK
from headrace.stages.errors import StageError

_CHECKER = "Gymnasium's own checker (gymnasium.utils.env_checker)"


def of_gymnasium(request: EnvironmentRequest) -> Iterator[str]:
    """Yield what it says of a single environment without wrappers; nothing where there are only vectorised ones."""
    settings = request.settings
    if settings.id is not None:
        options = {**settings.options, "vectorization_mode": "sync"}
        settings = settings.model_copy(update={"num_envs": 1, "options": options})
    try:
        group = make_gymnasium_group(
            replace(request, config=request.config.model_copy(update={"environment": settings}))
        )
    except StageError:  # the vectorised implementation that the run has made takes options that single ones lack
        return
    single = group.single if isinstance(group, GymnasiumGroup) else None
    if isinstance(single, Env):  # a wrapper may translate what has another interface
        name = f"Gymnasium environment {settings.id!r}" if settings.id else f"environment factory {settings.factory!r}"
        yield from words_of(partial(_check, single), _CHECKER, name)
    with suppress(Exception):
        group.close()


def _check(env: Env[Any, Any]) -> None:
    """Run the checker but where there are masks, which it does not keep, as it acts at random."""
    if not any(isinstance(each, Mapping) and MASK in each for each in env.reset(seed=0)):
        check_env(env, skip_render_check=True)
