"""The newest lines of the log, as the console shows them."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from headrace.pipeline.reporting.console import OURS

MOST_LINES = 400
_LONGEST = 4000
"""Characters of a line."""


class LogTail(logging.Handler):
    """Keeps the newest lines, each with a number that grows by one."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self._lines: deque[dict[str, Any]] = deque(maxlen=MOST_LINES)
        self._count = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a line."""
        try:
            text = record.getMessage()[:_LONGEST]
        except Exception:  # as every handler of the standard library does: a log line never ends the program
            self.handleError(record)
            return
        self._count += 1
        self._lines.append(
            {"number": self._count, "time": round(time.time(), 1), "level": record.levelname, "text": text}
        )

    def since(self, number: int) -> list[dict[str, Any]]:
        """Return the lines after a number."""
        return [line for line in list(self._lines) if line["number"] > number]

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Keep what is logged within."""
        logger = logging.getLogger(OURS)
        logger.addHandler(self)
        try:
            yield
        finally:
            logger.removeHandler(self)
