"""How a connection with Unity fails: what a restart may mend, what it can't, and the end that is no failure."""

from __future__ import annotations

from stages.errors import BrokenEnvironmentError, StageError


class UnityBroken(BrokenEnvironmentError):
    """Unity died, hung, spoke nonsense or closed the connection unasked: a restart may mend it."""


class UnityLate(UnityBroken):
    """Unity was silent for longer than it may."""


class UnityDied(UnityBroken):
    """Unity's process ended."""


class UnityMisobserved(UnityBroken):
    """An observation is not what the behaviour's spec says."""


class UnityRefused(StageError):
    """Unity can't be used as it is set up (version, port, executable): no restart mends that."""


class PortUnusable(UnityRefused):
    """The port that Unity would call is somebody else's."""


class ChannelMisused(UnityRefused):
    """A side channel is used in the wrong way."""


class UnityEnded(StageError):
    """Unity closed the connection in good order: its Editor was stopped, or its window was closed."""
