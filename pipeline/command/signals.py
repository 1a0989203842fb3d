"""Signals of the command line: the first ends the run in order, the second ends it at once."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from pipeline.common.signals import default_in_forks


@contextmanager
def first_stops_second_cancels(stop: asyncio.Event, signals: Sequence[signal.Signals]) -> Iterator[None]:
    """Let the first signal set `stop` and the next one cancel the current task, within a running event loop.

    Uses the event loop's own signal handling where the platform has it; elsewhere (Windows) Python's, with
    `call_soon_threadsafe`.
    """
    default_in_forks(signals)
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()

    def handle() -> None:
        if stop.is_set() and task is not None:
            task.cancel()
        stop.set()

    previous = {}
    for number in signals:
        try:
            loop.add_signal_handler(number, handle)
        except NotImplementedError:
            previous[number] = signal.signal(number, lambda *_: loop.call_soon_threadsafe(handle))
    try:
        yield
    finally:
        for number in signals:
            if number in previous:
                signal.signal(number, previous[number])
            else:
                loop.remove_signal_handler(number)
