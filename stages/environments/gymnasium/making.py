"""Makes a group of Gymnasium environments from the `environment` section.

For `--validate`, this module also yields what Gymnasium's environment checker finds, in addition to a run's own checks.
This module can be imported without gymnasium, because `--validate` usually uses it only to import what the section
names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from headrace.config import RunConfig
from headrace.stages.environments import factory
from headrace.stages.environments.env_lint import words_of
from headrace.stages.environments.factory import EnvironmentRequest, environment_name
from headrace.stages.environments.protocol import EnvironmentGroup
from headrace.stages.environments.spaces.masks import MASK
from headrace.stages.errors import LoadError, StageError, blaming, type_of
from headrace.stages.loading import import_module


def make_gymnasium_group(request: factory.EnvironmentRequest) -> EnvironmentGroup:
    """Make the group that the settings describe. Raises the same errors as `factory.make_group`.

    With environment parameters, single environments are preferred to a vectorised implementation, which starts episodes
    itself, without parameters.
    """
    from gymnasium import Env
    from gymnasium.vector import VectorEnv
    from gymnasium.wrappers import TimeLimit

    from headrace.stages.environments.gymnasium.group import GymnasiumGroup
    from headrace.stages.environments.gymnasium.singles import advice_for_class
    from headrace.stages.environments.gymnasium.vectorising import make_vector, vectorise

    def wrap(limit: int | None) -> Callable[[Any], Any] | None:
        chain = factory.chain_wrappers(
            settings, request.folder, name, lambda env: isinstance(env, Env), "a gymnasium.Env"
        )
        if limit is None:
            return chain
        return lambda env: TimeLimit(env if chain is None else chain(env), limit)

    settings = request.settings
    # A vectorised implementation has no single environments whose episodes could be limited one by one.
    singles = settings.options.get("vectorization_mode") != "vector_entry_point"
    if settings.id is not None:
        name = _name(settings.id)
        _import_registrar(settings.id, request.folder)
        singly = bool(request.config.environment_parameters)
        wrapped = wrap(settings.max_episode_steps if singles else None)
        envs = make_vector(settings.id, settings.num_envs, settings.options, name, wrapped, singly)
    else:
        name = factory.factory_name(settings.factory or "")
        env, make = factory.call_factory(request, name)
        if isinstance(env, EnvironmentGroup):
            return factory.check_own_group(env, settings, name)
        if not isinstance(env, Env | VectorEnv):
            raise LoadError(
                f"{name} returned {type_of(env)}; expected a gymnasium.Env, a gymnasium.vector.VectorEnv or an "
                f"EnvironmentGroup (num_envs, behavior_specs, reset, step, close){advice_for_class(env)}"
            )
        singles = not isinstance(env, VectorEnv)  # EnvPool's environments are instances of both
        envs = vectorise(env, make, settings.num_envs, name, wrap(settings.max_episode_steps if singles else None))
    group = GymnasiumGroup(
        envs, settings.behavior or "", name, settings.observations, settings.info_keys, request.exact, request.clips
    )
    group.limits_episodes = singles
    return group


def make_single(request: factory.EnvironmentRequest) -> tuple[Any, Callable[[], object]]:
    """Make a single environment from the settings, without a window.

    Raises the same errors as `factory.make_group`.

    Returns:
        the environment with its wrappers, or None if only a vectorised implementation exists; and a function that
        closes it.
    """
    settings = request.settings
    options = {key: value for key, value in settings.options.items() if (key, value) != ("render_mode", factory.HUMAN)}
    if settings.id is not None:
        options["vectorization_mode"] = "sync"
    settings = settings.model_copy(update={"num_envs": 1, "options": options})
    group = make_gymnasium_group(replace(request, config=request.config.model_copy(update={"environment": settings})))
    return getattr(group, "single", None), group.close


def named_in_section(config: RunConfig) -> Iterator[Callable[[], Any]]:
    """Yield functions that import the factory, the wrappers, and the module before the colon in an id."""
    yield from factory.named_in_section(config)
    if config.environment is not None and config.environment.id is not None:
        yield partial(_import_registrar, config.environment.id, config.source_folder)


def _import_registrar(env_id: str, folder: Path | None) -> None:
    """Import the module before the colon in an id; the module registers the environment."""
    module, _, _ = env_id.rpartition(":")
    if module:  # Gymnasium imports it too, but does not search the YAML's folder
        with blaming("environment", "id"):
            import_module(module, folder, _name(env_id))


def _name(env_id: str) -> str:
    return f"Gymnasium environment {env_id!r}"


_CHECKER = "Gymnasium's own checker (gymnasium.utils.env_checker)"


def of_gymnasium(request: EnvironmentRequest) -> Iterator[str]:
    """Yield findings about a single environment without wrappers, or nothing if all environments are vectorised."""
    from gymnasium import Env

    try:
        env, close = make_single(request)
    except StageError:  # the vectorised implementation takes options that single ones lack
        return
    single = getattr(env, "unwrapped", None)
    if isinstance(single, Env):  # a wrapper may translate a different interface
        yield from words_of(partial(_check, single), _CHECKER, environment_name(request.settings))
    with suppress(Exception):
        close()


def _check(env: Any) -> None:
    """Run the checker, unless there are action masks, which its random actions would ignore."""
    from gymnasium.utils.env_checker import check_env

    if not any(isinstance(each, Mapping) and MASK in each for each in env.reset(seed=0)):
        check_env(env, skip_render_check=True)
