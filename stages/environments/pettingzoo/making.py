"""Makes the instances of a PettingZoo environment, from `environment.id` or a factory's result.

An id is a module with functions `parallel_env` and `env` (`mpe2.simple_tag_v3`) or, with a slash, a name in the
registry of PettingZoo 1.27 and later (`classic/connect_four-v3`).

For `--validate`, this module also yields what PettingZoo's environment tests find, in addition to a run's own checks.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Literal

from headrace.config.errors import suggest
from headrace.stages.environments import factory
from headrace.stages.environments.factory import EnvironmentRequest, words_of
from headrace.stages.environments.pettingzoo.group import PettingZooGroup
from headrace.stages.environments.pettingzoo.instances import Instance, LimitedInstance, api_of, instance_of
from headrace.stages.environments.protocol import EnvironmentGroup
from headrace.stages.environments.spaces.masks import MASK
from headrace.stages.errors import LoadError, StageError, blaming, type_of
from headrace.stages.loading import import_module

Api = Literal["auto", "parallel", "aec"]
Make = Callable[..., Any]

_FUNCTIONS: Mapping[str, str] = {"parallel": "parallel_env", "aec": "env"}
_OURS = ("pettingzoo", "mpe2")
"""Packages in the extra `headrace[pettingzoo]`."""


def make_pettingzoo_group(request: factory.EnvironmentRequest) -> EnvironmentGroup:
    """Make the group that the settings describe. Raises the same errors as `factory.make_group`."""
    settings = request.settings
    env, make, name = first_environment(request)
    if settings.id is None and isinstance(env, EnvironmentGroup):
        return factory.check_own_group(env, settings, name)
    limit = settings.max_episode_steps
    wrap = factory.chain_wrappers(
        settings, request.folder, name, lambda env: api_of(env) is not None, "a PettingZoo environment"
    )
    worn = f", in {', '.join(wrapper.use for wrapper in settings.wrappers)}" if settings.wrappers else ""
    return PettingZooGroup(
        [
            instance if limit is None else LimitedInstance(instance, limit)
            for instance in make_instances(env, make, settings.num_envs, settings.api, name, wrap, worn)
        ],
        settings.behavior or "",
        name,
        settings.behaviors,
        settings.observations,
        settings.outcome,
        settings.rotate_sides,
        settings.info_keys,
        request.exact,
        request.clips,
    )


def first_environment(request: factory.EnvironmentRequest) -> tuple[Any, Callable[[], Any], str]:
    """Make one environment, without wrappers.

    Returns:
        the environment, or whatever the factory returned; a function that makes another environment; and the
        environment's name for messages.
    """
    settings = request.settings
    if settings.id is None:
        name = factory.factory_name(settings.factory or "")
        return *factory.call_factory(request, name), name
    name = f"PettingZoo environment {settings.id!r}"
    with blaming("environment", "id"):
        maker = maker_of(settings.id, settings.api, request.folder, name)
    make = partial(maker, **factory.arguments_for(maker, settings.options, {}, name))
    return factory.call(make, name), make, name


def maker_of(env_id: str, api: Api, folder: Path | None, name: str) -> Make:
    """Find the function that makes an environment.

    Args:
        env_id: module or registered name.
        api: the required API.
        folder: the YAML file's folder, whose modules can be imported.
        name: the environment's name, used in messages.

    Raises:
        LoadError: if the environment does not exist, or PettingZoo or another package that it needs is not installed.
        StageError: if the environment does not have the API.
    """
    if "/" in env_id:
        return _registered(env_id, api, name)
    module = _module(env_id, folder, name)
    offered = {kind: function for kind, function in _FUNCTIONS.items() if callable(getattr(module, function, None))}
    if not offered:
        raise LoadError(
            f"{name}: module {env_id!r} has neither parallel_env() nor env(), so it is not a PettingZoo environment; "
            "to call another function in it, use environment.factory: module:callable"
        )
    if api != "auto" and api not in offered:
        other = next(iter(offered))
        raise StageError(
            f"{name}: environment.api: it has no {_FUNCTIONS[api]}(); use '{other}', or leave environment.api out"
        )
    make: Make = getattr(module, offered[next(iter(offered)) if api == "auto" else api])
    return make


def make_instances(
    made: Any,
    make: Callable[[], Any],
    num_envs: int,
    api: Api,
    name: str,
    wrap: Callable[[Any], Any] | None,
    worn: str = "",
) -> list[Instance]:
    """Make all instances, one after the other.

    Args:
        made: the first environment.
        make: makes another environment.
        num_envs: number of instances.
        api: the required API.
        name: the environment's name, used in messages.
        wrap: applies the settings' wrappers.
        worn: the wrappers' names, used in messages about an instance's return values.

    Raises:
        StageError: if the API differs, or `make` returns the same object twice.
        LoadError: if an object is not a PettingZoo environment.
        BrokenEnvironmentError: if `make` raises.
    """
    envs = [made]
    try:
        envs = factory.make_all(made, make, num_envs, name)
        said: set[str] = set()
        numbers = [f", instance {number}" for number in range(num_envs)] if num_envs > 1 else [""]
        wrapped = [env if wrap is None else wrap(env) for env in envs]
        _check_api(wrapped[0], api, name)
        return [instance_of(env, f"{name}{number}{worn}", said) for env, number in zip(wrapped, numbers, strict=True)]
    except BaseException:
        for env in envs:
            if callable(getattr(env, "close", None)):
                env.close()
        raise


def _check_api(env: Any, api: Api, name: str) -> None:
    actual = api_of(env)
    if actual is None:
        raise LoadError(
            f"{name} returned {type_of(env)}; expected a pettingzoo.ParallelEnv, an AECEnv or an EnvironmentGroup"
        )
    if api not in ("auto", actual):
        convert = "aec_to_parallel" if actual == "aec" else "parallel_to_aec"
        raise StageError(
            f"{name}: environment.api: its API is '{actual}', not '{api}'; leave it out, or add "
            f"pettingzoo.utils.conversions:{convert} to environment.wrappers"
        )


def _registered(env_id: str, api: Api, name: str) -> Make:
    """Return a function that makes an environment from PettingZoo's registry."""
    try:
        pettingzoo = importlib.import_module("pettingzoo")
    except ImportError as error:
        raise LoadError(_needs("pettingzoo", name)) from error
    if not hasattr(pettingzoo, "spec"):
        version = getattr(pettingzoo, "__version__", "of unknown version")
        raise StageError(
            f"{name}: PettingZoo {version} has no registry of names; install 1.27 or newer, or name the module: "
            f"pettingzoo.{env_id.replace('/', '.').replace('-v', '_v')}"
        )
    names: list[str] = []
    for kind in _FUNCTIONS if api == "auto" else (api,):
        names += getattr(pettingzoo, f"{kind}_registry", ())
        try:
            pettingzoo.spec(kind, env_id)  # an id may omit its version, so a look-up in the registry is not enough
        except Exception:  # any error means that the id does not exist
            continue
        return partial(pettingzoo.make, kind, env_id)
    kinds = "" if api == "auto" else f" with environment.api: {api}"
    hint = suggest(env_id, names) or f"; available: {', '.join(sorted(set(names))) or 'none'}"
    raise LoadError(f"{name}: PettingZoo has not registered this environment{kinds}{hint}")


def _module(env_id: str, folder: Path | None, name: str) -> Any:
    try:
        with warnings.catch_warnings():
            # PettingZoo 1.27 deprecates these modules in favour of its registry.
            warnings.simplefilter("ignore", DeprecationWarning)
            return import_module(env_id, folder, name)
    except LoadError as error:
        missing = getattr(error.__cause__, "name", None)
        if missing in _OURS:
            raise LoadError(_needs(missing, name)) from error
        raise


def _needs(package: str, name: str) -> str:
    return (
        f"{name} needs the package {package}, which is not installed; install it with: python -m pip install "
        '"headrace[pettingzoo]"'
    )


_CYCLES = 50


def of_pettingzoo(request: EnvironmentRequest) -> Iterator[str]:
    """Yield findings about one environment without wrappers, or nothing for a group that a factory made."""
    env, _, name = first_environment(request)
    if isinstance(env, EnvironmentGroup):
        return
    try:
        import pettingzoo.test as tests  # type: ignore[import-untyped]
    except ImportError:  # pettingzoo.test needs pytest
        return
    parallel = api_of(env) == "parallel"
    test = tests.parallel_api_test if parallel else tests.api_test
    if not _has_other_masks(env, parallel):
        yield from words_of(lambda: test(env, num_cycles=_CYCLES), "PettingZoo's own test (pettingzoo.test)", name)
    with suppress(Exception):
        env.close()


def _has_other_masks(env: Any, parallel: bool) -> bool:
    """Return True if masks have a form that the tests, which act at random, ignore."""
    first = env.reset(seed=0)
    if parallel:
        seen, infos = first
        firsts = [(agent, seen.get(agent), infos.get(agent)) for agent in env.agents]
    else:
        observation, *_, info = env.last()
        firsts = [(env.agent_selection, observation, info)]
    for agent, observation, info in firsts:
        in_info = isinstance(info, Mapping) and MASK in info
        masked = in_info or (isinstance(observation, Mapping) and MASK in observation)
        if masked and ((in_info and parallel) or type(env.action_space(agent)).__name__ != "Discrete"):
            return True
    return False
