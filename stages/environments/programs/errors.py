"""Errors in the connection to a program, by remedy: a restart may help, can't help, or isn't needed."""

from __future__ import annotations

from typing import Any

from headrace.stages.errors import BrokenEnvironmentError, StageError


class ProgramBroken(BrokenEnvironmentError):
    """A program died, hung, broke the protocol or dropped the connection. A restart may help."""


class ProgramRefused(StageError):
    """A program can't be used with its current setup (version, port, executable). A restart does not help."""


class ProgramEnded(StageError):
    """A program closed normally, because its window was closed or the game quit."""


class MessageError(Exception):
    """A message breaks the protocol. The error text is the end of a sentence that begins with the game's name."""


def shown(value: Any) -> str:
    """Format a value for messages; a long value is truncated."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"
