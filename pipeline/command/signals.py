"""Signal handling for the command line: the first signal shuts the run down cleanly, and a second Ctrl-C kills it."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from headrace.config.pipeline import MainSilence
from headrace.ending import AT_ONCE
from headrace.pipeline.command.parser import program
from headrace.pipeline.common.loop_watch import LoopWatch
from headrace.pipeline.common.output import complain, own_stream
from headrace.pipeline.common.signals import requests_received
from headrace.pipeline.hosts.process_cleanup import mark_of
from headrace.process_tree import end_children

log = logging.getLogger(__name__)

HELD_S = 1.0
"""Seconds after which an event loop that has not handled a signal counts as blocked."""
AT_ONCE_S = 20.0
"""Seconds after a second signal within which the run must end; otherwise, the process exits."""


@contextmanager
def stopped_by_signals(limits: MainSilence, give_up: Callable[[str], None] | None = None) -> Iterator[asyncio.Event]:
    """Watch the running event loop. The first stop request sets the yielded event, and the next one cancels the task.

    Args:
        limits: `pipeline.supervision.main`.
        give_up: as for `LoopWatch`.
    """
    stop = asyncio.Event()
    with LoopWatch(limits, give_up) as watch, first_stops_second_cancels(stop, watch):
        yield stop


@contextmanager
def first_stops_second_cancels(stop: asyncio.Event, watch: LoopWatch) -> Iterator[None]:
    """Let the first stop request set `stop` and the next one cancel the current task, within a running event loop.

    The second request also interrupts code that blocks the event loop, and ends the process if that fails.
    """
    task = asyncio.current_task()
    assert task is not None, "called in a task"
    receiver = _Receiver((stop.set, task.cancel), watch)
    with requests_received(receiver.receive, mark_of(os.getpid())):
        try:
            yield
        finally:
            receiver.over.set()


class _Receiver:
    """Receives stop requests for the run.

    Args:
        answers: two functions called in the event loop, for the first stop request and for each later one.
        watch: identifies and interrupts code that blocks the event loop.
    """

    def __init__(self, answers: tuple[Callable[[], object], Callable[[], object]], watch: LoopWatch) -> None:
        self.over = threading.Event()
        self._answers = answers
        self._watch = watch
        self._loop = asyncio.get_running_loop()
        self._count = 0

    def receive(self) -> None:
        """Handle a stop request. This runs in a thread other than the event loop's."""
        self._count += 1
        first = self._count == 1
        taken = threading.Event()
        answer = self._answers[0 if first else 1]

        def take() -> None:
            answer()
            taken.set()

        with suppress(RuntimeError):  # the event loop is closed, so the run has ended
            self._loop.call_soon_threadsafe(take)
        held = not taken.wait(HELD_S) and not self.over.is_set()
        if first:
            if held:
                log.warning(
                    "The run can't end yet: %s\nA second Ctrl-C (SIGINT) ends the run immediately.",
                    self._watch.describe(),
                )
            return
        if held:
            log.warning("Interrupting %s", self._watch.describe())
            self._watch.interrupt(KeyboardInterrupt())
        if not self.over.wait(AT_ONCE_S):
            end_process("ended immediately; everything since the last checkpoint is lost", AT_ONCE)


def end_process(words: str, status: int) -> None:
    """End this process without waiting for its other threads, which may never finish. The run's hosts end with it."""
    with suppress(OSError, ValueError):
        complain(f"[ERROR] {program()}: {words}")
        own_stream("stdout").flush()
    end_children()
    os._exit(status)
