"""Handles stop requests for a command that has nothing to save: the process exits immediately, with one line of output.

An exception would not be enough: if it is raised under an import lock, in a `__del__` or in a weakref callback, Python
prints and swallows it, and the command continues. Import this module before any other, because a Ctrl-C in the first
second interrupts imports.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

if sys.platform == "win32":
    WARNINGS: tuple[signal.Signals, ...] = ()
    REQUESTS: tuple[signal.Signals, ...] = (signal.SIGINT, signal.SIGTERM, signal.SIGBREAK)
else:
    WARNINGS = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU)
    REQUESTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, *WARNINGS)
"""Signals that users, service managers, batch systems and terminals send to end a process. Batch systems send those in
`WARNINGS` minutes before they kill a job; other code may use these signals for something else.
"""
BY_SIGNAL = 128
"""A process that a signal ended immediately has this exit status plus the signal's number, as in a shell."""

_cleanups: list[tuple[threading.Thread, Callable[[], object]]] = []
_abandoned: weakref.WeakSet[threading.Thread] = weakref.WeakSet()
_ending = False


def taken_requests() -> tuple[signal.Signals, ...]:
    """Return the signals in `REQUESTS` that this process handles: not SIGHUP under `nohup`, nor a script's own."""
    always = (signal.SIGINT, signal.SIGTERM)
    return tuple(request for request in REQUESTS if request in always or not _is_foreign(request))


def _is_foreign(request: signal.Signals) -> bool:
    """Return True if code other than Headrace handles or ignores a signal, perhaps in C, as `faulthandler` does."""
    handler = signal.getsignal(request)
    if handler != signal.SIG_DFL:
        return not (getattr(handler, "__module__", None) or "").startswith("headrace.")
    with suppress(OSError, ValueError, IndexError), open("/proc/self/status", "rb") as file:
        return bool(int(file.read().partition(b"SigCgt:")[2].split()[0], 16) >> request - 1 & 1)
    return False


@contextmanager
def ended_at_once(for_good: bool = False) -> Iterator[None]:
    """Let stop requests end this process immediately within the context, unless other code handles them.

    Outside the main thread, this has no effect.

    Args:
        for_good: True if the process ends after the context. Its status is then final, and later stop requests must not
            change it.
    """
    before: dict[signal.Signals, object] = {}
    try:
        with suppress(ValueError):  # not the main thread
            for number in taken_requests():
                before[number] = signal.signal(number, _end)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_IGN if for_good else handler)  # type: ignore[arg-type]


@contextmanager
def cleaned_up_by(cleanup: Callable[[], object]) -> Iterator[None]:
    """Call `cleanup` if this process is ended within the context, or if this thread is abandoned (`clean_up`)."""
    entry = (threading.current_thread(), cleanup)
    _cleanups.append(entry)
    try:
        if entry[0] in _abandoned:
            cleanup()
        yield
    finally:
        _cleanups.remove(entry)


def clean_up(thread: threading.Thread | None = None) -> None:
    """Call the cleanups of an abandoned thread, including those it registers later; without a thread, call all."""
    if thread is not None:
        _abandoned.add(thread)
    for registrant, cleanup in reversed(_cleanups.copy()):
        if thread in (registrant, None):
            with suppress(Exception):
                cleanup()


def _end(number: int, _: object) -> None:
    global _ending
    if not _ending:
        _ending = True
        clean_up()
        program = os.path.splitext(os.path.basename(sys.argv[0]))[0]
        say(f"[ERROR] {program}: ended immediately, by {signal.Signals(number).name}")
    os._exit(BY_SIGNAL + number)


# Ending a process whose status is known.

NAMED_S, ENDED_S = 5.0, 30.0
"""Seconds until a warning names what keeps this process alive, and seconds until the process is ended anyway."""


def end_in_time(status: int, named_s: float = NAMED_S, ended_s: float = ENDED_S) -> None:
    """End this process soon with this status, even if threads or exit handlers of user code would block it."""

    def watch() -> None:
        never = threading.Event()
        never.wait(named_s)
        say(
            f"[WARNING] Everything is done, but {_kept_by()} keeps this process alive. The process ends in "
            f"{ended_s - named_s:.0f} s."
        )
        never.wait(ended_s - named_s)
        os._exit(status)

    threading.Thread(target=watch, name="the end in time", daemon=True).start()


def _kept_by() -> str:
    """Describe what the interpreter is waiting for: threads or, once those have ended, exit handlers."""
    main, calls = threading.main_thread(), sys._current_frames()
    threads = [running for running in threading.enumerate() if running is not main and not running.daemon]
    named = [f"the thread {running.name!r}{_place(calls.get(running.ident or 0))}" for running in threads]
    return " and ".join(named) or f"an exit handler{_place(calls.get(main.ident or 0))}"


def _place(call: FrameType | None) -> str:
    return "" if call is None else f" (at {call.f_code.co_filename}:{call.f_lineno}, in {call.f_code.co_name})"


def say(line: str) -> None:
    """Write a line to standard error, without Python's streams."""
    with suppress(OSError):  # `sys.stderr` may be any object by now
        os.write(2, f"{line}\n".encode())
