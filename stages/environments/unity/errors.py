"""Errors in the connection to Unity, by remedy: a restart may help, can't help, or isn't needed.

The exceptions of `UnityEnvironment` follow, with the names that scripts for ML-Agents expect.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from headrace.stages.environments.programs.errors import ProgramBroken, ProgramEnded, ProgramRefused
from headrace.stages.errors import StageError


class UnityBroken(ProgramBroken):
    """Unity died, hung, broke the protocol or dropped the connection. A restart may help."""


class UnityLate(UnityBroken):
    """Unity did not answer in time."""


class UnityDied(UnityBroken):
    """Unity's process ended."""


class UnityMisobserved(UnityBroken):
    """An observation does not fit the behaviour's spec."""


class UnityRefused(ProgramRefused):
    """Unity can't be used with its current setup (version, port, executable). A restart does not help."""


class PortUnusable(UnityRefused):
    """Another program uses the port."""


class ChannelMisused(UnityRefused):
    """A side channel is used incorrectly."""


class UnityEnded(ProgramEnded):
    """Unity closed normally, because its Editor was stopped, its window was closed, or the game quit."""


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
    (PortUnusable, UnityWorkerInUseException),
    (ChannelMisused, UnitySideChannelException),
    (UnityLate, UnityTimeOutException),
    (UnityDied, UnityEnvironmentException),
    (UnityMisobserved, UnityObservationException),
    (UnityBroken, UnityCommunicationException),
    (UnityEnded, UnityCommunicatorStoppedException),
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
