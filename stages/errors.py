"""The errors of `stages` that its callers distinguish."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeGuard

if TYPE_CHECKING:  # else all of `config` is imported with it
    from headrace.config.errors import KeyPath


class StageError(Exception):
    """A stage could not do its work; the message names the object and the reason.

    Args:
        message: the message.
        key: the key of the YAML at fault, if one is: a caller that knows the file puts the place before the message.
    """

    def __init__(self, message: object = "", key: KeyPath = ()) -> None:
        super().__init__(message)
        self.key = key


class BrokenEnvironmentError(StageError):
    """An environment broke its contract, crashed or hung; the message names it."""


class EnvironmentEnded(Exception):
    """An environment has ended in order, so the run ends too; the message names the way."""


class NotFiniteError(StageError):
    """A NaN or infinity in a loss, reward, observation or action; the message names behaviour, agent and step."""


class LoadError(StageError):
    """A `module:attribute` named in the YAML could not be imported, or is not of the expected kind."""


@contextmanager
def blaming(*key: str | int) -> Iterator[None]:
    """Set the key of errors that are raised within, unless they have one already."""
    try:
        yield
    except StageError as error:
        error.key = error.key or key
        raise


def is_failure(error: BaseException | None) -> TypeGuard[BaseException]:
    """Return True for what code should not raise: any exception, and requests to exit or end that nobody made.

    A task that was cancelled is meant to end, and so is a coroutine that is closed outside of any task.
    """
    if isinstance(error, asyncio.CancelledError | GeneratorExit):
        try:
            task = asyncio.current_task()
        except RuntimeError:  # there is no event loop
            return False
        return task is not None and not task.cancelling()
    return isinstance(error, Exception | SystemExit | KeyboardInterrupt)
