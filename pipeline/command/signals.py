"""Signals of the command line: the first ends the run in order, the second ends it at once."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from headrace.config.pipeline import MainSilence
from headrace.pipeline.command.parser import program
from headrace.pipeline.common.loop_watch import LoopWatch
from headrace.pipeline.common.process import default_in_forks

log = logging.getLogger(__name__)

HELD_S = 1.0
"""Seconds after which an event loop that does not take a signal is held."""
AT_ONCE_S = 20.0
"""Seconds in which the run ends after a second signal; then the process does."""
STATUS = 130
"""Exit status after a second signal."""


@contextmanager
def stopped_by_signals(limits: MainSilence, give_up: Callable[[str], None] | None = None) -> Iterator[asyncio.Event]:
    """Watch over the running event loop; the first SIGINT or SIGTERM sets what is yielded, the next cancels the task.

    Args:
        limits: `pipeline.supervision.main`.
        give_up: as for `LoopWatch`.
    """
    stop = asyncio.Event()
    with LoopWatch(limits, give_up) as watch, first_stops_second_cancels(stop, (signal.SIGINT, signal.SIGTERM), watch):
        yield stop


@contextmanager
def first_stops_second_cancels(
    stop: asyncio.Event, signals: Sequence[signal.Signals], watch: LoopWatch
) -> Iterator[None]:
    """Let the first signal set `stop` and the next one cancel the current task, within a running event loop.

    A thread receives them, so that they have an effect whatever the event loop is doing: the second one interrupts what
    holds it, and ends the process if that can't be interrupted.
    """
    default_in_forks(signals)
    task = asyncio.current_task()
    assert task is not None, "called in a task"
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    receiver = _Receiver(ours, signals, (stop.set, task.cancel), watch)
    previous = {number: signal.signal(number, lambda *_: None) for number in signals}
    woken = signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
    thread = threading.Thread(target=receiver.run, name="signals", daemon=True)
    thread.start()
    try:
        yield
    finally:
        receiver.over.set()
        signal.set_wakeup_fd(woken)
        for number, handler in previous.items():
            signal.signal(number, handler)
        theirs.close()
        thread.join()
        ours.close()


class _Receiver:
    """Receives signals by their numbers, from a socket.

    Args:
        sock: the socket; its end is the receiver's.
        signals: those that count.
        answers: what the first and each later one does, in the event loop.
        watch: knows and interrupts who holds the event loop.
    """

    def __init__(
        self,
        sock: socket.socket,
        signals: Sequence[signal.Signals],
        answers: tuple[Callable[[], object], Callable[[], object]],
        watch: LoopWatch,
    ) -> None:
        self.over = threading.Event()
        self._sock = sock
        self._signals = signals
        self._answers = answers
        self._watch = watch
        self._loop = asyncio.get_running_loop()

    def run(self) -> None:
        """Receive until the other end of the socket is closed."""
        count = 0
        while numbers := self._sock.recv(64):
            for number in numbers:
                if number in self._signals:
                    count += 1
                    self._receive(first=count == 1)

    def _receive(self, first: bool) -> None:
        taken = threading.Event()
        answer = self._answers[0 if first else 1]

        def take() -> None:
            answer()
            taken.set()

        with suppress(RuntimeError):  # the event loop is closed: all is over
            self._loop.call_soon_threadsafe(take)
        held = not taken.wait(HELD_S) and not self.over.is_set()
        if first:
            if held:
                log.warning("The run can't end yet: %s\nA second signal ends it at once.", self._watch.describe())
            return
        if held:
            log.warning("Interrupting %s", self._watch.describe())
            self._watch.interrupt(KeyboardInterrupt())
        if not self.over.wait(AT_ONCE_S):
            end_process("ended at once; what was not checkpointed is lost", STATUS)


def end_process(words: str, status: int) -> None:
    """End this process without a further step in its other threads, which may never come; its hosts die with it."""
    with suppress(OSError, ValueError):
        sys.stderr.write(f"[ERROR] {program()}: {words}\n")
        sys.stderr.flush()
        sys.stdout.flush()
    os._exit(status)
