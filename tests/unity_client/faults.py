"""What ends the stand-in Unity, and the return code by which a test knows it."""

CLOSED = 0
"""The trainer ended the connection, or Unity did, in good order."""
VIOLATION = 91
"""The trainer broke the protocol."""
LOST = 92
"""The connection broke."""
NO_PORT = 94
"""Started without a port, as by hand: a real build then plays without a trainer."""
CRASHED = 3
"""Ended by itself, as it was asked to by `--misbehave exit-mid-step`."""


class Violation(Exception):
    """The trainer said what a real Unity would not understand."""


class Lost(Exception):
    """The trainer is gone."""


class Closed(Exception):
    """The trainer closes the connection."""
