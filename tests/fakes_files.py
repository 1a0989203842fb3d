"""File operations that note what is done, and go wrong where a test wants it."""

from __future__ import annotations

import errno

from headrace.pipeline.run_folder.atomic_files import FileOperations


class Recorder(FileOperations):
    """Notes every primitive."""

    def __init__(self) -> None:
        self.done: list[str] = []

    def perform(self, operation, function, *args, **kwargs):
        self.done.append(operation)
        if operation == "fsync":
            return None  # it takes its time, and only a power cut would tell
        return super().perform(operation, function, *args, **kwargs)


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

    def perform(self, operation, function, *args, **kwargs):
        number = len(self.done)
        if number == self.at or (self.stop and number > self.at):
            self.done.append(operation)
            if self.half and operation == "write" and number == self.at:
                function(args[0], args[1][: len(args[1]) // 2])
            if operation == "close":  # of a dead process, the system closes the files
                function(*args)
            if self.stop:
                raise Stopped
            raise OSError(errno.ENOSPC, f"no space for {operation}")
        return super().perform(operation, function, *args, **kwargs)
