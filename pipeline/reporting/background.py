"""Work of a statistics writer that may take long, behind the run's back: in a thread, in order, within bounds."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable

log = logging.getLogger(__name__)

MOST_WAITING = 1000
"""Jobs that may wait; further ones are dropped."""


class BackgroundJobs:
    """Jobs that a thread does one after the other. The first that raises is the last: `put` raises its error.

    Args:
        name: who it works for, in messages.
        patience_s: how long `close` waits for what is left.
    """

    def __init__(self, name: str, patience_s: float = 30.0) -> None:
        self._name = name
        self._patience_s = patience_s
        self._jobs: queue.Queue[Callable[[], None] | None] = queue.Queue()
        self._error: BaseException | None = None
        self._dropped = 0
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def put(self, job: Callable[[], None]) -> None:
        """Leave a job.

        Raises:
            BaseException: what an earlier job has raised.
        """
        self._raise()
        if self._jobs.qsize() < MOST_WAITING:
            self._jobs.put(job)
            return
        if not self._dropped:
            text = "%s is too slow: %d summaries wait for it. Further ones are dropped until some have been written."
            log.warning(text, self._name, MOST_WAITING)
        self._dropped += 1

    def close(self) -> None:
        """Wait for what is left, for a while, and say what was not written.

        Raises:
            BaseException: what a job has raised.
        """
        self._jobs.put(None)
        self._thread.join(self._patience_s)
        if self._thread.is_alive():
            text = "%s did not take the last %d summaries within %.0f s; they are lost there."
            log.warning(text, self._name, self._jobs.qsize(), self._patience_s)
        elif self._dropped:
            log.warning("%s was too slow for %d summaries, which are lost there.", self._name, self._dropped)
        self._raise()

    def _raise(self) -> None:
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                job()
            except BaseException as error:  # for whoever leaves the next one
                self._error = error
                return
