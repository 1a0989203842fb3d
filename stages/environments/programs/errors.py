"""Errors in the connection to a program, by remedy: a restart may help, can't help, or isn't needed."""

from __future__ import annotations

from typing import Any

from headrace.stages.errors import BrokenEnvironmentError, StageError


class ProgramBroken(BrokenEnvironmentError):
    """A program died, hung, broke the protocol or dropped the connection: a restart may help."""


class ProgramRefused(StageError):
    """A program can't be used with its current setup (version, port, executable): a restart does not help."""


class ProgramEnded(StageError):
    """A program closed normally: its window was closed, or the game quit."""


class MessageError(Exception):
    """A message breaks the protocol; the error text continues a sentence that begins with the game's name."""


def shown(value: Any) -> str:
    """Format a value for messages; a long value is truncated."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"
