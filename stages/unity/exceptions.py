"""The exceptions of `UnityEnvironment`, named as scripts written for ML-Agents expect them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from stages.errors import StageError
from stages.unity.errors import (
    ChannelMisused,
    PortUnusable,
    UnityBroken,
    UnityDied,
    UnityEnded,
    UnityLate,
    UnityMisobserved,
)


class UnityException(Exception):
    """Anything that is wrong with Unity or with how it is used."""


class UnityEnvironmentException(UnityException):
    """Unity can't be started, has failed, or is used in the wrong order."""


class UnityWorkerInUseException(UnityEnvironmentException):
    """The port of this worker id is taken."""


class UnityCommunicationException(UnityException):
    """Unity dropped the connection, or said what can't be understood."""


class UnityCommunicatorStoppedException(UnityException):
    """Unity closed the connection in order."""


class UnityTimeOutException(UnityException):
    """Unity was silent for too long."""


class UnityObservationException(UnityException):
    """An observation is not what its spec says."""


class UnityActionException(UnityException):
    """Actions are not what the behaviour's spec says, or are for nobody."""


class UnitySideChannelException(UnityException):
    """A side channel is used in the wrong way."""


@contextmanager
def as_low_level() -> Iterator[None]:
    """Turns our errors into those of the low-level interface, with the same words."""
    try:
        yield
    except PortUnusable as error:
        raise UnityWorkerInUseException(str(error)) from error
    except ChannelMisused as error:
        raise UnitySideChannelException(str(error)) from error
    except UnityLate as error:
        raise UnityTimeOutException(str(error)) from error
    except UnityDied as error:
        raise UnityEnvironmentException(str(error)) from error
    except UnityMisobserved as error:
        raise UnityObservationException(str(error)) from error
    except UnityBroken as error:
        raise UnityCommunicationException(str(error)) from error
    except UnityEnded as error:
        raise UnityCommunicatorStoppedException(str(error)) from error
    except StageError as error:
        raise UnityEnvironmentException(str(error)) from error
