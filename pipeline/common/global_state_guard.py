"""Process-wide state whose loss could cost a run, hang it or silence it: saved before user code runs, and restored.

An environment may change the logging, the signal handlers or the clock at any moment, usually by accident: it
configures its own logging, or imports a package that does. Each process checks the state about once a second, restores
it if it has changed, and warns once. State whose loss raises an error, such as `sys.path`, is left as it is.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from headrace.stop_requests import REQUESTS

log = logging.getLogger(__name__)

OURS = "headrace"
"""Name of the parent logger of all Headrace loggers."""
_PutBack = Callable[[], bool]
"""Type of a function that restores one piece of state and returns True if that piece had changed."""

_monotonic = time.monotonic
_kept: GlobalState | None = None


class GlobalState:
    """A snapshot of the process-wide state, taken when the object is created."""

    def __init__(self) -> None:
        self.things = [*_things()]
        """(name, function that restores it) for each piece of state."""
        self._said: set[str] = set()

    def put_back(self) -> None:
        """Restore the state that has changed, and warn. Call this in the thread that runs the event loop."""
        changed = [name for name, put_back in self.things if put_back()]
        names = [name for name in dict.fromkeys(changed) if name not in self._said]
        self._said.update(names)
        if names:
            words = "Your code changed process-wide state that Headrace needs; Headrace has restored it: %s."
            log.warning(words, ", ".join(names))


def guard_global_state() -> None:
    """Save the process-wide state for the rest of this process, unless it is already saved."""
    global _kept
    _kept = _kept or GlobalState()
    with suppress(RuntimeError):  # no event loop is running
        loop = asyncio.get_running_loop()
        if type(loop).time is asyncio.BaseEventLoop.time:  # this implementation looks up `time.monotonic` at each call
            loop.time = _monotonic  # type: ignore[method-assign]


@contextmanager
def global_state_guard() -> Iterator[None]:
    """Save the process-wide state and restore it within this context, unless it is already saved."""
    global _kept
    before = _kept
    guard_global_state()
    try:
        yield
    finally:
        put_back()
        _kept = before


@contextmanager
def keeping_handler(logger: logging.Logger, handler: logging.Handler) -> Iterator[None]:
    """Also restore a logger's handler if it is removed within this context."""
    things = [] if _kept is None else _kept.things
    thing = (f"the handlers of the logger {logger.name!r}", partial(_hold, logger.handlers, [handler]))
    things.append(thing)
    try:
        yield
    finally:
        things.remove(thing)


def put_back() -> None:
    """Restore the parts of the saved state that have changed; do nothing if no state is saved."""
    if _kept is not None:
        _kept.put_back()


def _things() -> Iterator[tuple[str, _PutBack]]:
    yield "logging.disable()", _attribute(logging.root.manager, "disable")
    yield f"loggers below {OURS!r}", _enable_loggers
    for logger in (logging.getLogger(OURS), logging.root):
        if handlers := [each for each in logger.handlers if _is_ours(each)]:
            yield f"the handlers of the logger {logger.name!r}", partial(_hold, logger.handlers, handlers)
            yield f"the level of the logger {logger.name!r}", partial(_lower, logger, logger.level)
    if threading.current_thread() is threading.main_thread():
        yield from _signals()
    yield "time.monotonic()", _attribute(time, "monotonic")


def _is_ours(thing: object) -> bool:
    return (getattr(thing, "__module__", None) or "").startswith(f"{OURS}.")


def _signals() -> Iterator[tuple[str, _PutBack]]:
    """Yield each of Headrace's signal handlers, with the function that restores it.

    SIGPIPE stays ignored, so that a write to a closed pipe raises an error instead of killing the process.
    """
    for number in REQUESTS:
        if _is_ours(handler := signal.getsignal(number)):
            yield f"the handler of {number.name}", partial(_handle, number, handler)
    woken = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
    if woken != -1 and _is_ours(signal.getsignal(signal.SIGTERM)):
        yield "signal.set_wakeup_fd()", partial(_wake, woken)
    pipe: Any = getattr(signal, "SIGPIPE", None)
    if pipe is not None and signal.getsignal(pipe) == signal.SIG_IGN:
        yield "the handler of SIGPIPE", partial(_handle, pipe, signal.SIG_IGN)


def _attribute(of: object, name: str) -> _PutBack:
    kept = getattr(of, name)

    def put_back() -> bool:
        changed: bool = getattr(of, name) != kept
        setattr(of, name, kept)
        return changed

    return put_back


def _hold(places: list[Any], kept: list[Any]) -> bool:
    missing = [each for each in kept if each not in places]
    places.extend(missing)
    return bool(missing)


def _lower(logger: logging.Logger, level: int) -> bool:
    changed = logger.level > level
    if changed:
        logger.setLevel(level)
    return changed


def _enable_loggers() -> bool:
    ours = [logging.getLogger(name) for name in [*logging.root.manager.loggerDict] if name.startswith(f"{OURS}.")]
    disabled = [logger for logger in (logging.getLogger(OURS), *ours) if logger.disabled]
    for logger in disabled:
        logger.disabled = False
    return bool(disabled)


def _handle(number: signal.Signals, handler: Any) -> bool:
    changed: bool = signal.getsignal(number) != handler
    if changed:
        signal.signal(number, handler)
    return changed


def _wake(descriptor: int) -> bool:
    return signal.set_wakeup_fd(descriptor, warn_on_full_buffer=False) != descriptor
