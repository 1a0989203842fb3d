"""Why a command can't be followed, a run can't start, or has ended before its end."""

from __future__ import annotations


class CommandError(Exception):
    """A command can't be followed; the message has one line for each reason, with what to write instead."""


class RunError(Exception):
    """A run can't start: what is asked for does not go together, or is not there."""


class RunFailed(Exception):
    """A run ended because something in it failed; the message says what, where, and how to go on."""

    def __init__(self, message: str, stage: str = "", detail: str = "") -> None:
        super().__init__(message)
        self.stage = stage
        self.detail = detail
        """The traceback of the cause, for --debug and the log."""


class RunFolderError(Exception):
    """A run can't have the folder it asks for, or a file in it is broken; the message says what to do."""
