"""Makes a run's environment group, with the maker that `headrace.config.environment_kinds` names for its kind.

Each maker is in the folder of its kind, and is imported only when it is called, because planning or validating a run
makes no environment. This module contains what several makers share.
"""

from __future__ import annotations

import inspect
import logging
import os
import re
import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

from headrace.config import EnvironmentSettings, RunConfig
from headrace.config.environment_kinds import load_entry
from headrace.queues.specs import BehaviorSpec
from headrace.stages.activity import preparing
from headrace.stages.environments.action_repeat import RepeatingGroup
from headrace.stages.environments.given import find_given, is_given
from headrace.stages.environments.protocol import EnvironmentGroup, settled
from headrace.stages.environments.time_limit import Limited, LimitedGroup
from headrace.stages.errors import BrokenEnvironmentError, StageError, blaming, describe_fault, type_of
from headrace.stages.loading import load_callable

log = logging.getLogger(__name__)

HUMAN = "human"
"""The render mode that opens a window."""
_X_PORT = 6000
_ANSWER_S = 3.0
"""Seconds to wait for an X display on another machine to answer."""


@dataclass(frozen=True, slots=True)
class EnvironmentRequest:
    """An actor's request for environments, to be fulfilled by the maker for their kind."""

    config: RunConfig
    seed: int = 0
    """The run's seed."""
    replica: int = 0
    """The actor's number. Instances are numbered across all actors, and the instances for evaluation have the highest
    numbers."""
    run_folder: Path | None = None
    """`results/<run-id>`; None to write no files."""

    @property
    def settings(self) -> EnvironmentSettings:
        """The YAML's `environment` section."""
        assert self.config.environment is not None, "only Unity does without the section"
        return self.config.environment

    @property
    def folder(self) -> Path | None:
        """The YAML file's folder, whose modules can be imported."""
        return self.config.source_folder

    @property
    def exact(self) -> bool:
        """True if float64 vectors stay float64, because they are normalised before they are rounded."""
        settings = (*self.config.behaviors.values(), self.config.default_settings)
        return any(each is not None and each.normalizes for each in settings)

    @property
    def clips(self) -> bool:
        """True if continuous actions use the environment's range, clipped to its bounds."""
        return self.settings.action_bounds == "clip"

    @property
    def first_instance(self) -> int:
        """Number of the actor's first instance, counted across all actors."""
        return self.replica * self.settings.num_envs


@preparing()
def make_group(
    request: EnvironmentRequest, film: Callable[[EnvironmentGroup], EnvironmentGroup] | None = None
) -> EnvironmentGroup:
    """Make a configuration's environment group, with a time limit and action repeat if they are configured.

    Args:
        request: the configuration, and the actor that needs the environments.
        film: wraps the group to record video, inside the wrappers that hold actions or truncate episodes.

    Raises:
        LoadError: if a module or attribute can't be found, or does not make an environment.
        StageError: if the environment does not exist, does not take the options, or needs a display on a machine
            without one.
        BrokenEnvironmentError: if the environment fails while it is made.
    """
    if request.config.environment is not None:
        check_window(request.settings.options, request.settings.num_envs)
    group = load_entry(request.config.environment_kind.group)(request)
    assert isinstance(group, EnvironmentGroup), f"{type(group).__name__} is not an environment group"
    if request.config.environment is not None and is_given(request.settings.factory):
        find_given(request.settings.factory).lend_to(group)
    if film is not None:
        group = film(group)
    settings = request.config.environment
    if settings is None:
        return group
    limited = isinstance(group, Limited) and group.limits_episodes
    if settings.max_episode_steps is not None and not limited:
        group = LimitedGroup(group, settings.max_episode_steps)
    if settings.action_repeat is not None and not request.config.environment_kind.holds_actions:
        group = RepeatingGroup(group, settings.action_repeat)
    return cast("EnvironmentGroup", group)


async def announced_specs(request: EnvironmentRequest) -> dict[str, BehaviorSpec]:
    """Return the specs of a run's environment, keyed by behaviour name.

    Raises:
        StageError: if the environment can't be made or started.
    """
    config = request.config
    one = {"num_envs": 1}
    environment = config.environment and config.environment.model_copy(update=one)
    settings = config.env_settings.model_copy(update=one)
    alone = config.model_copy(update={"environment": environment, "env_settings": settings})
    group = make_group(replace(request, config=alone))
    try:
        await settled(group.reset(request.seed))
        return {spec.name: spec for spec in group.behavior_specs.values()}
    finally:
        await settled(group.close())


def named_in_section(config: RunConfig) -> Iterator[Callable[[], Any]]:
    """Yield functions that import the factory and the wrappers of the `environment` section.

    Each function raises a LoadError if its object can't be found, or can't be called.
    """
    settings = config.environment
    assert settings is not None, "only Unity does without the section"
    if settings.factory is not None:
        yield partial(find_factory, settings.factory, config.source_folder)
    for index in range(len(settings.wrappers)):
        yield partial(find_wrapper, settings, index, config.source_folder)


def find_factory(reference: str, folder: Path | None, first: int = 0) -> Callable[..., Any]:
    """Import the object that `environment.factory` names, or find the object that was passed to `run()`.

    Args:
        reference: the value of `environment.factory`.
        folder: the YAML file's folder, whose modules can be imported.
        first: number of the first instance to make.

    Raises:
        LoadError: if the object can't be found, or can't be called.
    """
    with blaming("environment", "factory"):
        if is_given(reference):
            return find_given(reference).maker(first)
        expected = "a callable that makes an environment"
        return load_callable(reference, folder, "environment factory", expected)


def factory_name(reference: str) -> str:
    """Return the name that messages use for a factory's environment."""
    return (
        f"environment {reference.partition(':')[2]}, passed to run(),"
        if is_given(reference)
        else (f"environment factory {reference!r}")
    )


def environment_name(settings: EnvironmentSettings) -> str:
    """Return the name that messages use for a Gymnasium environment."""
    return factory_name(settings.factory) if settings.factory else f"Gymnasium environment {settings.id!r}"


def call_factory(request: EnvironmentRequest, name: str) -> tuple[Any, Callable[[], Any]]:
    """Call `environment.factory` with the options, and with `num_envs` and `behavior` if it takes them.

    Returns:
        the environment or an entire group, and a function that makes another environment.
    """
    settings = request.settings
    assert settings.factory is not None, "the schema asks for an id or a factory"
    make = find_factory(settings.factory, request.folder, request.first_instance)
    offered = {"num_envs": settings.num_envs, "behavior": settings.behavior or ""}
    make = partial(make, **arguments_for(make, settings.options, offered, name))
    return call(make, name), make


def check_own_group(group: EnvironmentGroup, settings: EnvironmentSettings, name: str) -> EnvironmentGroup:
    """Check a group that the user's factory made, and return it unchanged.

    Raises:
        StageError: if the settings request something that only works with single environments.
    """
    for key in ("wrappers", "observations", "behaviors", "rotate_sides"):
        if getattr(settings, key):
            group.close()
            raise StageError(
                f"environment.{key}: can't be combined with {name}, which returned an EnvironmentGroup "
                f"({type(group).__name__}); expected single environments, or leave it out"
            )
    return group


def parameter_names(make: Callable[..., Any]) -> frozenset[str]:
    """Return the names of a callable's keyword arguments; an empty set if it has no signature."""
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return frozenset(name for name, parameter in _parameters(make).items() if parameter.kind in named)


def takes_any(make: Callable[..., Any]) -> bool:
    """Return True if a callable takes arbitrary keyword arguments; False if it has no signature."""
    return any(each.kind is each.VAR_KEYWORD for each in _parameters(make).values())


def _parameters(make: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(make).parameters
    except (TypeError, ValueError):  # some callables written in C have no signature
        return {}


def arguments_for(
    make: Callable[..., Any], options: Mapping[str, Any], offered: Mapping[str, Any], name: str
) -> dict[str, Any]:
    """Return the keyword arguments for a callable: the options, and those in `offered` that it takes.

    Raises:
        StageError: if the options do not fit the callable.
    """
    taken = parameter_names(make)
    known = {key: value for key, value in offered.items() if key in taken}
    for key in known.keys() & options.keys():
        raise StageError(
            f"environment.options: {key} is not an option of {name}; set environment.{key} instead",
            key=("environment", "options", key),
        )
    arguments = {**options, **known}
    check_arguments(make, arguments, name)
    return arguments


def check_arguments(make: Callable[..., Any], arguments: Mapping[str, Any], name: str) -> None:
    """Check that keyword arguments fit a callable's signature, if it has one.

    Raises:
        StageError: if they do not fit.
    """
    try:
        signature = inspect.signature(make)
    except (TypeError, ValueError):  # without a signature, the call itself will raise
        return
    try:
        signature.bind(**arguments)
    except TypeError as error:
        raise StageError(
            f"environment.options are not valid for {name}: {error}; its signature is {signature}",
            key=("environment", "options"),
        ) from error


def call(make: Callable[[], Any], name: str) -> Any:
    """Call a function that makes an environment.

    Raises:
        BrokenEnvironmentError: if the callable raises an error other than a StageError.
    """
    try:
        return make()
    except StageError:
        raise
    except Exception as error:
        raise BrokenEnvironmentError(f"{name} raised {describe_fault(error)}") from error


# The wrappers of `environment.wrappers`, for single environments of any kind.


def find_wrapper(settings: EnvironmentSettings, index: int, folder: Path | None) -> Callable[..., Any]:
    """Import the object that entry `index` of `environment.wrappers` names.

    Raises:
        LoadError: if the object can't be found, or can't be called.
    """
    with blaming("environment", "wrappers", index, "use"):
        return load_callable(settings.wrappers[index].use, folder, "environment wrapper", "a class or function")


def chain_wrappers(
    settings: EnvironmentSettings, folder: Path | None, name: str, fits: Callable[[Any], bool], expected: str
) -> Callable[[Any], Any] | None:
    """Chain the settings' wrappers into one function.

    Args:
        settings: the YAML's `environment` section, which lists the innermost wrapper first.
        folder: the YAML file's folder, whose modules can be imported.
        name: the environment's name, used in messages.
        fits: returns True if a wrapper's result is an environment of the right kind.
        expected: names the right kind in messages.

    Returns:
        a function that wraps an environment, and raises a StageError if a wrapper raises or returns something else;
        None if there are no wrappers.

    Raises:
        LoadError: if a wrapper can't be found, or can't be called.
    """
    if not settings.wrappers:
        return None
    found = [find_wrapper(settings, index, folder) for index in range(len(settings.wrappers))]

    def wrap(env: Any) -> Any:
        for each, wrapper in zip(settings.wrappers, found, strict=True):
            try:
                env = wrapper(env, **each.with_)
            except Exception as error:
                raise StageError(
                    f"{name}: environment wrapper {each.use!r} with {dict(each.with_)} raised {describe_fault(error)}"
                ) from error
            if not fits(env):
                raise StageError(
                    f"{name}: environment wrapper {each.use!r} returned {type_of(env)}; expected {expected}"
                )
        return env

    return wrap


# Windows of environments that draw themselves on a screen (`render_mode: human` of Gymnasium and PettingZoo).


def check_window(options: Mapping[str, Any], num_envs: int) -> None:
    """Check that the window requested by an environment's options can be shown.

    Args:
        options: `environment.options`.
        num_envs: number of instances.

    Raises:
        StageError: if there is no display.
    """
    if options.get("render_mode") != HUMAN:
        return
    if no_screen():
        raise StageError(f"environment.options: render_mode human opens a window, but {no_screen()}")
    if num_envs > 1:
        log.warning(
            "%d instances with render_mode human each open a window, or share one window and draw over each other, at "
            "the display's refresh rate; to watch one game, set num_envs: 1.",
            num_envs,
        )


def no_screen() -> str:
    """Return why no window can be opened, and an alternative; an empty string if a window can be opened."""
    if sys.platform != "linux" or os.environ.get("SDL_VIDEODRIVER"):
        return ""
    instead = "Record the game with --inference --video DIR, or watch it in the browser with --monitor"
    if os.environ.get("WAYLAND_DISPLAY"):
        return ""
    display = os.environ.get("DISPLAY", "")
    if not display:
        return f"this machine has no display (neither DISPLAY nor WAYLAND_DISPLAY is set). {instead}"
    return "" if _answers(display) else f"no display responds at DISPLAY={display}. {instead}"


def _answers(display: str) -> bool:
    """Return False if no X server listens at the display. In that case, SDL would draw invisibly, without an error."""
    found = re.fullmatch(r"(?P<host>[^:]*):(?P<number>\d+)(\.\d+)?", display)
    if found is None:  # a form that only X itself can resolve
        return True
    host, number = found["host"], int(found["number"])
    if host not in ("", "unix"):
        return _connects(socket.AF_INET, (host, _X_PORT + number))
    place = f"/tmp/.X11-unix/X{number}"
    return any(_connects(socket.AF_UNIX, address) for address in (place, f"\0{place}"))


def _connects(family: int, address: Any) -> bool:
    with socket.socket(family) as trial:
        trial.settimeout(_ANSWER_S)
        try:
            trial.connect(address)
        except OSError:
            return False
    return True
