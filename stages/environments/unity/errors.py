"""Errors of a connection with Unity, by their remedy: a restart may help, or it can't, or Unity ended regularly.

Behind them stand the exceptions of `UnityEnvironment`, named as scripts written for ML-Agents expect them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from headrace.stages.environments.programs.errors import ProgramBroken, ProgramEnded, ProgramRefused
from headrace.stages.errors import StageError


class UnityBroken(ProgramBroken):
    """Unity died, hung, broke the protocol or dropped the connection: a restart may help."""


class UnityLate(UnityBroken):
    """Unity did not answer in time."""


class UnityDied(UnityBroken):
    """Unity's process ended."""


class UnityMisobserved(UnityBroken):
    """An observation does not fit the behaviour's spec."""


class UnityRefused(ProgramRefused):
    """Unity can't be used as it is set up (version, port, executable): no restart helps."""


class PortUnusable(UnityRefused):
    """Another program uses the port."""


class ChannelMisused(UnityRefused):
    """A side channel is used in the wrong way."""


class UnityEnded(ProgramEnded):
    """Unity closed in order: its Editor was stopped, its window was closed, or the game quit by itself."""


class UnityException(Exception):
    """Base class of all errors of the low-level interface."""


class UnityEnvironmentException(UnityException):
    """Unity can't be started, has failed, or is used in the wrong order."""


class UnityWorkerInUseException(UnityEnvironmentException):
    """The port of this worker id is taken."""


class UnityCommunicationException(UnityException):
    """Unity dropped the connection, or broke the protocol."""


class UnityCommunicatorStoppedException(UnityException):
    """Unity closed the connection regularly."""


class UnityTimeOutException(UnityException):
    """Unity did not answer in time."""


class UnityObservationException(UnityException):
    """An observation does not fit its spec."""


class UnityActionException(UnityException):
    """Actions do not fit the behaviour's spec, or their agent or behaviour does not exist."""


class UnitySideChannelException(UnityException):
    """A side channel is used in the wrong way."""


_COUNTERPARTS: tuple[tuple[type[StageError], type[UnityException]], ...] = (
    (PortUnusable, UnityWorkerInUseException),
    (ChannelMisused, UnitySideChannelException),
    (UnityLate, UnityTimeOutException),
    (UnityDied, UnityEnvironmentException),
    (UnityMisobserved, UnityObservationException),
    (UnityBroken, UnityCommunicationException),
    (UnityEnded, UnityCommunicatorStoppedException),
    (StageError, UnityEnvironmentException),
)
"""Errors of this package and those of the low-level interface; the first that fits counts."""


@contextmanager
def as_low_level() -> Iterator[None]:
    """Raise errors of this package as those of the low-level interface, with the same text."""
    try:
        yield
    except StageError as error:
        counterpart = next(theirs for ours, theirs in _COUNTERPARTS if isinstance(error, ours))
        raise counterpart(str(error)) from error
