"""From the YAML to a group of objects of ML-Agents' interface: what the factory is called with."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from config import EngineSettings, EnvironmentSettings
from stages.environment.factory import find_factory
from stages.environment.low_level.group import LowLevelGroup
from stages.environment.unity.side_channel_bridge import Telling
from stages.error_text import describe_error
from stages.errors import BrokenEnvironmentError, LoadError, StageError

_ASKED = ("reset", "step", "get_steps", "set_actions", "close")


def make_low_level_group(
    settings: EnvironmentSettings,
    engine: EngineSettings,
    folder: Path | None = None,
    first: int = 0,
    seed: int = 0,
) -> LowLevelGroup:
    """Make the group that the settings describe.

    The factory is called once for each instance, with the options; and, as far as it takes them by name, with
    `worker_id` (the instance's number over all actors, so that those on ports don't meet), `seed` (the run's +
    worker_id) and `side_channels` (a list to hand on to Unity: without it, environment parameters and engine settings
    have no effect).

    Args:
        settings: the YAML's `environment` section.
        engine: its `engine_settings`.
        folder: where the YAML lies, whose modules are importable.
        first: number of the first instance.
        seed: the run's.

    Raises:
        LoadError: if the factory can't be found, or gives no such environment.
        StageError: if it does not take the options.
        BrokenEnvironmentError: if making one failed.
    """
    assert settings.factory is not None, "the schema asks for it"
    what = f"environment factory {settings.factory!r}"
    make = find_factory(settings.factory, folder)
    taken = _taken(make)
    tellings = [Telling(engine, None, first + index, seed) for index in range(settings.num_envs)]
    envs: list[Any] = []
    try:
        for index, telling in enumerate(tellings):
            offered = {"worker_id": first + index, "seed": seed + first + index, "side_channels": [*telling.all]}
            given = {name: value for name, value in offered.items() if name in taken and name not in settings.options}
            envs.append(_made(make, {**settings.options, **given}, what))
    except BaseException:
        for env in envs:
            env.close()
        raise
    return LowLevelGroup(envs, what, tellings if "side_channels" in taken else None)


def _taken(make: Callable[..., Any]) -> frozenset[str]:
    """Names of the arguments that may be given by name."""
    try:
        parameters = inspect.signature(make).parameters
    except (TypeError, ValueError):  # some callables written in C have none
        return frozenset()
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return frozenset(name for name, parameter in parameters.items() if parameter.kind in named)


def _made(make: Callable[..., Any], arguments: Mapping[str, Any], what: str) -> Any:
    try:
        inspect.signature(make).bind(**arguments)
    except TypeError as error:
        raise StageError(f"environment.options do not fit {what}: {error}", key=("environment", "options")) from error
    except ValueError:  # as above: it has no signature, and says itself what is wrong
        pass
    try:
        env = make(**arguments)
    except StageError:
        raise
    except Exception as error:
        raise BrokenEnvironmentError(f"{what} raised {describe_error(error)}") from error
    missing = [name for name in _ASKED if not callable(getattr(env, name, None))]
    missing += [] if hasattr(env, "behavior_specs") else ["behavior_specs"]
    if missing:
        raise LoadError(
            f"{what} gave a {type(env).__name__}, which has no {', '.join(missing)}; expected an object with the "
            "interface of ML-Agents' BaseEnv"
        )
    return env
