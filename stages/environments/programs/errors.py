"""Errors of a connection with a program, by their remedy: a restart may help, or it can't, or it ended in order."""

from __future__ import annotations

from typing import Any

from headrace.stages.errors import BrokenEnvironmentError, StageError


class ProgramBroken(BrokenEnvironmentError):
    """A program died, hung, broke the protocol or dropped the connection: a restart may help."""


class ProgramRefused(StageError):
    """A program can't be used as it is set up (version, port, executable): no restart helps."""


class ProgramEnded(StageError):
    """A program closed in order: its window was closed, or the game quit by itself."""


class MessageError(Exception):
    """A message that does not fit the protocol; the text follows the game's name in a sentence."""


def shown(value: Any) -> str:
    """Return a value as messages show it: the beginning of it, if it is long."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"
