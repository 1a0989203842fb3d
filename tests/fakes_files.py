"""File operations that note what is done, and go wrong where a test wants it."""

from __future__ import annotations

import errno

from headrace.queues.files import FileOperations


class Recorder(FileOperations):
    """Notes every primitive."""

    def __init__(self) -> None:
        self.done: list[str] = []

    def perform(self, operation, file, function, *args, **kwargs):
        self.done.append(operation)
        if operation == "fsync":
            return None  # it takes its time, and only a power cut would tell
        return super().perform(operation, file, function, *args, **kwargs)


class Stopped(BaseException):
    """The process is no more."""


class Faulty(Recorder):
    """Lets the operation number `at` go wrong.

    With `stop`, the process ends there: no later operation happens either, those of cleaning up included.
    With `half`, a write that goes wrong has first written half of its data.
    """

    def __init__(self, at: int, stop: bool, half: bool = False) -> None:
        super().__init__()
        self.at, self.stop, self.half = at, stop, half

    def perform(self, operation, file, function, *args, **kwargs):
        number = len(self.done)
        if number == self.at or (self.stop and number > self.at):
            self.done.append(operation)
            if self.half and operation == "write" and number == self.at:
                function(args[0][: len(args[0]) // 2])
            if operation == "close":  # of a dead process, the system closes the files
                function(*args)
            if self.stop:
                raise Stopped
            raise OSError(errno.ENOSPC, f"no space for {operation}")
        return super().perform(operation, file, function, *args, **kwargs)


class Held(Recorder):
    """Lets another program hold files, as Windows allows it.

    Args:
        operation: what is refused meanwhile.
        tries: how often.
        of: a part of the names of these files.
    """

    def __init__(self, operation: str, tries: int, of: str = "") -> None:
        super().__init__()
        self.operation, self.tries, self.of = operation, tries, of
        self.pauses: list[float] = []

    def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)

    def perform(self, operation, file, function, *args, **kwargs):
        if operation == self.operation and self.tries and self.of in str(file):
            self.tries -= 1
            error = PermissionError(errno.EACCES, "Access is denied", str(file))
            setattr(error, "winerror", 5)  # noqa: B010 - only Windows' have it
            raise error
        return super().perform(operation, file, function, *args, **kwargs)
