"""The wrappers of `environment.wrappers`, for single environments of any kind."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from headrace.config import EnvironmentSettings
from headrace.stages.error_text import describe_error
from headrace.stages.errors import StageError, blaming
from headrace.stages.loading import load_callable


def find_wrapper(settings: EnvironmentSettings, index: int, folder: Path | None) -> Callable[..., Any]:
    """Import what one of `environment.wrappers` names.

    Raises:
        LoadError: if it can't be found, or can't be called.
    """
    with blaming("environment", "wrappers", index, "use"):
        return load_callable(settings.wrappers[index].use, folder, "environment wrapper", "a class or function")


def chain_wrappers(
    settings: EnvironmentSettings, folder: Path | None, name: str, fits: Callable[[Any], bool], expected: str
) -> Callable[[Any], Any] | None:
    """Make one function of the settings' wrappers.

    Args:
        settings: the YAML's `environment` section; the innermost wrapper comes first.
        folder: the YAML's folder, whose modules are importable.
        name: of the environment, for messages.
        fits: returns True if what a wrapper returned is an environment of the right kind.
        expected: names such an environment in messages.

    Returns:
        a function from an environment to a wrapped one, which raises a StageError if a wrapper raises, or returns
        no environment; None if there are no wrappers.

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
                    f"{name}: environment wrapper {each.use!r} with {dict(each.with_)} raised {describe_error(error)}"
                ) from error
            if not fits(env):
                raise StageError(
                    f"{name}: environment wrapper {each.use!r} gave a {type(env).__name__}; expected {expected}"
                )
        return env

    return wrap
