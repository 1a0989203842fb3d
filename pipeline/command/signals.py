"""Signals for the command line: the first asks for an orderly end, the second ends at once."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager


@contextmanager
def first_stops_second_cancels(stop: asyncio.Event, signals: Sequence[signal.Signals]) -> Iterator[None]:
    """Within a running event loop: the first signal sets `stop`, the next one cancels the current task.

    Uses the event loop's own signal handling where the platform has it; elsewhere (Windows) Python's, which reaches
    the loop by its thread-safe door.
    """
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
