"""Errors in the connection to a game, by remedy: a restart may help, can't help, or isn't needed."""

from __future__ import annotations

from typing import Any

from headrace.stages.errors import BrokenEnvironmentError, StageError


class GameBroken(BrokenEnvironmentError):
    """A game died, hung, broke the protocol or dropped the connection. A restart may help."""


class GameLate(GameBroken):
    """A game did not answer in time."""


class GameDied(GameBroken):
    """A game's process ended."""


class GameRefused(StageError):
    """A game can't be used with its current setup (version, port, executable). A restart does not help."""


class PortTaken(GameRefused):
    """Another program uses the game's port."""


class GameEnded(StageError):
    """A game closed normally, because its editor was stopped, its window was closed, or the game quit."""


class MessageError(Exception):
    """A message breaks the protocol. The error text is the end of a sentence that begins with the game's name."""


def shown(value: Any) -> str:
    """Format a value for messages; a long value is truncated."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"
