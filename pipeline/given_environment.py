"""The `environment` argument of `run()`: an id, an object, a function that makes an environment, or a list of these.

If other processes can import the environment, the configuration names it, as a YAML file would. Anything else is
registered in this process (`headrace.stages.environments.given`): functions that can be pickled are sent to the run's
processes, and other objects are stepped in main.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from headrace.config import ConfigError, RunConfig, load_config
from headrace.config.environment_kinds import ENVIRONMENT_KINDS
from headrace.config.host_kinds import HOST_KINDS
from headrace.config.load import Override, apply
from headrace.config.plain_data import named
from headrace.config.section_checks import with_hindsight
from headrace.config.yaml_reader import read_file
from headrace.pipeline.common.errors import RunError
from headrace.pipeline.main.run_shape import with_hosts, with_num_envs
from headrace.stages.environments.factory import arguments_for, call
from headrace.stages.environments.given import GivenEnvironment, GivenObject, giving, is_given, is_vec_env, offers
from headrace.stages.environments.pettingzoo.instances import api_of
from headrace.stages.environments.protocol import EnvironmentGroup
from headrace.stages.errors import StageError, type_of
from headrace.stages.loading import load_attribute
from headrace.stages.user_calls import calls_user

log = logging.getLogger(__name__)

_WHO = "run(environment=…)"
_FUNCTION = "pass a function that makes the environment"
_VERSION = re.compile(r"[-_]v\d+$")


@contextmanager
def given_to(config: Any, environment: Any) -> Iterator[RunConfig]:
    """Load a configuration for the caller's environment, which stays registered while this context is active.

    Args:
        config: as for `run`; its `environment` section may have all keys except those that name the environment.
        environment: as in `RunOptions`.

    Raises:
        ConfigError: if the configuration has mistakes.
        RunError: if the kind of environment is unknown, or the environment can't run as the configuration requires.
    """
    (makers, count), written = _listed_makers(environment), _written(config)
    first, section, behaviors = makers[0], written.get("environment") or {}, written.get("behaviors")
    kind, sample = str(section.get("kind", "")), first
    if callable(first) and not isinstance(first, type) and not _is_object(first) and not (kind and behaviors):
        sample = _made_once(first, section.get("options") or {})
    key = "id" if isinstance(first, str | ModuleType) else "factory"
    if kind not in ENVIRONMENT_KINDS or key not in ENVIRONMENT_KINDS[kind].made_by:
        kind = _kind_of(sample)
    name = _name_of(sample)
    values: dict[tuple[str, ...], Any] = {("environment", key): None for key in ("id", "factory")}
    values["environment", "kind"] = kind
    if not behaviors and not section.get("behavior") and "behavior" in ENVIRONMENT_KINDS[kind].keys:
        values["behaviors", name] = {}
    if not behaviors and "default_settings" not in written:
        values["default_settings",] = {}
    reference_name = _importable(first) if count is None else None
    if reference_name is not None:
        yield _loaded(config, {**values, ("environment", key): reference_name})
        return
    given = GivenEnvironment([])
    before = section.get("factory")  # set if a run is resumed
    with giving(before.partition(":")[2] if is_given(before) else name, given) as reference:
        loaded = _loaded(config, {**values, ("environment", "factory"): reference})
        yield _arranged(loaded, makers, count, given)


def _listed_makers(environment: Any) -> tuple[Sequence[Any], int | None]:
    """Return the caller's objects, functions, id or module, and the number of instances if the caller passed a list."""
    registry = getattr(sys.modules.get("gymnasium"), "registry", {})
    if isinstance(environment, str) and callable(getattr(registry.get(environment), "entry_point", None)):
        environment = partial(sys.modules["gymnasium"].make, registry[environment])  # registered only in this process
    if is_vec_env(environment):
        if hasattr(environment, "venv") or not hasattr(environment, "envs"):
            raise RunError(
                f"{_WHO}: {type_of(environment)} can't be split into its environments; pass the list of functions "
                "that it was made from. network_settings.normalize replaces VecNormalize, and the wrapper "
                "gymnasium.wrappers.FrameStackObservation replaces VecFrameStack"
            )
        environment = list(environment.envs)
    makers = list(environment) if isinstance(environment, list | tuple) else [environment]
    several = isinstance(environment, list | tuple)
    for given in makers:
        if not (callable(given) or _is_object(given) or (isinstance(given, str | ModuleType) and not several)):
            raise RunError(
                f"{_WHO}: expected a Gymnasium or PettingZoo environment, a function that makes one, a list of "
                f"these, or an id; got {type_of(given)}{' in the list' if several else ''}"
            )
    if not makers:
        raise RunError(
            f"{_WHO}: the list is empty; expected an environment, or a function that makes one, for each instance"
        )
    return makers, len(makers) if several else None


def _written(config: Any) -> Mapping[str, Any]:
    """Return a configuration's data without checking it; mistakes are reported when it is loaded."""
    if isinstance(config, RunConfig):
        return _plain_of(config)
    data = config if isinstance(config, Mapping) else read_file(Path(config)).data
    sections = data if isinstance(data, Mapping) else {}
    return {key: value for key, value in sections.items() if key == "default_settings" or isinstance(value, Mapping)}


def _plain_of(config: RunConfig) -> dict[str, Any]:
    """Return a configuration as plain data, with `auto` values not yet chosen."""
    whole = config.to_plain()
    plain = config.model_dump(mode="json", by_alias=True, exclude_unset=True)
    plain |= {key: whole[key] for key in ("behaviors", "default_settings") if whole[key]}
    for key in ("environment", "env_settings"):
        section = getattr(config, key)
        if section is not None and section.is_auto("num_envs"):
            plain.setdefault(key, {})["num_envs"] = "auto"
    return plain


def _loaded(config: Any, values: Mapping[tuple[str, ...], Any]) -> RunConfig:
    overrides = [Override(_WHO, path, value) for path, value in values.items()]
    if not isinstance(config, RunConfig):
        return load_config(config, overrides)
    return config.rewritten(apply(_plain_of(config), overrides)[0])


def _importable(maker: Any) -> str | None:
    """Return a name that every process can use to import the environment; None if there is none."""
    if isinstance(maker, str | ModuleType):
        return maker if isinstance(maker, str) else maker.__name__
    if _is_object(maker) or getattr(maker, "__module__", None) == "__main__":
        return None
    try:
        reference = named(maker, ("environment", "factory"))
        return reference if load_attribute(reference, None, _WHO) is maker else None
    except (ConfigError, StageError):
        return None


@calls_user
def _made_once(make: Callable[..., Any], options: Mapping[str, Any]) -> Any:
    """Make an environment, close it, and return it so its kind can be determined."""
    what = f"{_WHO}: {_name_of(make)}"
    try:
        arguments = arguments_for(make, options, {"num_envs": 1, "behavior": ""}, what)
        env = call(partial(make, **arguments), what)
    except StageError as error:
        raise RunError(str(error)) from error
    if not _is_object(env):
        raise RunError(f"{what} returned {type_of(env)}; expected a Gymnasium or PettingZoo environment")
    with closing(env):
        return env


def _kind_of(environment: Any) -> str:
    if isinstance(environment, str | ModuleType):
        is_module = isinstance(environment, ModuleType) or "." in environment
        return "pettingzoo" if is_module else "gymnasium"
    if offers(environment, "get_steps", "set_actions"):
        return "mlagents"
    own_group = not isinstance(environment, type) and isinstance(environment, EnvironmentGroup)
    return "pettingzoo" if not own_group and api_of(environment) is not None else "gymnasium"


def _name_of(environment: Any) -> str:
    """Return the behaviour name for an environment with one kind of agent."""
    if isinstance(environment, partial):
        return _name_of(environment.func)
    spec, metadata = getattr(environment, "spec", None), getattr(environment, "metadata", None)
    name = environment if isinstance(environment, str) else getattr(environment, "__name__", "")
    if _is_object(environment):
        inner = type(getattr(environment, "unwrapped", environment)).__name__
        name = getattr(spec, "id", None) or (metadata.get("name") if isinstance(metadata, Mapping) else None) or inner
    last = re.split(r"[/:.]", _VERSION.sub("", name))[-1]
    return re.sub(r"\W+", "_", last).strip("_") or "Agent"


def _arranged(config: RunConfig, makers: Sequence[Any], count: int | None, given: GivenEnvironment) -> RunConfig:
    """Fill in the functions that make the instances; check the number of instances and the kinds of hosts."""
    section, hosts = config.environment, config.pipeline.hosts
    assert section is not None, "it was given"
    actors_kind = None if hosts.actors.is_auto("kind") else hosts.actors.kind
    num_envs, actors = section.num_envs, 1 if hosts.actors.is_auto("replicas") else hosts.actors.replicas
    stays = ""
    for environment in makers:
        maker, why = _maker_of(environment, in_main=actors_kind == "inline" and num_envs * actors == 1)
        given.makers.append(maker)
        stays = stays or why
    if _is_object(makers[0]) and not stays:
        log.info(
            "Headrace makes the run's environments from the object's spec; changes to the object itself have no effect."
        )
    if isinstance(given.makers[0], GivenObject) and count is None:
        count = getattr(makers[0], "num_envs", 1)
    if count is not None and (
        (num_envs != 1 and num_envs * actors != count and not section.is_auto("num_envs")) or count % actors
    ):
        raise RunError(
            f"environment.num_envs: {num_envs}{f' for each of {actors} actors' if actors > 1 else ''} conflicts with "
            f"{_WHO}, which gives {count}; omit num_envs, or {_FUNCTION}"
        )
    if count is not None:
        config = with_num_envs(config, count // actors)
    if not stays and actors_kind != "inline":
        try:
            given.pickled()
        except StageError as error:
            stays = f"the environment can't be sent to another process: {error}"
    if config.evaluation is not None and any(isinstance(maker, GivenObject) for maker in given.makers):
        raise RunError(
            f"evaluation: needs a second environment, but {_WHO} gives only one; {_FUNCTION}, or omit evaluation"
        )
    if stays:
        return _in_main(config, stays)
    if count is None and _is_object(makers[0]) and (env_id := _id_of(makers[0].spec)):
        by_id = {"id": env_id, "factory": None}
        return config.model_copy(update={"environment": section.model_copy(update=by_id)})
    return _apart(config)


def _id_of(spec: Any) -> str:
    """Return an id from which Gymnasium makes the same environment in every process; empty if this is not certain."""
    from gymnasium import registry

    registered, fields = registry.get(spec.id), ("entry_point", "kwargs", "max_episode_steps", "additional_wrappers")
    is_builtin = registered is not None and str(spec.entry_point).startswith("gymnasium.envs.")
    is_same = is_builtin and all(getattr(spec, field) == getattr(registered, field) for field in fields)
    return str(spec.id) if is_same else ""


def _maker_of(environment: Any, in_main: bool) -> tuple[Callable[..., Any], str]:
    """Return the function that makes an instance, and why it can't be sent to other processes (empty if it can)."""
    if not _is_object(environment):
        return environment, ""
    import gymnasium

    spec = getattr(environment, "spec", None)
    if not isinstance(spec, gymnasium.envs.registration.EnvSpec) or not isinstance(environment, gymnasium.Env):
        why = "the environment is an object without the spec that gymnasium.make sets"
    elif lost := [wrapper.name for wrapper in spec.additional_wrappers if wrapper.kwargs is None]:
        why = (
            f"the environment is an object that can't be recreated from its spec: its wrapper {lost[0]} does not "
            "derive from gymnasium.utils.RecordConstructorArgs"
        )
    elif in_main:
        why = "pipeline.hosts.actors.kind is inline"
    else:
        return partial(gymnasium.make, spec), ""
    return GivenObject(environment), why


def _in_main(config: RunConfig, why: str) -> RunConfig:
    """Return a configuration in which the hosts that step the caller's object run in main."""
    hosts, involved = config.pipeline.hosts, ["actors"]
    involved += ["evaluation"] if config.evaluation is not None else []
    involved += ["learners"] if with_hindsight(config) else []
    for which in involved:
        section = getattr(hosts, which)
        if section.kind != "inline" and section._is_set("kind"):
            raise RunError(
                f"pipeline.hosts.{which}.kind: '{section.kind}' is not possible, because {why}; {_FUNCTION}, or omit "
                "kind"
            )
    log.info("The main process steps the environments, because %s.", why)
    for which in {*involved} - {"evaluation"}:
        config = with_hosts(config, which, kind="inline")
    return config


def _apart(config: RunConfig) -> RunConfig:
    """Return the configuration, after checking that no environment function must be sent to another machine."""
    for which, hosts in config.pipeline.hosts:
        makes = which in ("actors", "evaluation") or (which == "learners" and with_hindsight(config))
        if makes and hosts.kind is not None and HOST_KINDS[hosts.kind].on_ray:
            raise RunError(
                f"pipeline.hosts.{which}.kind: '{hosts.kind}' does not work with {_WHO}: an object can be passed only "
                "to processes on this machine; define a class or function at the top level of a module, and name it "
                "in environment.factory"
            )
    return config


def _is_object(environment: Any) -> bool:
    return offers(environment, "reset", "step") and not isinstance(environment, type | ModuleType)
