"""Errors that commands and runs raise."""

from __future__ import annotations


class CommandError(Exception):
    """A command can't run; each line of the message gives one reason and what to write instead."""


class RunError(Exception):
    """A run can't start because its settings conflict or name something that is missing."""


class RunFailed(Exception):
    """A run failed; the message says what failed, where, and how to resume."""

    def __init__(self, message: str, stage: str = "", detail: str = "", reason: str = "") -> None:
        super().__init__(message)
        self.reason = reason or message
        """What failed and where, without how to resume."""
        self.stage = stage
        self.detail = detail
        """Traceback of the cause, for --debug and the log."""


class RunFolderError(Exception):
    """A run can't use its folder, or a file in the folder is broken; the message says what to do."""


class PredictError(ValueError):
    """An observation, mask or state does not fit a policy; the message names the mismatching part."""
