"""Errors of a connection with Unity, by their remedy: a restart may help, or it can't, or Unity ended regularly."""

from __future__ import annotations

from headrace.stages.environments.programs.errors import ProgramBroken, ProgramEnded, ProgramRefused


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
