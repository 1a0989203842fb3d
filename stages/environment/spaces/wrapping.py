"""The wrappers of `environment.wrappers` as one function, whatever kind of environment they go round."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from stages.error_text import describe_error
from stages.errors import StageError

Wrappers = Sequence[tuple[str, Callable[..., Any], Mapping[str, Any]]]
"""What the YAML calls each of them, the class or function, and its keyword arguments; the innermost first."""


def chained(wrappers: Wrappers, name: str, fits: Callable[[Any], bool], expected: str) -> Callable[[Any], Any]:
    """Make one function of several wrappers.

    Args:
        wrappers: the innermost first.
        name: what messages call the environment.
        fits: whether what a wrapper gave is an environment of the right kind.
        expected: what messages call such a one.

    Returns:
        a function that raises StageError if a wrapper raises, or gives no environment.
    """

    def wrap(env: Any) -> Any:
        for use, wrapper, arguments in wrappers:
            try:
                env = wrapper(env, **arguments)
            except Exception as error:
                raise StageError(
                    f"{name}: environment wrapper {use!r} with {dict(arguments)} raised {describe_error(error)}"
                ) from error
            if not fits(env):
                raise StageError(
                    f"{name}: environment wrapper {use!r} gave a {type(env).__name__}; expected {expected}"
                )
        return env

    return wrap
