"""Stop requests for this process, received in a thread: signals and, on Windows, console events and named requests.

The requests take effect with any kind of event loop, even if the loop is busy.
"""

from __future__ import annotations

import math
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial

from headrace.pipeline.common.process import default_in_forks
from headrace.startup_context import socket_pair
from headrace.stop_requests import taken_requests

if sys.platform == "win32":
    from headrace.win32 import on_console_end, requests_heard

    _OF_PERSONS = (signal.SIGINT, signal.SIGBREAK)
else:
    _OF_PERSONS = (signal.SIGINT,)
"""Signals sent from the keyboard, which escalate when repeated. The others do not escalate, because a scheduler may
repeat them. Nor does a closed terminal, which several processes notice and report to each other.
"""
SAME_S = 1.0
"""Seconds within which a repeated request counts as the same one, because `timeout` and terminals signal both a process
and its group.
"""


@contextmanager
def requests_received(
    answer: Callable[[signal.Signals], object], name: str = "", same_s: float = SAME_S
) -> Iterator[None]:
    """Call `answer` for the first stop request and for each later Ctrl-C. Enter the context in the main thread.

    Args:
        answer: called with the signal in a new thread each time, so it may block.
        name: on Windows, the name that other processes use to notify this one that the console is closing.
        same_s: see `SAME_S`.
    """
    numbers = taken_requests()
    default_in_forks(numbers)
    ours, theirs = socket_pair()
    theirs.setblocking(False)
    previous = {number: signal.signal(number, lambda *_: None) for number in numbers}
    woken = signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
    thread = threading.Thread(target=_receive, args=(ours, numbers, answer, same_s), name="signals", daemon=True)
    thread.start()
    try:
        with _console_heard(theirs, name):
            yield
    finally:
        signal.set_wakeup_fd(woken)
        for number, handler in previous.items():
            signal.signal(number, handler)
        theirs.shutdown(socket.SHUT_RDWR)  # a fork of this process may hold the socket open
        theirs.close()
        thread.join()
        ours.close()


def _receive(
    sock: socket.socket, numbers: Sequence[int], answer: Callable[[signal.Signals], object], same_s: float
) -> None:
    """Receive signal numbers from a socket until its other end is closed."""
    counted_s = -math.inf
    while received := sock.recv(64):
        for number in received:
            passed_s = time.monotonic() - counted_s
            again = number in _OF_PERSONS and passed_s >= same_s
            if number in numbers and (again or passed_s == math.inf):
                counted_s = time.monotonic()
                called = partial(answer, signal.Signals(number))
                threading.Thread(target=called, name="request to end", daemon=True).start()


@contextmanager
def _console_heard(sock: socket.socket, name: str) -> Iterator[None]:
    """On Windows, also treat Ctrl-Break and a closing console as signals; a closing console counts only once."""
    with ExitStack() as heard:
        if sys.platform == "win32":
            ending = threading.Event()

            def pass_on(number: signal.Signals) -> None:
                with suppress(OSError):  # the other end is closed
                    sock.send(bytes([number]))

            def end() -> None:
                if not ending.is_set():
                    ending.set()
                    pass_on(signal.SIGTERM)

            heard.callback(on_console_end(end, partial(pass_on, signal.SIGBREAK)))
            if name:
                heard.enter_context(requests_heard(name, end))
        yield
