"""Requests to end this process, received by a thread: signals, and on Windows what the console and other processes ask.

They have an effect whatever the event loop is doing, and in whatever kind of event loop.
"""

from __future__ import annotations

import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial

from headrace.pipeline.common.process import default_in_forks

if sys.platform == "win32":
    from headrace.win32 import on_console_end, requests_heard

    REQUESTS = (signal.SIGINT, signal.SIGTERM, signal.SIGBREAK)
else:
    REQUESTS = (signal.SIGINT, signal.SIGTERM)
"""Signals with which people, service managers and terminals ask a process to end."""


@contextmanager
def requests_received(answer: Callable[[], object], name: str = "") -> Iterator[None]:
    """Call `answer`, in a thread, for each request to end; to be entered in the main thread.

    Args:
        answer: is not called again before it has returned; what arrives meanwhile waits.
        name: under which other processes pass on to this one that the console closes, on Windows.
    """
    default_in_forks(REQUESTS)
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    previous = {number: signal.signal(number, lambda *_: None) for number in REQUESTS}
    woken = signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
    thread = threading.Thread(target=_receive, args=(ours, answer), name="signals", daemon=True)
    thread.start()
    try:
        with _console_heard(theirs, name):
            yield
    finally:
        signal.set_wakeup_fd(woken)
        for number, handler in previous.items():
            signal.signal(number, handler)
        theirs.close()
        thread.join()
        ours.close()


def _receive(sock: socket.socket, answer: Callable[[], object]) -> None:
    """Receive signals by their numbers, until the other end is closed."""
    while numbers := sock.recv(64):
        for number in numbers:
            if number in REQUESTS:
                answer()


@contextmanager
def _console_heard(sock: socket.socket, name: str) -> Iterator[None]:
    """Let Ctrl-Break, and the end of the console, from whomever this process hears of it first, be signals as well."""
    with ExitStack() as heard:
        if sys.platform == "win32":
            ending = threading.Event()

            def pass_on(number: signal.Signals) -> None:
                with suppress(OSError):  # it is over
                    sock.send(bytes([number]))

            def end() -> None:
                if not ending.is_set():
                    ending.set()
                    pass_on(signal.SIGTERM)

            heard.callback(on_console_end(end, partial(pass_on, signal.SIGBREAK)))
            if name:
                heard.enter_context(requests_heard(name, end))
        yield
