"""From the YAML's `environment` section to an environment group.

Whatever needs gymnasium or a game is imported here when it is asked for, and not before: planning and
validating a run make no environment.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from config import EnvironmentSettings
from stages.environment.protocol import EnvironmentGroup
from stages.error_text import describe_error
from stages.errors import BrokenEnvironmentError, LoadError, StageError, blaming
from stages.loading import import_module, load_callable

BUILTIN_GAMES: Mapping[str, tuple[str, str]] = {
    "Volley": ("stages.games.volley", "VolleyGroup"),
    "Pursuit": ("stages.games.pursuit", "PursuitGroup"),
    "ConnectFour": ("stages.games.connect_four", "ConnectFourGroup"),
}
"""Module and class of the games that come with this package, by their `id`."""


def make_group(
    settings: EnvironmentSettings, behavior: str, num_envs: int, folder: Path | None = None, parameters: bool = False
) -> EnvironmentGroup:
    """Make the environment group that the settings describe.

    Args:
        settings: the YAML's `environment` section.
        behavior: behaviour name for environments with only one kind of agent.
        num_envs: number of instances, which may differ from the settings' (evaluation has its own).
        folder: where the YAML lies, whose modules are importable.
        parameters: whether it will be told environment parameters: then single environments are taken where there is a
            choice, because a vectorised one starts episodes by itself, without any.

    Raises:
        LoadError: if a module or attribute can't be found, or gives no environment.
        StageError: if there is no such environment, or it does not take the options.
        BrokenEnvironmentError: if making it failed.
    """
    if settings.factory is not None:
        return _from_factory(settings, settings.factory, behavior, num_envs, folder)
    assert settings.id is not None, "the schema asks for an id or a factory"
    if settings.kind == "builtin":
        return _builtin(settings.id, settings.options, behavior, num_envs)
    if settings.kind == "pettingzoo":
        return _pettingzoo(settings, settings.id, behavior, num_envs, folder)
    return _registered(settings, settings.id, behavior, num_envs, folder, parameters)


def find_maker(settings: EnvironmentSettings, folder: Path | None) -> None:
    """See that what is to make the environment is there, as far as it is named as a module or a built-in game.

    Raises:
        LoadError: if it can't be found or is nothing to call.
        StageError: if there is no such game.
    """
    if settings.factory is not None:
        find_factory(settings.factory, folder)
    elif settings.id is not None and settings.kind == "builtin":
        _game(settings.id)
    elif settings.id is not None and settings.kind == "gymnasium":
        _import_registrar(settings.id, folder, f"Gymnasium environment {settings.id!r}")


def find_factory(reference: str, folder: Path | None) -> Callable[..., Any]:
    """What `environment.factory` names.

    Raises:
        LoadError: if it can't be found or is nothing to call.
    """
    with blaming("environment", "factory"):
        expected = "something to call that makes an environment"
        return load_callable(reference, folder, "environment factory", expected)


def find_wrapper(settings: EnvironmentSettings, index: int, folder: Path | None) -> Callable[..., Any]:
    """What one of `environment.wrappers` names.

    Raises:
        LoadError: if it can't be found or is nothing to call.
    """
    with blaming("environment", "wrappers", index, "use"):
        return load_callable(settings.wrappers[index].use, folder, "environment wrapper", "a class or function")


def _builtin(game: str, options: Mapping[str, Any], behavior: str, num_envs: int) -> EnvironmentGroup:
    make, what = _game(game), f"built-in game {game!r}"
    made = _call(make, _arguments(make, options, {"num_envs": num_envs, "behavior": behavior}, what), what)
    assert isinstance(made, EnvironmentGroup), f"{what} is no environment group"
    return made


def _game(game: str) -> Callable[..., Any]:
    """The class of a built-in game."""
    if game not in BUILTIN_GAMES:
        by_lower = {known.lower(): known for known in BUILTIN_GAMES}
        close = difflib.get_close_matches(game.lower().replace("_", ""), by_lower, n=1)
        hint = f"did you mean {by_lower[close[0]]!r}?" if close else f"there are: {', '.join(BUILTIN_GAMES)}"
        raise StageError(f"environment.id: no built-in game is called {game!r}; {hint}", key=("environment", "id"))
    module, attribute = BUILTIN_GAMES[game]
    make: Callable[..., Any] = getattr(importlib.import_module(module), attribute)
    return make


def _registered(
    settings: EnvironmentSettings, env_id: str, behavior: str, num_envs: int, folder: Path | None, singly: bool
) -> EnvironmentGroup:
    from stages.environment.gymnasium.group import GymnasiumGroup
    from stages.environment.gymnasium.vectorising import make_vector

    name = f"Gymnasium environment {env_id!r}"
    _import_registrar(env_id, folder, name)
    envs = make_vector(env_id, num_envs, settings.options, name, _wrap(settings, folder, name), singly)
    return GymnasiumGroup(envs, behavior, name, settings.observations)


def _import_registrar(env_id: str, folder: Path | None, name: str) -> None:
    """Import the module before the colon of an id, which registers it."""
    module, _, _ = env_id.rpartition(":")
    if module:  # Gymnasium imports it too, but does not look next to the YAML
        with blaming("environment", "id"):
            import_module(module, folder, name)


def _pettingzoo(
    settings: EnvironmentSettings, env_id: str, behavior: str, num_envs: int, folder: Path | None
) -> EnvironmentGroup:
    from stages.environment.pettingzoo import maker_of

    name = f"PettingZoo environment {env_id!r}"
    with blaming("environment", "id"):
        make = maker_of(env_id, settings.api, folder, name)
    arguments = _arguments(make, settings.options, {}, name)
    made = _call(make, arguments, name)
    return _pettingzoo_group(settings, made, partial(make, **arguments), behavior, num_envs, folder, name)


def _pettingzoo_group(
    settings: EnvironmentSettings,
    made: Any,
    make: Callable[[], Any],
    behavior: str,
    num_envs: int,
    folder: Path | None,
    name: str,
) -> EnvironmentGroup:
    """A group of the environment that was made and of others that `make` makes."""
    from stages.environment.pettingzoo import PettingZooGroup, make_instances

    instances = make_instances(made, make, num_envs, settings.api, name, _wrap(settings, folder, name))
    return PettingZooGroup(
        instances,
        behavior,
        name,
        settings.behaviors,
        settings.observations,
        settings.outcome,
        settings.rotate_sides,
    )


def _wrap(settings: EnvironmentSettings, folder: Path | None, name: str) -> Callable[[Any], Any] | None:
    """What puts the settings' wrappers round a single environment, None where there are none."""
    if not settings.wrappers:
        return None
    wrapping: Callable[..., Callable[[Any], Any]]
    if settings.kind == "pettingzoo":
        from stages.environment.pettingzoo import wrapping
    else:
        from stages.environment.gymnasium.vectorising import wrapping

    wrappers = [
        (wrapper.use, find_wrapper(settings, index, folder), wrapper.with_)
        for index, wrapper in enumerate(settings.wrappers)
    ]
    return wrapping(wrappers, name)


def _from_factory(
    settings: EnvironmentSettings, reference: str, behavior: str, num_envs: int, folder: Path | None
) -> EnvironmentGroup:
    """Call the user's factory: it gets the options, and `num_envs` and `behavior` if it takes them."""
    what = f"environment factory {reference!r}"
    make = find_factory(reference, folder)
    arguments = _arguments(make, settings.options, {"num_envs": num_envs, "behavior": behavior}, what)
    made = _call(make, arguments, what)
    if isinstance(made, EnvironmentGroup):
        return _as_it_is(made, settings, what)
    if settings.kind == "pettingzoo":
        return _pettingzoo_group(settings, made, partial(make, **arguments), behavior, num_envs, folder, what)

    from gymnasium import Env
    from gymnasium.vector import VectorEnv

    if not isinstance(made, Env | VectorEnv):
        raise LoadError(
            f"{what} gave a {type(made).__name__}; expected a gymnasium.Env, a "
            "gymnasium.vector.VectorEnv or an EnvironmentGroup (num_envs, behavior_specs, reset, step, close)"
        )
    from stages.environment.gymnasium.group import GymnasiumGroup
    from stages.environment.gymnasium.vectorising import vectorise

    envs = vectorise(made, partial(make, **arguments), num_envs, what, _wrap(settings, folder, what))
    return GymnasiumGroup(envs, behavior, what, settings.observations)


def _as_it_is(group: EnvironmentGroup, settings: EnvironmentSettings, what: str) -> EnvironmentGroup:
    for key in ("wrappers", "observations", "behaviors", "rotate_sides"):
        if getattr(settings, key):
            group.close()
            raise StageError(
                f"environment.{key}: does not go with {what}, which gave an EnvironmentGroup of its own making "
                f"({type(group).__name__}); expected single environments, or leave it out"
            )
    return group


def _arguments(
    make: Callable[..., Any], options: Mapping[str, Any], offered: Mapping[str, Any], what: str
) -> dict[str, Any]:
    """The keyword arguments to call with: the options, and what is offered as far as it is taken by name.

    Raises:
        StageError: if the callable does not take the options.
    """
    try:
        signature = inspect.signature(make)
    except (TypeError, ValueError):  # some callables written in C have none
        return dict(options)
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    taken = {name for name, parameter in signature.parameters.items() if parameter.kind in named}
    given = {name: value for name, value in offered.items() if name in taken}
    for name in given.keys() & options.keys():
        raise StageError(
            f"environment.options: {name} is not an option of {what}; environment.{name} says it",
            key=("environment", "options", name),
        )
    arguments = {**options, **given}
    try:
        signature.bind(**arguments)
    except TypeError as error:
        raise StageError(
            f"environment.options do not fit {what}: {error}; it takes {signature}", key=("environment", "options")
        ) from error
    return arguments


def _call(make: Callable[..., Any], arguments: Mapping[str, Any], what: str) -> Any:
    try:
        return make(**arguments)
    except StageError:
        raise
    except Exception as error:
        raise BrokenEnvironmentError(f"{what} raised {describe_error(error)}") from error
