"""The mistakes and conditions that callers of `stages` can tell apart."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from config.errors import KeyPath


class StageError(Exception):
    """A stage could not do its work; the message says on what and why.

    Args:
        message: what to tell.
        key: the key of the YAML that is to blame, if one is: who knows the file puts the place before the message.
    """

    def __init__(self, message: object = "", key: KeyPath = ()) -> None:
        super().__init__(message)
        self.key = key


class BrokenEnvironmentError(StageError):
    """An environment broke its contract, crashed or hung; the message names it."""


class EnvironmentEnded(Exception):
    """An environment has come to its end in order, so the run does too; the message says how."""


class NotFiniteError(StageError):
    """A NaN or infinity in a loss, reward, observation or action; the message names behaviour, agent and step."""


class LoadError(StageError):
    """A `module:attribute` named in the YAML could not be imported, or is not of the expected kind."""


@contextmanager
def blaming(*key: str | int) -> Iterator[None]:
    """Blame a key of the YAML for errors that are raised within, unless they blame one already."""
    try:
        yield
    except StageError as error:
        error.key = error.key or key
        raise
