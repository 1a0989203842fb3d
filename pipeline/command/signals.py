"""Signal handling for the command line: the first signal shuts the run down cleanly, and a second Ctrl-C kills it."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import NoReturn

from headrace.config.pipeline import MainSilence
from headrace.pipeline.command.parser import program
from headrace.pipeline.common.loop_watch import LoopWatch
from headrace.pipeline.common.output import complain, own_stream
from headrace.pipeline.common.signals import requests_received
from headrace.pipeline.hosts.process_cleanup import mark_of
from headrace.process_tree import end_children
from headrace.queues.disks import Disks, waits_for_disk
from headrace.stop_requests import BY_SIGNAL, clean_up

log = logging.getLogger(__name__)

HELD_S = 1.0
"""Seconds after which an event loop that has not handled a signal counts as blocked."""
UNSAVED_S = 3.0
"""Further seconds for a blocked event loop to handle a signal if there is nothing to save; then the process exits."""
AT_ONCE_S = 20.0
"""Seconds after a second signal within which the run must end; otherwise, the process exits."""


@contextmanager
def stopped_by_signals(limits: MainSilence, give_up: Callable[[str], None] | None = None) -> Iterator[StopSignals]:
    """Receive stop requests and watch the running event loop; enter the context in the task that the requests stop.

    Args:
        limits: `pipeline.supervision.main`.
        give_up: as for `LoopWatch`.
    """
    with LoopWatch(limits, give_up) as watch:
        signals = StopSignals(watch)
        with requests_received(signals.receive, mark_of(os.getpid())):
            try:
                yield signals
            finally:
                signals.over.set()


class StopSignals:
    """Receives stop requests for the current task.

    Before `begin`, a request ends the process, whatever the task is doing. Afterwards, the first request sets `stop`,
    and the next one cancels the task and interrupts code that blocks the event loop. If that code blocks the first
    request while there is nothing to save, the process ends too.

    Args:
        watch: identifies and interrupts code that blocks the event loop.

    Attributes:
        stop: event that the first request sets.
        over: set when the run has ended.
    """

    def __init__(self, watch: LoopWatch) -> None:
        task = asyncio.current_task()
        assert task is not None, "created in a task"
        self.stop = asyncio.Event()
        self.over = threading.Event()
        self._task = task
        self._watch = watch
        self._loop = asyncio.get_running_loop()
        self._count = 0
        self._would_save: Callable[[], bool] | None = None

    def begin(self, would_save: Callable[[], bool]) -> None:
        """Let the first request end the run cleanly from now on.

        Args:
            would_save: returns True if a clean end would save something; called in any thread.
        """
        self._would_save = would_save

    def receive(self, request: signal.Signals) -> None:
        """Handle a stop request. This runs in a thread other than the event loop's."""
        status = BY_SIGNAL + request
        self._count += 1
        first = self._count == 1
        would_save = self._would_save
        if would_save is None:
            end_process(f"ended immediately, before the run started, by {request.name}", status)
        if request != signal.SIGINT:
            log.info("Received %s, a request to end the run.", request.name)
        taken = threading.Event()
        answer: Callable[[], object] = self.stop.set if first else self._task.cancel

        def take() -> None:
            answer()
            taken.set()

        with suppress(RuntimeError):  # the event loop is closed, so the run has ended
            self._loop.call_soon_threadsafe(take)
        held = not taken.wait(HELD_S) and not self.over.is_set()
        if first:
            if held and not would_save():
                if not taken.wait(UNSAVED_S) and not self.over.is_set():
                    end_process(f"ended with nothing to save, during {self._watch.describe()}", status)
            elif held:
                log.warning(
                    "The run can't end yet: %s\nA second Ctrl-C (SIGINT) ends the run immediately.",
                    self._watch.describe(),
                )
            return
        if held and waits_for_disk():
            end_process("ended immediately, while a disk did not answer", status)
        if held:
            blocking = self._watch.describe()
            self._watch.interrupt(KeyboardInterrupt())  # first, because the log file's disk may not answer
            log.warning("Interrupting %s", blocking)
        if not self.over.wait(AT_ONCE_S):
            end_process("ended immediately; everything since the last checkpoint is lost", status)


def end_process(words: str, status: int) -> NoReturn:
    """End this process without waiting for its other threads, which may never finish. The run's hosts end with it."""
    with Disks(limit_s=0.0).used():
        clean_up()
    with suppress(OSError, ValueError):
        complain(f"[ERROR] {program()}: {words}")
        own_stream("stdout").flush()
    end_children()
    os._exit(status)
