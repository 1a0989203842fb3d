"""The guard of files that a run can do without: a disk that refuses one costs that file, not the training."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

QUIET_S = 60.0
"""Seconds without an error after which a file counts as written again: a disk that is almost full takes some writes."""


class FileGuard:
    """Turns errors of the disk into warnings, one for each file until it can be written again.

    Args:
        log: receives the warnings.
        clock: seconds, from any start.
    """

    def __init__(self, log: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._clock = clock
        self._failed_s: dict[str, float] = {}

    @contextmanager
    def writing(self, file: object, lost: str) -> Iterator[None]:
        """Guard the statements that write a file; those after one that fails are skipped.

        Args:
            file: its path, or what it is called.
            lost: what is lost as long as it can't be written; completes "Until the disk takes it again, …".
        """
        name, now_s = str(file), self._clock()
        try:
            yield
        except OSError as error:
            if name not in self._failed_s:
                text = "%s can't be written: %s. Training goes on. Until the disk takes it again, %s."
                self._log.warning(text, name, error.strerror or error, lost)
            self._failed_s[name] = now_s
        else:
            if now_s - self._failed_s.get(name, now_s) >= QUIET_S:
                del self._failed_s[name]
                self._log.info("%s is written again.", name)
