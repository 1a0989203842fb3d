"""Errors of Unity alone, and the exceptions of `UnityEnvironment`, with the names that scripts for ML-Agents expect."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from headrace.stages.environments.engines.errors import (
    GameBroken,
    GameDied,
    GameEnded,
    GameLate,
    GameRefused,
    PortTaken,
)
from headrace.stages.errors import StageError


class UnityMisobserved(GameBroken):
    """An observation does not fit the behaviour's spec."""


class ChannelMisused(GameRefused):
    """A side channel is used incorrectly."""


class UnityException(Exception):
    """Base class of all errors of the low-level interface."""


class UnityEnvironmentException(UnityException):
    """Unity can't be started, has failed, or is used in the wrong order."""


class UnityWorkerInUseException(UnityEnvironmentException):
    """The port of this worker id is taken."""


class UnityCommunicationException(UnityException):
    """Unity dropped the connection, or broke the protocol."""


class UnityCommunicatorStoppedException(UnityException):
    """Unity closed the connection normally."""


class UnityTimeOutException(UnityException):
    """Unity did not answer in time."""


class UnityObservationException(UnityException):
    """An observation does not fit its spec."""


class UnityActionException(UnityException):
    """Actions do not fit the behaviour's spec, or their agent or behaviour does not exist."""


class UnitySideChannelException(UnityException):
    """A side channel is used incorrectly."""


_COUNTERPARTS: tuple[tuple[type[StageError], type[UnityException]], ...] = (
    (PortTaken, UnityWorkerInUseException),
    (ChannelMisused, UnitySideChannelException),
    (GameLate, UnityTimeOutException),
    (GameDied, UnityEnvironmentException),
    (UnityMisobserved, UnityObservationException),
    (GameBroken, UnityCommunicationException),
    (GameEnded, UnityCommunicatorStoppedException),
    (StageError, UnityEnvironmentException),
)
"""Pairs of an error class of this package and its counterpart in the low-level interface. The first match counts."""


@contextmanager
def as_low_level() -> Iterator[None]:
    """Convert this package's errors to those of the low-level interface, with the same text."""
    try:
        yield
    except StageError as error:
        counterpart = next(theirs for ours, theirs in _COUNTERPARTS if isinstance(error, ours))
        raise counterpart(str(error)) from error
