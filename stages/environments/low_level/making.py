"""From the `environment` section to a group of objects of ML-Agents' interface."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from headrace.stages.environments import factory
from headrace.stages.environments.low_level.group import LowLevelGroup
from headrace.stages.environments.unity.side_channel_bridge import SideChannelBridge
from headrace.stages.errors import LoadError

_NEEDED = ("reset", "step", "get_steps", "set_actions", "close")


def make_low_level_group(request: factory.EnvironmentRequest) -> LowLevelGroup:
    """Make the group that the settings describe; raises as `factory.make_group`.

    The factory is called once for each instance, with the options; and, if it has such parameters, with
    `worker_id` (the instance's number over all actors, so that those on ports don't meet), `seed` (the run's +
    worker_id) and `side_channels` (a list to pass on to Unity: without it, environment parameters and engine settings
    have no effect).
    """
    settings, engine, first = request.settings, request.config.engine_settings, request.first_instance
    assert settings.factory is not None, "the schema asks for it"
    name = f"environment factory {settings.factory!r}"
    make = factory.find_factory(settings.factory, request.folder)
    taken = factory.parameter_names(make)
    bridges = [SideChannelBridge(engine, None, first + index, request.seed) for index in range(settings.num_envs)]
    envs: list[Any] = []
    try:
        for index, bridge in enumerate(bridges, first):
            offered = {"worker_id": index, "seed": request.seed + index, "side_channels": [*bridge.all]}
            given = {key: value for key, value in offered.items() if key in taken}
            envs.append(_make(make, {**given, **settings.options}, name))
    except BaseException:
        for env in envs:
            env.close()
        raise
    return LowLevelGroup(envs, name, bridges if "side_channels" in taken else None)


def _make(make: Callable[..., Any], arguments: Mapping[str, Any], name: str) -> Any:
    factory.check_arguments(make, arguments, name)
    env = factory.call(partial(make, **arguments), name)
    missing = [each for each in _NEEDED if not callable(getattr(env, each, None))]
    missing += [] if hasattr(env, "behavior_specs") else ["behavior_specs"]
    if missing:
        raise LoadError(
            f"{name} gave a {type(env).__name__}, which has no {', '.join(missing)}; expected an object with the "
            "interface of ML-Agents' BaseEnv"
        )
    return env
